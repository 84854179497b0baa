# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Finetuning of a checkpoint for activation sparsity (arXiv 2309.03004), beside plain LoRA as the baseline.

The method adds zeroth biases and JSReLU to the checkpoint, trains LoRA on every matrix of attention and MLP, and lifts
the scales of the norms before the MLPs.
"""

import copy
import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from sparsight import SparseT5ForConditionalGeneration, SparseViTForImageClassification
from sparsight.analysis.plots import plot_sparsity, save_figure
from sparsight.hub_cards.results import layer_shares
from sparsight.training.command_line.arguments import Settings, argument, arguments_from_recipe
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.models import ModelArguments, check_model_fields, load_pretrained
from sparsight.training.engine.observers import Observer
from sparsight.training.engine.optimization import Plan
from sparsight.training.engine.run import Run, run_task
from sparsight.training.engine.run_folder import RESULTS_FILE, check_run_folder
from sparsight.training.engine.seeding import seed_generators
from sparsight.training.engine.task import Task
from sparsight.training.methods import MethodArguments, make_methods
from sparsight.training.methods.activation_sparsity import ActivationMixing, LayerNormUplift, find_blocks


@dataclass
class FinetuneArguments:
    """What to finetune, and how sparsity comes about."""

    recipe: str | None = argument(
        "A recipe by name, or a YAML file. Default: vit_digits_finetune or t5_stdlib_finetune on the embedded data, "
        "else none.",
        on_card=True,
    )
    task: str | None = argument("What to finetune, image or t5. Default: what the checkpoint is for, or image.")
    model_name_or_path: str | None = argument(
        "A ViT classifier or a T5, vanilla or sparse. Default: a small one trained on the embedded data."
    )
    vanilla_recipe: str | None = argument(
        "Recipe of the vanilla model to train where no checkpoint is given; it is trained on the same examples. "
        "Default: vit_digits or t5_stdlib."
    )
    baseline: bool = argument("Also finetune with plain LoRA, the paper's baseline.", True)
    lora_rank: int = argument("Rank of LoRA on every matrix of attention and MLP.", 192, at_least=1, on_card=True)
    lora_alpha: float | None = argument("LoRA's scale is alpha/rank. Default: the rank.", above=0)
    lora_dropout: float = argument("Dropout before LoRA.", 0.0, at_least=0, below=1)
    uplift_steps: int | None = argument(
        "Optimizer steps over which norm scales are lifted to 1; 0 lifts at once. Default: a third of all.",
        at_least=0,
        on_card=True,
    )
    mixing_steps: int = argument(
        "Optimizer steps over which ReLU turns into JSReLU; 0 changes it at once.", 0, at_least=0, on_card=True
    )
    model: dict[str, Any] = field(default_factory=dict, init=False)


@dataclass(frozen=True)
class SparseForm:
    """What the method does to the checkpoints of a task.

    Attributes:
        noun: what a user is asked for.
        families: model types of the checkpoints.
        model_class: loads any of them as the sparse family.
        config_fields: from the checkpoint's config to the fields that make it sparse.
        lora_targets: the matrices of attention and MLP, by the end of their names.
        vanilla_recipe: trains a checkpoint on the embedded data; `recipe` finetunes it.
    """

    noun: str
    families: tuple[str, ...]
    model_class: type[PreTrainedModel]
    config_fields: Callable[[PreTrainedConfig], dict[str, Any]]
    lora_targets: tuple[str, ...]
    vanilla_recipe: str
    recipe: str


# By the name of the task.
SPARSE_FORMS: dict[str, SparseForm] = {
    "image": SparseForm(
        noun="classifier",
        families=("vit", "sparse_vit"),
        model_class=SparseViTForImageClassification,
        config_fields=lambda config: {"hidden_act": "jsrelu", "zeroth_bias": True},
        lora_targets=("q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"),
        vanilla_recipe="vit_digits",
        recipe="vit_digits_finetune",
    ),
    "t5": SparseForm(
        noun="T5",
        families=("t5", "sparse_t5"),
        model_class=SparseT5ForConditionalGeneration,
        config_fields=lambda config: {
            "feed_forward_proj": "gated-jsrelu" if config.is_gated_act else "jsrelu",
            "zeroth_bias": True,
        },
        lora_targets=("q", "k", "v", "o", "wi", "wi_0", "wi_1", "wo"),
        vanilla_recipe="t5_stdlib",
        recipe="t5_stdlib_finetune",
    ),
}


@dataclass(frozen=True)
class Finetuning:
    """One finetuning job: what it starts from and how it goes.

    Attributes:
        arguments: of the user.
        form: of the task.
        checkpoint: folder or Hub name of the model that is finetuned.
    """

    arguments: FinetuneArguments
    form: SparseForm
    checkpoint: str

    def base_fields(self) -> dict[str, Any]:
        """The config fields that the checkpoint is loaded with, to be finetuned or to carry the adapter."""
        return {**self.form.config_fields(AutoConfig.from_pretrained(self.checkpoint)), **self.arguments.model}

    def add_lora(self, model: PreTrainedModel, modules_to_save: Sequence[str] = ()) -> PeftModel:
        """LoRA on every matrix of attention and MLP; `modules_to_save` are trained in full."""
        arguments = self.arguments
        return get_peft_model(
            model,
            LoraConfig(
                r=arguments.lora_rank,
                lora_alpha=arguments.lora_alpha or arguments.lora_rank,
                lora_dropout=arguments.lora_dropout,
                target_modules=list(self.form.lora_targets),
                modules_to_save=list(modules_to_save) or None,
            ),
        )

    def make_sparse(self, num_steps: int) -> tuple[PeftModel, list[LayerNormUplift | ActivationMixing]]:
        """The checkpoint with zeroth biases, JSReLU and LoRA, and what acts on it after each step.

        Args:
            num_steps: optimizer steps of the finetuning.
        """
        model = load_pretrained(self.checkpoint, self.form.model_class, **self.base_fields())
        names = {module: name for name, module in model.named_modules()}
        modules = [module for block in find_blocks(model) for module in (block.zeroth_bias, block.mlp_norm)]
        model = self.add_lora(model, [names[module] for module in modules if module is not None])
        given = self.arguments.uplift_steps
        uplift_steps = num_steps // 3 if given is None else given
        return model, [LayerNormUplift(model, uplift_steps), ActivationMixing(model, self.arguments.mixing_steps)]


def finetune(
    task_class: type[Task],
    form: SparseForm,
    arguments: FinetuneArguments,
    data_arguments: Any,
    loop: LoopArguments,
    observers: Sequence[Observer] = (),
) -> dict[str, Any]:
    """Finetune as the arguments say, and write the output folder.

    Args:
        observers: look on while the method trains the model.

    Returns:
        What `results.json` holds: `before`, `lora` and `method`, what each model measured; in the last also what the
        observers found.

    Raises:
        ValueError: that begins with the argument's name, if an argument, the data and the checkpoint do not fit.
    """
    loop.output_dir = loop.output_dir or "outputs/finetune_sparsity"
    arguments.vanilla_recipe = arguments.vanilla_recipe or form.vanilla_recipe
    settings = Settings(arguments, data_arguments, loop)
    if loop.resume_from_checkpoint not in (None, "latest"):
        raise ValueError(
            f"resume_from_checkpoint: {loop.resume_from_checkpoint!r}: this job resumes with 'latest' only"
        )
    check_model_fields(form.model_class.config_class, arguments.model)
    if arguments.model_name_or_path is None and data_arguments.dataset != task_class.embedded_dataset:
        raise ValueError(
            f"model_name_or_path: give a {form.noun} of {data_arguments.dataset} to finetune; one is trained here for "
            f"the embedded {task_class.embedded_dataset} only"
        )
    run = Run(loop, settings)
    vanilla = None
    if arguments.model_name_or_path is None:
        vanilla = _Vanilla.parse(task_class, arguments, data_arguments, loop)
    task = task_class(data_arguments, loop)
    if vanilla is None:
        model = load_pretrained(arguments.model_name_or_path, task.auto_class)
        processor = task.load_processor(arguments.model_name_or_path, model.config)
    else:
        model, processor = vanilla.make(task)
    _check_checkpoint(form, arguments, task, model, processor)
    task.prepare(model, processor, run.accelerator)
    with run.begun("lora", "method", "recipe", "adapter", "merged", RESULTS_FILE, "sparsity.png"):
        checkpoint = arguments.model_name_or_path
        if vanilla is not None:
            checkpoint = vanilla.train(run, model, processor)
        return _finetune_both_ways(run, task, Finetuning(arguments, form, checkpoint), processor, observers)


def _finetune_both_ways(
    run: Run, task: Task, job: Finetuning, processor: Any, observers: Sequence[Observer]
) -> dict[str, Any]:
    """Evaluate the checkpoint, finetune it with plain LoRA and with the method, and write what came of it."""

    def save_best(push: bool, model: PeftModel, folder: Path) -> None:
        model.save_pretrained(folder)
        if push:
            with tempfile.TemporaryDirectory() as merged:
                run.save_model(copy.deepcopy(model).merge_and_unload(), processor, Path(merged))
                run.document(Path(merged))
                run.push_best(Path(merged))

    model = load_pretrained(job.checkpoint, task.auto_class)
    results = {"before": task.evaluate(model)}
    if job.arguments.baseline:
        seed_generators(run.loop.seed)
        result = run.train(task, job.add_lora(model), partial(save_best, False), part="lora")
        results["lora"] = {**result.evaluation, **_training_share(result.observed)}

    seed_generators(run.loop.seed)
    model, methods = job.make_sparse(Plan.of(task.train_loader, run.loop).num_steps)
    result = run.train(task, model, partial(save_best, run.pushes_best), methods, observers, part="method")
    with run.delivered("adapter") as adapter, run.delivered("merged") as merged:
        if run.accelerator.is_main_process:
            result.model.save_pretrained(adapter)
            run.save_model(result.model.merge_and_unload(), processor, merged)
        run.accelerator.wait_for_everyone()
        # What is measured is what is delivered: the merged model, read back.
        measured = task.evaluate(load_pretrained(str(merged), task.auto_class))
        found = {name: value for observer in observers for name, value in observer.results().items()}
        results["method"] = {**measured, **_training_share(result.observed), **found}
        results["recipe"] = results["method"]  # its former name, for one release
        results |= {"eval_split": task.data.eval_split, "seed": run.loop.seed}
        shares = {
            name: list(layer_shares(results[name]).values())
            for name in ("before", "lora", "method")
            if name in results
        }
        if run.accelerator.is_main_process:
            run.document(merged, results, shares)
            run.document(adapter, results, shares, model=job.base_fields())
    if run.accelerator.is_main_process:
        if any(shares.values()):
            figure = plot_sparsity(shares, title="Finetuning for activation sparsity")
            save_figure(figure, run.output_dir / "sparsity.png")
        run.write_results(results)
        run.push_last("merged")
    return results


def _training_share(observed: dict[str, Any]) -> dict[str, Any]:
    return {"training_nonzero_share": observed.get("training_nonzero_share")}


def _check_checkpoint(
    form: SparseForm, arguments: FinetuneArguments, task: Task, model: PreTrainedModel, processor: Any
) -> None:
    name = arguments.model_name_or_path or arguments.vanilla_recipe
    if model.config.model_type not in form.families:
        raise ValueError(
            f"model_name_or_path: {name} is a {model.config.model_type}; the method is for "
            f"{' and '.join(form.families)}"
        )
    task.check_model(name, model, processor)
    for module_name, module in model.named_modules():
        if module_name.rpartition(".")[2] in form.lora_targets:
            shape, rank = tuple(module.weight.shape), arguments.lora_rank
            if rank > min(shape):
                raise ValueError(
                    f"lora_rank: {rank} is more than {module_name} {shape} allows; give at most {min(shape)}"
                )


@dataclass
class _Vanilla:
    """The small vanilla model that is trained where no checkpoint is given.

    Attributes:
        start, method_arguments, data_arguments, loop: of its recipe; the examples are those of the finetuning.
    """

    start: ModelArguments
    method_arguments: MethodArguments
    data_arguments: Any
    loop: LoopArguments

    @classmethod
    def parse(
        cls, task_class: type[Task], arguments: FinetuneArguments, data_arguments: Any, loop: LoopArguments
    ) -> "_Vanilla":
        """Continue or keep what is in its folder, if it is the same; otherwise begin anew there."""
        classes = (ModelArguments, MethodArguments, task_class.arguments_class, LoopArguments)
        folder = Path(loop.output_dir) / "vanilla"
        start, method_arguments, own_data_arguments, own_loop = arguments_from_recipe(
            classes,
            arguments.vanilla_recipe,
            output_dir=str(folder),
            seed=loop.seed,
            resume_from_checkpoint="latest",
        )
        for source in dataclasses.fields(task_class.source_class):
            setattr(own_data_arguments, source.name, getattr(data_arguments, source.name))
        vanilla = cls(start, method_arguments, own_data_arguments, own_loop)
        vanilla.settings.check()
        try:
            check_run_folder(vanilla.settings)
        except ValueError:
            own_loop.resume_from_checkpoint, own_loop.overwrite = None, True
        return vanilla

    @property
    def settings(self) -> Settings:
        return Settings(self.start, self.method_arguments, self.data_arguments, self.loop)

    def make(self, task: Task) -> tuple[PreTrainedModel, Any]:
        """The fresh model and its processor, on the data that `task` has loaded."""
        self.task = task.with_arguments(self.data_arguments, self.loop)
        seed_generators(self.loop.seed)
        return self.task.make_model(self.start)

    def train(self, run: Run, model: PreTrainedModel, processor: Any) -> str:
        """Train it as a part of `run`, and return the folder of the checkpoint."""
        part = Run(self.loop, self.settings, run.accelerator)
        make = partial(make_methods, arguments=self.method_arguments)
        run_task(part, self.task, self.start, make, made=(model, processor))
        return str(part.output_dir / "model")

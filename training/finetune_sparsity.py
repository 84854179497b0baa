# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Finetune a checkpoint for activation sparsity, beside plain LoRA as the baseline, and show what it cost and gained.

    accelerate launch training/finetune_sparsity.py
    accelerate launch training/finetune_sparsity.py --task t5
    accelerate launch training/finetune_sparsity.py --recipe vit_base_imagenet_finetune --dataset FOLDER \\
        --model_name_or_path CHECKPOINT
    accelerate launch training/finetune_sparsity.py --recipe t5_base_c4_finetune

The task, image classification with a ViT or span corruption with a T5, is that of the checkpoint, or what --task says;
the arguments of the data are the task's. With neither a checkpoint nor a data set, a small vanilla ReLU model is first
trained on the embedded data: handwritten digits, or Python's own documentation.

The recipe adds zeroth biases and JSReLU to the checkpoint, trains LoRA on every matrix of attention and MLP, and lifts
the scales of the norms before the MLPs (arXiv 2309.03004).

The output folder has `results.json` (before, lora, recipe), `sparsity.png`, `adapter/` (all that the recipe changed),
`merged/` (ready for the Auto class's `from_pretrained`), and `vanilla/`, where one was trained.
"""

import argparse
import copy
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from accelerate import PartialState
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoConfig, PreTrainedModel

from sparsight.analysis.plots import plot_sparsity, save_figure
from sparsight.training.arguments import (
    LoopArguments,
    UsageError,
    argument,
    command_line,
    exit_on_usage_error,
    load_recipe,
    parse_arguments,
    require,
)
from sparsight.training.checkpoints import check_model_fields, load_pretrained
from sparsight.training.finetune_tasks import TASKS, Task
from sparsight.training.loop import RecipePart, TrainingResult, count_steps, make_accelerator, train
from sparsight.training.publish import create_repository, document_model, push_folder
from sparsight.training.run_folder import (
    begin_run,
    check_run_folder,
    find_checkpoints,
    write_json,
    written_folder,
)
from sparsight.training.seeding import seed_generators
from sparsight.training.sparsity import ActivationMixing, LayerNormUplift, find_blocks


# What a run writes into its folder and a new one replaces; `vanilla/` is kept.
ARTIFACTS = ("lora", "recipe", "adapter", "merged", "results.json", "sparsity.png")


@dataclass
class FinetuneArguments:
    """What to finetune, and how sparsity comes about."""

    recipe: str | None = argument(
        "A recipe by name, or a YAML file. Default: vit_digits_finetune or t5_stdlib_finetune on the embedded data, "
        "else none."
    )
    task: Literal["image", "t5"] | None = argument("What to finetune. Default: what the checkpoint is for, or image.")
    model_name_or_path: str | None = argument(
        "A ViT classifier or a T5, vanilla or sparse. Default: a small one trained on the embedded data."
    )
    vanilla_recipe: str | None = argument(
        "Recipe of the vanilla model to train where no checkpoint is given. Default: vit_digits or t5_stdlib."
    )
    baseline: bool = argument("Also finetune with plain LoRA, the paper's baseline.", True)
    lora_rank: int = argument("Rank of LoRA on every matrix of attention and MLP.", 192)
    lora_alpha: float | None = argument("LoRA's scale is alpha/rank. Default: the rank.")
    lora_dropout: float = argument("Dropout before LoRA.", 0.0)
    uplift_steps: int | None = argument(
        "Optimizer steps over which norm scales are lifted to 1; 0 lifts at once. Default: a third of all."
    )
    mixing_steps: int = argument("Optimizer steps over which ReLU turns into JSReLU; 0 changes it at once.", 0)
    model: dict[str, Any] = field(default_factory=dict, init=False)

    def check(self) -> None:
        """
        Raises:
            UsageError: naming the argument, if a value is nonsense.
        """
        require(self.lora_rank >= 1, "lora_rank", f"{self.lora_rank} is too few; give at least 1")
        require(0 <= self.lora_dropout < 1, "lora_dropout", f"{self.lora_dropout} is not in [0, 1)")
        for name in ("uplift_steps", "mixing_steps"):
            require((getattr(self, name) or 0) >= 0, name, f"{getattr(self, name)} is negative; give 0 or more")


def choose_task(args: list[str] | None) -> Task:
    """The task that a command line or its recipe names, else the one that the checkpoint is for, else images."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("task", "recipe", "model_name_or_path"):
        parser.add_argument(f"--{name}", nargs="?")
    given, _ = parser.parse_known_args(args)
    recipe = load_recipe(given.recipe) if given.recipe else {}
    name = given.task or recipe.get("task")
    checkpoint = given.model_name_or_path or recipe.get("model_name_or_path")
    if name is None and checkpoint is not None:
        try:
            model_type = AutoConfig.from_pretrained(checkpoint).model_type
        except (OSError, ValueError):  # loading the model says what is wrong
            model_type = None
        name = next((name for name, task in TASKS.items() if model_type in task.families), None)
    return TASKS.get(name, TASKS["image"])  # the parser refuses what is unknown


def check_checkpoint(
    task: Task, model: PreTrainedModel, processor: Any, arguments: FinetuneArguments, data: Any
) -> None:
    """
    Raises:
        UsageError: if the recipe or the data do not fit the checkpoint.
    """
    name = arguments.model_name_or_path or arguments.vanilla_recipe
    require(
        model.config.model_type in task.families,
        "model_name_or_path",
        f"{name} is a {model.config.model_type}; the recipe is for {' and '.join(task.families)}",
    )
    task.check(name, model, processor, data)
    for module_name, module in model.named_modules():
        if module_name.rpartition(".")[2] in task.lora_targets:
            shape, rank = tuple(module.weight.shape), arguments.lora_rank
            fits = rank <= min(shape)
            require(fits, "lora_rank", f"{rank} is more than {module_name} {shape} allows; give at most {min(shape)}")


def add_lora(
    task: Task, model: PreTrainedModel, arguments: FinetuneArguments, modules_to_save: Sequence[str] = ()
) -> PeftModel:
    """LoRA on every matrix of attention and MLP; the modules named in `modules_to_save` are trained in full."""
    return get_peft_model(
        model,
        LoraConfig(
            r=arguments.lora_rank,
            lora_alpha=arguments.lora_alpha or arguments.lora_rank,
            lora_dropout=arguments.lora_dropout,
            target_modules=list(task.lora_targets),
            modules_to_save=list(modules_to_save) or None,
        ),
    )


def base_fields(task: Task, checkpoint: str, arguments: FinetuneArguments) -> dict[str, Any]:
    """The fields that the checkpoint is loaded with, to be finetuned or to carry the adapter."""
    return {**task.sparse_fields(AutoConfig.from_pretrained(checkpoint)), **arguments.model}


def make_sparse(
    task: Task, checkpoint: str, arguments: FinetuneArguments, num_steps: int
) -> tuple[PeftModel, list[LayerNormUplift | ActivationMixing]]:
    """The checkpoint as the recipe finetunes it: zeroth biases, JSReLU, LoRA, and the parts to step."""
    model = load_pretrained(checkpoint, task.sparse_class, **base_fields(task, checkpoint, arguments))
    names = {module: name for name, module in model.named_modules()}
    parts = [module for block in find_blocks(model) for module in (block.zeroth_bias, block.mlp_norm)]
    trained = [names[module] for module in parts if module is not None]
    model = add_lora(task, model, arguments, modules_to_save=trained)
    uplift_steps = num_steps // 3 if arguments.uplift_steps is None else arguments.uplift_steps
    return model, [LayerNormUplift(model, uplift_steps), ActivationMixing(model, arguments.mixing_steps)]


def format_table(task: Task, results: dict[str, dict[str, Any]]) -> str:
    """The results side by side, as a Markdown table."""
    rows = [["", *results], ["-" * 14, *("-" * 7 + ":" for _ in results)]]
    rows += [[label, *(form.format(result[key]) for result in results.values())] for label, key, form in task.rows]
    shares = [task.layer_shares(result) for result in results.values()]
    rows += [[label, *(f"{layers[label]:.2%}" for layers in shares)] for label in shares[0]]
    return "\n".join(
        f"| {name:14} | " + " | ".join(f"{value:>8}" for value in values) + " |" for name, *values in rows
    )


def run(task: Task, arguments: FinetuneArguments, data_arguments: Any, loop: LoopArguments) -> dict[str, Any]:
    """Finetune as the arguments say, and write the output folder.

    Returns:
        What `results.json` holds.
    """
    loop.check()
    arguments.check()
    loop.output_dir = loop.output_dir or "outputs/finetune_sparsity"
    output_dir = Path(loop.output_dir)
    arguments.vanilla_recipe = arguments.vanilla_recipe or task.vanilla_recipe
    settings = {**asdict(arguments), **asdict(data_arguments), **asdict(loop)}
    resume = loop.resume_from_checkpoint
    require(resume in (None, "latest"), "resume_from_checkpoint", f"{resume!r}: this job resumes with 'latest' only")
    check_model_fields(task.sparse_class.config_class, arguments.model)
    vanilla = None
    if arguments.model_name_or_path is None:
        require(
            data_arguments.dataset == task.embedded_dataset,
            "model_name_or_path",
            f"give a {task.model_noun} of {data_arguments.dataset} to finetune; one is trained here for the embedded "
            f"{task.embedded_dataset} only",
        )
        vanilla = parse_vanilla(task, arguments, output_dir / "vanilla", loop.seed)
    check_run_folder(output_dir, settings)
    data = task.load_data(data_arguments)
    if vanilla is None:
        model = load_pretrained(arguments.model_name_or_path, task.auto_class)
        processor = task.load_processor(arguments.model_name_or_path, model.config)
    else:
        model, processor = task.make_vanilla(vanilla[0], vanilla[1], data)
    check_checkpoint(task, model, processor, arguments, data)
    accelerator = make_accelerator(loop)
    prepared = task.prepare(model.config, processor, data, data_arguments, loop, accelerator)

    accelerator.wait_for_everyone()  # all have looked at the folder before one of them writes to it
    if accelerator.is_main_process:
        create_repository(loop)
        begin_run(output_dir, settings, ARTIFACTS)
    accelerator.init_trackers(output_dir.name, {k: v for k, v in settings.items() if isinstance(v, (int, float, str))})
    checkpoint = arguments.model_name_or_path
    if vanilla is not None:
        task.script.run(*vanilla, accelerator)
        checkpoint = str(output_dir / "vanilla" / "model")

    def evaluate(model: nn.Module) -> Any:
        return prepared.evaluate(model.to(accelerator.device))

    def save_merged(model: PeftModel, folder: Path) -> None:
        model.merge_and_unload().save_pretrained(folder, include_code=not loop.no_code)
        processor.save_pretrained(folder)

    def save_best(name: str, model: PeftModel, folder: Path) -> None:
        model.save_pretrained(folder)
        if loop.push_to_hub and loop.hub_strategy == "every_save" and name == "recipe":
            with tempfile.TemporaryDirectory() as merged:
                save_merged(copy.deepcopy(model), Path(merged))
                document_model(Path(merged), settings)
                push_folder(Path(merged), loop, "The best model so far", required=False)

    def finetune(name: str, model: PeftModel, parts: Sequence[RecipePart] = ()) -> TrainingResult:
        checkpoints = find_checkpoints(output_dir / name) if resume else []
        return train(
            accelerator,
            model,
            prepared.train_loader,
            loop,
            output_dir / name,
            compute_loss=prepared.compute_loss,
            evaluate=evaluate,
            score=task.score,
            save_model=partial(save_best, name),
            parts=parts,
            resume_from=checkpoints[-1] if checkpoints else None,
            description=name,
        )

    model = load_pretrained(checkpoint, task.auto_class)
    results = {"before": asdict(evaluate(model))}
    if arguments.baseline:
        seed_generators(loop.seed)
        result = finetune("lora", add_lora(task, model, arguments))
        results["lora"] = {**asdict(result.evaluation), "training_nonzero_share": result.training_nonzero_share}

    seed_generators(loop.seed)
    model, parts = make_sparse(task, checkpoint, arguments, count_steps(prepared.train_loader, loop))
    result = finetune("recipe", model, parts)
    if accelerator.is_main_process:
        with written_folder(output_dir / "adapter") as folder:
            result.model.save_pretrained(folder)
        with written_folder(output_dir / "merged") as folder:
            save_merged(result.model, folder)
    accelerator.wait_for_everyone()
    # What is measured is what is delivered: the merged model, read back.
    merged = load_pretrained(str(output_dir / "merged"), task.auto_class)
    results["recipe"] = {**asdict(evaluate(merged)), "training_nonzero_share": result.training_nonzero_share}
    if accelerator.is_main_process:
        shares = {name: list(task.layer_shares(result).values()) for name, result in results.items()}
        save_figure(plot_sparsity(shares, title="Finetuning for activation sparsity"), output_dir / "sparsity.png")
        results_file = {**results, "eval_split": data.eval_split, "seed": loop.seed}
        write_json(output_dir / "results.json", results_file)
        document_model(output_dir / "merged", settings, results_file, shares)
        base = {"model": base_fields(task, checkpoint, arguments)}
        document_model(output_dir / "adapter", {**settings, **base}, results_file, shares)
        if loop.push_to_hub:
            push_folder(output_dir / "merged", loop, "The model after the last step")
    accelerator.end_training() if loop.report_to != "none" else accelerator.wait_for_everyone()
    return results


def parse_vanilla(task: Task, arguments: FinetuneArguments, folder: Path, seed: int) -> tuple[Any, Any, LoopArguments]:
    """Arguments of the training of the vanilla model: to continue or keep what is in its folder, if it is the same."""
    script = task.script

    def parse(*given: str) -> tuple[Any, Any, LoopArguments]:
        return parse_arguments(
            (script.ModelArguments, task.arguments_class, LoopArguments),
            ["--recipe", arguments.vanilla_recipe, "--output_dir", str(folder), "--seed", str(seed), *given],
            script.__doc__,
            script.default_recipe,
        )

    resumed = parse("--resume_from_checkpoint", "latest")
    try:
        check_run_folder(folder, {name: value for part in resumed for name, value in asdict(part).items()})
    except UsageError:
        return parse("--overwrite")
    return resumed


@exit_on_usage_error
def main(args: list[str] | None = None) -> None:
    args = sys.argv[1:] if args is None else args
    task = choose_task(args)

    def default_recipe(given: dict[str, str]) -> str | None:
        return task.finetune_recipe if given.get("dataset", task.embedded_dataset) == task.embedded_dataset else None

    classes = (FinetuneArguments, task.arguments_class, LoopArguments)
    arguments, data_arguments, loop = parse_arguments(classes, args, __doc__, default_recipe)
    loop.command = command_line(__file__, args)
    results = run(task, arguments, data_arguments, loop)
    PartialState().print(f"\n{format_table(task, results)}\n\nwritten to {loop.output_dir}")


if __name__ == "__main__":
    main()

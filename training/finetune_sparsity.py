# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Finetune a checkpoint for activation sparsity, beside plain LoRA as the baseline, and show what it cost and gained.

    accelerate launch training/finetune_sparsity.py
    accelerate launch training/finetune_sparsity.py --recipe vit_base_imagenet_finetune --dataset FOLDER \\
        --model_name_or_path CHECKPOINT

With neither a checkpoint nor a data set it first trains a small vanilla ReLU ViT on the embedded digits. The recipe
adds zeroth biases and JSReLU to the checkpoint, trains LoRA on every matrix of attention and MLP, and lifts the scales
of the LayerNorms before the MLPs (arXiv 2309.03004).

The output folder has `results.json` (before, lora, recipe), `sparsity.png`, `adapter/` (all that the recipe changed),
`merged/` (ready for `AutoModelForImageClassification.from_pretrained`), and `vanilla/`, where one was trained.
"""

import copy
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForImageClassification, PreTrainedModel

from sparsight import SparseViTConfig, SparseViTForImageClassification
from sparsight.analysis.plots import plot_sparsity, save_figure
from sparsight.training import train_image_classification
from sparsight.training.arguments import (
    LoopArguments,
    argument,
    command_line,
    exit_on_usage_error,
    parse_arguments,
    require,
)
from sparsight.training.image_classification import (
    Evaluation,
    check_model_fields,
    evaluate_classifier,
    load_classifier,
    make_compute_loss,
)
from sparsight.training.image_data import (
    ImageArguments,
    LabelledImages,
    TrainingImages,
    load_images,
    make_eval_loader,
    make_train_loader,
)
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
from sparsight.training.sparsity import ActivationMixing, LayerNormUplift


# The matrices of attention and MLP in transformers' ViT, by the end of their names.
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2")
FAMILIES = ("vit", "sparse_vit")
# What a run writes into its folder and a new one replaces; `vanilla/` is kept.
ARTIFACTS = ("lora", "recipe", "adapter", "merged", "results.json", "sparsity.png")


@dataclass
class FinetuneArguments:
    """What to finetune, and how sparsity comes about."""

    recipe: str | None = argument(
        "A recipe by name, or a YAML file. Default: vit_digits_finetune on the embedded digits, else none."
    )
    model_name_or_path: str | None = argument(
        "A ViT or Sparse ViT classifier. Default: a small one trained on digits."
    )
    vanilla_recipe: str = argument("Recipe of the vanilla ViT to train where no checkpoint is given.", "vit_digits")
    baseline: bool = argument("Also finetune with plain LoRA, the paper's baseline.", True)
    lora_rank: int = argument("Rank of LoRA on every matrix of attention and MLP.", 192)
    lora_alpha: float | None = argument("LoRA's scale is alpha/rank. Default: the rank.")
    lora_dropout: float = argument("Dropout before LoRA.", 0.0)
    uplift_steps: int | None = argument(
        "Optimizer steps over which LayerNorm scales are lifted to 1; 0 lifts at once. Default: a third of all."
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


def default_recipe(given: dict[str, str]) -> str | None:
    """The recipe where the command line names none."""
    return "vit_digits_finetune" if given.get("dataset", "digits") == "digits" else None


def check_checkpoint(model: nn.Module, arguments: FinetuneArguments, data: LabelledImages) -> None:
    """
    Raises:
        UsageError: if the recipe or the data do not fit the checkpoint.
    """
    config, name = model.config, arguments.model_name_or_path or arguments.vanilla_recipe
    require(
        config.model_type in FAMILIES,
        "model_name_or_path",
        f"{name} is a {config.model_type}; the recipe is for {' and '.join(FAMILIES)}",
    )
    require(
        config.num_labels == len(data.class_names),
        "dataset",
        f"it has {len(data.class_names)} classes, but {name} has {config.num_labels}; give a checkpoint that was "
        "trained on it (training/train_image_classification.py trains a new head)",
    )
    for module_name, module in model.named_modules():
        if module_name.rpartition(".")[2] in LORA_TARGETS:
            shape, rank = tuple(module.weight.shape), arguments.lora_rank
            fits = rank <= min(shape)
            require(fits, "lora_rank", f"{rank} is more than {module_name} {shape} allows; give at most {min(shape)}")


def add_lora(model: PreTrainedModel, arguments: FinetuneArguments, modules_to_save: Sequence[str] = ()) -> PeftModel:
    """LoRA on every matrix of attention and MLP; the modules named in `modules_to_save` are trained in full."""
    return get_peft_model(
        model,
        LoraConfig(
            r=arguments.lora_rank,
            lora_alpha=arguments.lora_alpha or arguments.lora_rank,
            lora_dropout=arguments.lora_dropout,
            target_modules=list(LORA_TARGETS),
            modules_to_save=list(modules_to_save) or None,
        ),
    )


def base_fields(arguments: FinetuneArguments) -> dict[str, Any]:
    """The fields that the checkpoint is loaded with, to be finetuned or to carry the adapter."""
    return {"hidden_act": "jsrelu", "zeroth_bias": True, **arguments.model}


def make_sparse(
    checkpoint: str, arguments: FinetuneArguments, num_steps: int
) -> tuple[PeftModel, list[LayerNormUplift | ActivationMixing]]:
    """The checkpoint as the recipe finetunes it: zeroth biases, JSReLU, LoRA, and the parts to step."""
    model, _ = load_classifier(checkpoint, SparseViTForImageClassification, **base_fields(arguments))
    model = add_lora(model, arguments, modules_to_save=("zeroth_bias", "layernorm_after"))
    uplift_steps = num_steps // 3 if arguments.uplift_steps is None else arguments.uplift_steps
    return model, [LayerNormUplift(model, uplift_steps), ActivationMixing(model, arguments.mixing_steps)]


def format_table(results: dict[str, dict[str, Any]]) -> str:
    """The results side by side, as a Markdown table."""
    rows = [["", *results], ["-" * 14, *("-" * 7 + ":" for _ in results)]]
    for name, key, form in (
        ("accuracy@1", "accuracy", "{:.2%}"),
        ("accuracy@5", "accuracy_top5", "{:.2%}"),
        ("loss", "loss", "{:.4f}"),
        ("non-zero share", "nonzero_share", "{:.2%}"),
    ):
        rows.append([name, *(form.format(result[key]) for result in results.values())])
    layers = zip(*(result["nonzero_share_per_layer"] for result in results.values()), strict=True)
    rows += [[f"layer {index}", *(f"{share:.2%}" for share in shares)] for index, shares in enumerate(layers, start=1)]
    return "\n".join(
        f"| {name:14} | " + " | ".join(f"{value:>8}" for value in values) + " |" for name, *values in rows
    )


def run(arguments: FinetuneArguments, images: ImageArguments, loop: LoopArguments) -> dict[str, Any]:
    """Finetune as the arguments say, and write the output folder.

    Returns:
        What `results.json` holds.
    """
    loop.check()
    arguments.check()
    loop.output_dir = loop.output_dir or "outputs/finetune_sparsity"
    output_dir = Path(loop.output_dir)
    settings = {**asdict(arguments), **asdict(images), **asdict(loop)}
    resume = loop.resume_from_checkpoint
    require(resume in (None, "latest"), "resume_from_checkpoint", f"{resume!r}: this job resumes with 'latest' only")
    check_model_fields(SparseViTConfig, arguments.model)
    vanilla = None
    if arguments.model_name_or_path is None:
        require(
            images.dataset == "digits",
            "model_name_or_path",
            f"give a classifier of {images.dataset} to finetune; one is trained here for the embedded digits only",
        )
        vanilla = parse_vanilla(arguments, output_dir / "vanilla", loop.seed)
    check_run_folder(output_dir, settings)
    data = load_images(images)
    if vanilla is None:
        model, processor = load_classifier(arguments.model_name_or_path, AutoModelForImageClassification)
    else:
        model, processor = train_image_classification.make_model(vanilla[0], vanilla[1], data.class_names)
    check_checkpoint(model, arguments, data)
    accelerator = make_accelerator(loop)
    train_images = TrainingImages(data.train, model.config, processor, images, loop.seed)
    train_loader = make_train_loader(train_images, accelerator, loop, images.repeated_augmentation)
    eval_loader = make_eval_loader(data.eval, model.config, processor, accelerator, loop)
    compute_loss = make_compute_loss(loop, images, len(data.class_names), accelerator.num_processes)

    accelerator.wait_for_everyone()  # all have looked at the folder before one of them writes to it
    if accelerator.is_main_process:
        create_repository(loop)
        begin_run(
            output_dir, settings, artifacts=("lora", "recipe", "adapter", "merged", "results.json", "sparsity.png")
        )
    accelerator.init_trackers(output_dir.name, {k: v for k, v in settings.items() if isinstance(v, (int, float, str))})
    checkpoint = arguments.model_name_or_path
    if vanilla is not None:
        train_image_classification.run(*vanilla, accelerator)
        checkpoint = str(output_dir / "vanilla" / "model")

    def evaluate(model: nn.Module) -> Evaluation:
        return evaluate_classifier(accelerator, model.to(accelerator.device), eval_loader)

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
            train_loader,
            loop,
            output_dir / name,
            compute_loss=compute_loss,
            evaluate=evaluate,
            score=lambda evaluation: evaluation.accuracy,
            save_model=partial(save_best, name),
            parts=parts,
            resume_from=checkpoints[-1] if checkpoints else None,
            description=name,
        )

    model, _ = load_classifier(checkpoint, AutoModelForImageClassification)
    results = {"before": asdict(evaluate(model))}
    if arguments.baseline:
        seed_generators(loop.seed)
        result = finetune("lora", add_lora(model, arguments))
        results["lora"] = {**asdict(result.evaluation), "training_nonzero_share": result.training_nonzero_share}

    seed_generators(loop.seed)
    model, parts = make_sparse(checkpoint, arguments, num_steps=count_steps(train_loader, loop))
    result = finetune("recipe", model, parts)
    if accelerator.is_main_process:
        with written_folder(output_dir / "adapter") as folder:
            result.model.save_pretrained(folder)
        with written_folder(output_dir / "merged") as folder:
            save_merged(result.model, folder)
    accelerator.wait_for_everyone()
    # What is measured is what is delivered: the merged model, read back.
    merged, _ = load_classifier(str(output_dir / "merged"), AutoModelForImageClassification)
    results["recipe"] = {**asdict(evaluate(merged)), "training_nonzero_share": result.training_nonzero_share}
    if accelerator.is_main_process:
        shares = {name: result["nonzero_share_per_layer"] for name, result in results.items()}
        save_figure(plot_sparsity(shares, title="Finetuning for activation sparsity"), output_dir / "sparsity.png")
        results_file = {**results, "eval_split": data.eval_split, "seed": loop.seed}
        write_json(output_dir / "results.json", results_file)
        document_model(output_dir / "merged", settings, results_file, shares)
        document_model(output_dir / "adapter", {**settings, "model": base_fields(arguments)}, results_file, shares)
        if loop.push_to_hub:
            push_folder(output_dir / "merged", loop, "The model after the last step")
    accelerator.end_training() if loop.report_to != "none" else accelerator.wait_for_everyone()
    return results


def parse_vanilla(arguments: FinetuneArguments, folder: Path, seed: int) -> tuple[Any, ImageArguments, LoopArguments]:
    """Arguments of the training of the vanilla model, which continues, or keeps, what is in its folder already."""
    given = ["--recipe", arguments.vanilla_recipe, "--output_dir", str(folder), "--seed", str(seed)]
    given += ["--resume_from_checkpoint", "latest"] if find_checkpoints(folder) else ["--overwrite"]
    return parse_arguments(
        (train_image_classification.ModelArguments, ImageArguments, LoopArguments),
        given,
        train_image_classification.__doc__,
        train_image_classification.default_recipe,
    )


@exit_on_usage_error
def main(args: list[str] | None = None) -> None:
    arguments, images, loop = parse_arguments(
        (FinetuneArguments, ImageArguments, LoopArguments), args, __doc__, default_recipe
    )
    loop.command = command_line(__file__, args)
    results = run(arguments, images, loop)
    PartialState().print(f"\n{format_table(results)}\n\nwritten to {loop.output_dir}")


if __name__ == "__main__":
    main()

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Train an image classifier, from scratch or from a checkpoint with a new head.

    accelerate launch training/train_image_classification.py --model_type sparse_vit
    accelerate launch training/train_image_classification.py --recipe sparse_vit_base_imagenet --dataset FOLDER

A recipe sets any of the arguments below, and the fields of the model's config under `model`. The command line goes
before the recipe; a field of the config is given as `--model.<field> <value>`, as in `--model.hidden_size 128`.

The output folder has `model/` (after the last step) and `best/` (at the highest accuracy), each with its image
processor, its code and its model card, ready for `from_pretrained` and for the Hub (`--push_to_hub --hub_model_id
org/name` pushes), `results.json`, and `checkpoint-<step>/` to resume from.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from accelerate import Accelerator, PartialState
from torch import nn
from transformers import AutoModelForImageClassification, BaseImageProcessor, PreTrainedModel

import sparsight  # noqa: F401  (registers the families)
from sparsight.training.arguments import (
    LoopArguments,
    argument,
    command_line,
    exit_on_usage_error,
    parse_arguments,
)
from sparsight.training.checkpoints import make_config
from sparsight.training.image_classification import (
    evaluate_classifier,
    load_classifier,
    make_compute_loss,
)
from sparsight.training.image_data import (
    ImageArguments,
    TrainingImages,
    load_images,
    make_eval_loader,
    make_image_processor,
    make_train_loader,
)
from sparsight.training.loop import make_accelerator
from sparsight.training.run_folder import check_run_folder
from sparsight.training.seeding import seed_generators
from sparsight.training.sparsity import restrict_layer_norms
from sparsight.training.training_run import train_and_write


@dataclass
class ModelArguments:
    """What to train."""

    recipe: str | None = argument(
        "A recipe by name, or a YAML file. Default: <model_type>_digits on the embedded digits, else none."
    )
    model_type: str = argument("Family to train from scratch.", "sparse_vit")
    model_name_or_path: str | None = argument("Start from this checkpoint, with a new head, in place of scratch.")
    restrict_layer_norms: bool = argument(
        "Keep the scale of the LayerNorm before each MLP at 1 or more, and the zeroth bias within it (algorithm 1).",
        False,
    )
    model: dict[str, Any] = field(default_factory=dict, init=False)


def default_recipe(given: dict[str, str]) -> str | None:
    """The recipe where the command line names none."""
    if given.get("dataset", "digits") == "digits" and "model_name_or_path" not in given:
        return f"{given.get('model_type', 'sparse_vit')}_digits"
    return None


def make_model(
    arguments: ModelArguments, images: ImageArguments, class_names: list[str]
) -> tuple[PreTrainedModel, BaseImageProcessor]:
    """A fresh model of a family, or a checkpoint with a fresh head; and the image processor that goes with it.

    Raises:
        UsageError: if the family, a field of its config or the checkpoint is not there, or a value is nonsense.
    """
    labels = {"id2label": dict(enumerate(class_names)), "label2id": {name: i for i, name in enumerate(class_names)}}
    if arguments.model_name_or_path is not None:
        model, processor = load_classifier(
            arguments.model_name_or_path,
            AutoModelForImageClassification,
            ignore_mismatched_sizes=True,
            **labels,
            **arguments.model,
        )
        heads = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == len(class_names)]
        heads[-1].reset_parameters()
        return model, processor
    config = make_config(AutoModelForImageClassification, arguments.model_type, arguments.model, **labels)
    return AutoModelForImageClassification.from_config(config), make_image_processor(config, images)


def run(
    arguments: ModelArguments, images: ImageArguments, loop: LoopArguments, accelerator: Accelerator | None = None
) -> dict[str, Any]:
    """Train as the arguments say, and write the output folder.

    Returns:
        What `results.json` holds.
    """
    loop.check()
    loop.output_dir = loop.output_dir or f"outputs/{arguments.recipe or arguments.model_type}"
    settings = {**asdict(arguments), **asdict(images), **asdict(loop)}
    resume_from = check_run_folder(Path(loop.output_dir), settings)
    data = load_images(images)
    accelerator = accelerator or make_accelerator(loop)
    seed_generators(loop.seed)
    model, processor = make_model(arguments, images, data.class_names)
    parts = [restrict_layer_norms(model)] if arguments.restrict_layer_norms else []
    train_images = TrainingImages(data.train, model.config, processor, images, loop.seed)
    train_loader = make_train_loader(train_images, accelerator, loop, images.repeated_augmentation)
    eval_loader = make_eval_loader(data.eval, model.config, processor, accelerator, loop)
    compute_loss = make_compute_loss(loop, images, len(data.class_names), accelerator.num_processes)
    return train_and_write(
        accelerator,
        model,
        processor,
        train_loader,
        loop,
        settings,
        resume_from,
        compute_loss=compute_loss,
        evaluate=lambda model: evaluate_classifier(accelerator, model, eval_loader),
        eval_split=data.eval_split,
        metric="accuracy",
        higher_is_better=True,
        layer_shares=lambda results: results["nonzero_share_per_layer"],
        parts=parts,
        description=arguments.recipe or arguments.model_type,
    )


@exit_on_usage_error
def main(args: list[str] | None = None) -> None:
    arguments, images, loop = parse_arguments(
        (ModelArguments, ImageArguments, LoopArguments), args, __doc__, default_recipe
    )
    loop.command = command_line(__file__, args)
    results = run(arguments, images, loop)
    PartialState().print(
        f"{loop.output_dir}: accuracy {results['accuracy']:.2%} on {results['num_examples']} images of "
        f"{results['eval_split']}, loss {results['loss']:.4f}"
        + (f", non-zero share {results['nonzero_share']:.2%}" if results["nonzero_share"] is not None else "")
    )


if __name__ == "__main__":
    main()

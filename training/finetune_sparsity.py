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

The method adds zeroth biases and JSReLU to the checkpoint, trains LoRA on every matrix of attention and MLP, and lifts
the scales of the norms before the MLPs (arXiv 2309.03004).

The output folder has `results.json` (before, lora, method), `sparsity.png`, `adapter/` (all that the method changed),
`merged/` (ready for the Auto class's `from_pretrained`), and `vanilla/`, where one was trained.
"""

import sys
from collections.abc import Sequence
from typing import Any

from accelerate import PartialState
from transformers import AutoConfig

from sparsight.configuration.messages import nearest
from sparsight.hub_cards.tables import format_table, models_table
from sparsight.training.command_line.arguments import command_line, parse_arguments, peek
from sparsight.training.command_line.errors import UsageError, one_line_errors
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.observers import Observer
from sparsight.training.jobs.sparsity_finetuning import SPARSE_FORMS, FinetuneArguments, finetune
from sparsight.training.tasks import TASKS


DEFAULT_TASK = "image"


def choose_task(args: list[str]) -> str:
    """The task that a command line or its recipe names, else the one that the checkpoint is for, else images.

    Raises:
        UsageError: if there is no such task or recipe.
    """
    name, checkpoint = peek(args, "task", "model_name_or_path").values()
    if name is None and checkpoint is not None:
        try:
            model_type = AutoConfig.from_pretrained(checkpoint).model_type
        except (OSError, ValueError):  # loading the model says what is wrong
            model_type = None
        name = next((name for name, form in SPARSE_FORMS.items() if model_type in form.families), None)
    if name is not None and name not in SPARSE_FORMS:
        raise UsageError(f"--task: unknown {name!r}; {nearest(name, SPARSE_FORMS)}")
    return name or DEFAULT_TASK


def main(args: list[str] | None = None, observers: Sequence[Observer] = ()) -> dict[str, Any]:
    """Run the script with a command line, None for the process's own, and return what `results.json` holds.

    Args:
        observers: look on while the method trains the model.
    """
    args = sys.argv[1:] if args is None else args
    data_classes = [TASKS[name].arguments_class for name in SPARSE_FORMS]
    with one_line_errors(FinetuneArguments, LoopArguments, *data_classes):
        name = choose_task(args)
        task_class, form = TASKS[name], SPARSE_FORMS[name]

        def default_recipe(given: dict[str, Any]) -> str | None:
            embedded = task_class.embedded_dataset
            return form.recipe if given.get("dataset", embedded) == embedded else None

        classes = (FinetuneArguments, task_class.arguments_class, LoopArguments)
        arguments, data_arguments, loop = parse_arguments(classes, args, __doc__, default_recipe)
        loop.command = command_line(__file__, args)
        results = finetune(task_class, form, arguments, data_arguments, loop, observers)
    models = {name: results[name] for name in ("before", "lora", "method") if name in results}
    PartialState().print(f"\n{format_table(models_table([models]))}\n\nwritten to {loop.output_dir}")
    return results


if __name__ == "__main__":
    main()

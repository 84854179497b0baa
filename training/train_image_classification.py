# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Train an image classifier, from scratch or from a checkpoint with a new head.

    accelerate launch training/train_image_classification.py --model_type sparse_vit
    accelerate launch training/train_image_classification.py --recipe sparse_vit_base_imagenet --dataset FOLDER

A recipe sets any of the arguments below, and the fields of the model's config under `model`. What the command line
says overrides the recipe; a field of the config is given as `--model.<field> <value>`, as in
`--model.hidden_size 128`.

The output folder has `model/` (after the last step) and `best/` (at the highest accuracy), each with its image
processor, its code and its model card, ready for `from_pretrained` and for the Hub (`--push_to_hub --hub_model_id
org/name` pushes), `results.json`, and `checkpoint-<step>/` to resume from.
"""

import sys
from collections.abc import Sequence
from typing import Any

from sparsight.training.command_line.arguments import command_line
from sparsight.training.engine.observers import Observer
from sparsight.training.jobs.task_training import train_from_command_line
from sparsight.training.tasks.classification import ImageClassification


def main(args: list[str] | None = None, observers: Sequence[Observer] = ()) -> dict[str, Any]:
    """Run the script with a command line, None for the process's own, and return what `results.json` holds.

    Args:
        observers: look on while the model is trained.
    """
    args = sys.argv[1:] if args is None else args
    return train_from_command_line(ImageClassification, args, __doc__, command_line(__file__, args), observers)


if __name__ == "__main__":
    main()

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Pretrain a T5 by span corruption, from scratch or from a checkpoint.

    accelerate launch training/pretrain_t5.py
    accelerate launch training/pretrain_t5.py --recipe sparse_t5_base_c4
    accelerate launch training/pretrain_t5.py --dataset FOLDER --model.d_model 256 --max_steps 10000

A recipe sets any of the arguments below, and the fields of the model's config under `model`. What the command line
says overrides the recipe; a field of the config is given as `--model.<field> <value>`, as in `--model.d_model 128`.

The output folder has `model/` (after the last step) and `best/` (at the lowest loss), each with its tokenizer and
ready for `from_pretrained`, `results.json`, and `checkpoint-<step>/` to resume from.
"""

import sys
from collections.abc import Sequence
from typing import Any

from sparsight.training.command_line.arguments import command_line
from sparsight.training.engine.observers import Observer
from sparsight.training.jobs.task_training import train_from_command_line
from sparsight.training.tasks.denoising import TextDenoising


def main(args: list[str] | None = None, observers: Sequence[Observer] = ()) -> dict[str, Any]:
    """Run the script with a command line, None for the process's own, and return what `results.json` holds.

    Args:
        observers: look on while the model is trained.
    """
    args = sys.argv[1:] if args is None else args
    return train_from_command_line(TextDenoising, args, __doc__, command_line(__file__, args), observers)


if __name__ == "__main__":
    main()

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Train a model on any task of `training/tasks`, from scratch or from a checkpoint.

    accelerate launch training/train.py --task modular_addition
    accelerate launch training/train.py --recipe modular_addition --model.n_embd 128

A recipe sets any of the arguments below, and the fields of the model's config under `model`. What the command line
says overrides the recipe; a field of the config is given as `--model.<field> <value>`.

The output folder has `model/` (after the last step), `best/`, `results.json`, and `checkpoint-<step>/` to resume from.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparsight.configuration.messages import nearest
from sparsight.training.command_line.arguments import argument, command_line, peek
from sparsight.training.command_line.errors import UsageError, one_line_errors
from sparsight.training.engine.observers import Observer
from sparsight.training.jobs.task_training import train_from_command_line
from sparsight.training.tasks import TASKS


@dataclass
class TaskArguments:
    """What to train on."""

    task: str | None = argument(f"Task: {', '.join(TASKS)}. Default: what the recipe says.")


def choose_task(args: list[str]) -> str:
    """The task that a command line or its recipe names.

    Raises:
        UsageError: if there is none, or no such task or recipe.
    """
    name = peek(args, "task")["task"]
    if name is None and {"-h", "--help"} & set(args):
        return next(iter(TASKS))
    if name is None:
        raise UsageError(f"--task: missing; give one of {', '.join(TASKS)}, or a --recipe that names it")
    if name not in TASKS:
        raise UsageError(f"--task: unknown {name!r}; {nearest(name, TASKS)}")
    return name


def main(args: list[str] | None = None, observers: Sequence[Observer] = ()) -> dict[str, Any]:
    """Run the script with a command line, None for the process's own, and return what `results.json` holds.

    Args:
        observers: look on while the model is trained.
    """
    args = sys.argv[1:] if args is None else args
    with one_line_errors(TaskArguments):
        task_class = TASKS[choose_task(args)]
    command = command_line(__file__, args)
    return train_from_command_line(task_class, args, __doc__, command, observers, more_arguments=(TaskArguments,))


if __name__ == "__main__":
    main()

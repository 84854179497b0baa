# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Training of one model of a task, from scratch or from a checkpoint."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from accelerate import PartialState

from sparsight.hub_cards.tables import summary_line
from sparsight.training.command_line.arguments import Settings, parse_arguments
from sparsight.training.command_line.errors import one_line_errors
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.models import ModelArguments
from sparsight.training.engine.observers import Observer
from sparsight.training.engine.run import Run, run_task
from sparsight.training.engine.task import Task
from sparsight.training.methods import MethodArguments, make_methods


def train_from_command_line(
    task_class: type[Task],
    args: list[str],
    description: str,
    command: str,
    observers: Sequence[Observer] = (),
    more_arguments: Sequence[type] = (),
) -> dict[str, Any]:
    """What a script does: parse a command line, train, and print where the model is and how good it is.

    An error that the input is to blame for ends the process with one line and exit code 2.

    Args:
        description: at the head of `--help`.
        command: what a model card shows.
        observers: look on while the model is trained.
        more_arguments: dataclasses of arguments that the script itself reads.

    Returns:
        What `results.json` holds.
    """
    classes = (*more_arguments, ModelArguments, MethodArguments, task_class.arguments_class, LoopArguments)
    with one_line_errors(*classes):
        *more, start, method_arguments, data_arguments, loop = parse_arguments(
            classes, args, description, task_class.default_recipe
        )
        loop.command = command
        start.model_type = start.model_type or task_class.default_model_type
        loop.output_dir = loop.output_dir or f"outputs/{start.recipe or start.model_type}"
        results = train_task(task_class, start, method_arguments, data_arguments, loop, observers, more)
    PartialState().print(f"{loop.output_dir}: {summary_line(results)}")
    return results


def train_task(
    task_class: type[Task],
    start: ModelArguments,
    method_arguments: MethodArguments,
    data_arguments: Any,
    loop: LoopArguments,
    observers: Sequence[Observer] = (),
    more: Sequence[Any] = (),
) -> dict[str, Any]:
    """Train as the arguments say, and write the output folder.

    Args:
        start: with its `model_type` set.
        loop: with its `output_dir` set.
        more: dataclasses to be recorded with the settings.

    Returns:
        What `results.json` holds.

    Raises:
        ValueError: that begins with the argument's name, if arguments and data do not fit.
    """
    run = Run(loop, Settings(*more, start, method_arguments, data_arguments, loop))
    task = task_class(data_arguments, loop)
    return run_task(run, task, start, partial(make_methods, arguments=method_arguments), observers)

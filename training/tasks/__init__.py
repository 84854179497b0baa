# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What can be trained, a file a task: what a batch is, its loss, its evaluation and its score."""

from sparsight.training.engine.task import Task
from sparsight.training.tasks.classification import ImageClassification
from sparsight.training.tasks.denoising import TextDenoising
from sparsight.training.tasks.modular_addition import ModularAddition


# By the name that `--task` takes. A new task is entered here.
TASKS: dict[str, type[Task]] = {
    "image": ImageClassification,
    "t5": TextDenoising,
    "modular_addition": ModularAddition,
}

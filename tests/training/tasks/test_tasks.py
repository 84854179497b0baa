# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What holds for all tasks, and what each says of itself."""

from dataclasses import fields

import pytest

from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.task import Task
from sparsight.training.tasks import TASKS
from sparsight.training.tasks.classification import ImageClassification
from sparsight.training.tasks.denoising import TextDenoising
from sparsight.training.tasks.modular_addition import AdditionArguments, ModularAddition


def test_tasks_by_the_name_of_the_flag():
    assert {"image": ImageClassification, "t5": TextDenoising, "modular_addition": ModularAddition} == TASKS


@pytest.mark.parametrize("task", TASKS.values())
def test_every_task_says_all_that_the_engine_asks_for(task):
    declared = {name for name in Task.__annotations__ if not hasattr(Task, name)}
    by_instances = {"accelerator", "train_loader", "eval_loader"}
    assert all(hasattr(task, name) for name in declared - by_instances)
    assert "num_examples" in task.sums
    assert task.metric in task.summarize(task, dict.fromkeys(task.sums, 1.0))
    assert {own.name for own in fields(task.source_class)} <= {own.name for own in fields(task.arguments_class)}


@pytest.mark.parametrize(
    ("task", "families"),
    [
        (ImageClassification, ["crate", "sparse_vit"]),
        (TextDenoising, ["sparse_t5"]),
        (ModularAddition, ["gpt2", "llama"]),
    ],
)
def test_families(task, families):
    assert task.families() == families
    assert task.default_model_type in families


@pytest.mark.parametrize(
    ("task", "given", "recipe"),
    [
        (ImageClassification, {}, "sparse_vit_digits"),
        (ImageClassification, {"dataset": "digits", "batch_size": 8}, "sparse_vit_digits"),
        (ImageClassification, {"model_type": "crate"}, "crate_digits"),
        (ImageClassification, {"dataset": "folder"}, None),
        (ImageClassification, {"dataset": "folder", "model_type": "crate"}, None),
        (ImageClassification, {"model_name_or_path": "folder"}, None),
        (TextDenoising, {}, "sparse_t5_stdlib"),
        (TextDenoising, {"dataset": "a.txt"}, None),
        (ModularAddition, {}, "modular_addition"),
        (ModularAddition, {"modulus": 7}, "modular_addition"),
        (ModularAddition, {"model_type": "llama"}, None),
        (ModularAddition, {"model_name_or_path": "folder"}, None),
    ],
)
def test_default_recipe(task, given, recipe):
    assert task.default_recipe(given) == recipe


def test_other_arguments_on_the_same_data():
    task = ModularAddition(AdditionArguments(modulus=5), LoopArguments(seed=3))
    other = task.with_arguments(AdditionArguments(modulus=5), LoopArguments(seed=4, label_smoothing=0.1))
    assert type(other) is ModularAddition
    assert other.data is task.data
    assert (other.loop.seed, task.loop.seed) == (4, 3)

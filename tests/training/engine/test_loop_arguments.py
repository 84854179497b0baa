# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import pytest

from sparsight.training.engine.loop_arguments import LoopArguments


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_epochs": 0.0}, "num_epochs: 0 trains nothing; give a positive number, or --max_steps"),
        (
            {"gradient_accumulation_steps": 3},
            "batch_size: 128 does not divide into --gradient_accumulation_steps 3; give a multiple",
        ),
        ({"push_to_hub": True}, "hub_model_id: missing; give the repository to push to, org/name"),
        ({"hub_model_id": "a/b/c"}, "hub_model_id: "),
        ({"hub_model_id": "org/na me"}, "hub_model_id: "),
        ({"push_to_hub": True, "hub_model_id": "-name"}, "hub_model_id: "),
    ],
)
def test_arguments_that_contradict_each_other(fields, message):
    with pytest.raises(ValueError, match=r"^\w+: ") as error:
        LoopArguments(**fields).check()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_epochs": 0.0, "max_steps": 1},
        {"batch_size": 12, "gradient_accumulation_steps": 3},
        {"push_to_hub": True, "hub_model_id": "org/name"},
        {"hub_model_id": "name"},
    ],
)
def test_arguments_that_go_together(fields):
    LoopArguments(**fields).check()


def test_micro_batches():
    assert LoopArguments(batch_size=12, gradient_accumulation_steps=3).micro_batch_size == 4

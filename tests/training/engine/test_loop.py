# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The training loop, followed by hand on a task in miniature."""

import copy
import random

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch.nn import functional as F

from script_testing import StopAt
from sparsight.training.engine.checkpoints import checkpoint_path, find_checkpoints
from sparsight.training.engine.loop import NonFiniteLoss
from sparsight.training.engine.observers import Observer
from toy_testing import NUM_EXAMPLES, ToyModel, toy_data, train_toy


class Recorder(Observer):
    """What a function makes of the training after each step."""

    def __init__(self, record):
        self.record = record
        self.records = []

    def after_step(self, training):
        self.records.append(self.record(training))


class Counter:
    """A method that counts its steps."""

    def __init__(self):
        self.count = 0

    def step(self):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state_dict):
        self.count = state_dict["count"]


def weights(model) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()


# --- a step ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.5, 2.0, 0.0])
def test_a_step_with_a_clipped_gradient_by_hand(tmp_path, share):
    """All examples in one step; the norm is clipped to a share of what it is, to none where the share is 0."""
    model = ToyModel()
    before = weights(model)
    inputs, targets = toy_data()
    F.mse_loss(model(inputs), targets).backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad()
    norm = gradient.norm().item()
    train_toy(tmp_path, model, batch_size=NUM_EXAMPLES, max_steps=1, max_grad_norm=share * norm)
    # Nesterov's momentum of 0.9 makes 1.9 gradients of the first.
    expected = before - 0.01 * 1.9 * gradient * (0.5 if share == 0.5 else 1)
    torch.testing.assert_close(weights(model), expected, rtol=1e-5, atol=1e-6)


def test_micro_batches_make_the_gradient_of_the_whole_batch(tmp_path):
    """Over several steps, also where the gradient of the whole is clipped."""
    for name, micro_batches in (("whole", 1), ("parts", 4)):
        model = ToyModel()
        _, result = train_toy(
            tmp_path / name, model, gradient_accumulation_steps=micro_batches, max_grad_norm=0.5, max_steps=7
        )
        if name == "whole":
            expected, loss = weights(model), result.evaluation["loss"]
    torch.testing.assert_close(weights(model), expected, rtol=1e-5, atol=1e-6)
    assert result.evaluation["loss"] == pytest.approx(loss, rel=1e-5)


def test_the_loss_of_a_step_is_the_mean_of_its_micro_batches(tmp_path):
    losses = []

    def keep(loss, number):
        losses.append(loss.item())
        return loss

    recorder = Recorder(lambda training: training.loss.item())
    train_toy(tmp_path, ToyModel(), [recorder], on_loss=keep, gradient_accumulation_steps=2, max_steps=4)
    assert recorder.records == pytest.approx([sum(losses[i : i + 2]) / 2 for i in range(0, 8, 2)])


def draws_of(tmp_path, name, **arguments):
    """What each micro-batch draws from the generators of torch, NumPy and Python."""
    draws = []

    def draw(loss, number):
        draws.append((torch.rand(()).item(), np.random.rand(), random.random()))
        return loss

    train_toy(tmp_path / name, ToyModel(dropout=0.5), on_loss=draw, gradient_accumulation_steps=2, **arguments)
    return draws


def test_each_micro_batch_draws_anew_and_the_same_in_every_run(tmp_path):
    draws = draws_of(tmp_path, "a", max_steps=6)
    for of_generator in zip(*draws, strict=True):
        assert len(set(of_generator)) == 12
    torch.rand(7)  # what was drawn before does not count
    assert draws_of(tmp_path, "b", max_steps=6) == draws
    assert not set(draws_of(tmp_path, "c", max_steps=6, seed=1)) & set(draws)
    checkpoint = checkpoint_path(tmp_path / "a", 6)
    longer = draws_of(tmp_path, "d", max_steps=8, resume_from=checkpoint)
    assert longer == draws_of(tmp_path, "e", max_steps=8)[12:]


# --- the schedule ----------------------------------------------------------------------------------------------------


def test_the_scheduler_steps_with_the_optimizer(tmp_path):
    recorder = Recorder(lambda training: training.optimizer.param_groups[0]["lr"])
    train_toy(tmp_path, ToyModel(), [recorder], lr_scheduler="linear", warmup_steps=2, max_steps=6)
    # The rate that the next step will have.
    assert recorder.records == pytest.approx([0.01 * share for share in (1 / 2, 1, 3 / 4, 2 / 4, 1 / 4, 0)])


def test_a_skipped_step_leaves_the_schedule_and_the_methods(tmp_path, monkeypatch):
    """float16 skips one whose gradient overflowed."""
    recorder, method = Recorder(lambda training: training.optimizer.param_groups[0]["lr"]), Counter()
    skipped = iter([False, True, False, False])
    monkeypatch.setattr(Accelerator, "optimizer_step_was_skipped", property(lambda self: next(skipped)))
    train_toy(tmp_path, ToyModel(), [recorder], [method], lr_scheduler="linear", max_steps=4)
    assert recorder.records == pytest.approx([0.01 * share for share in (3 / 4, 3 / 4, 2 / 4, 1 / 4)])
    assert method.count == 3


# --- a loss that is not finite ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_the_first_bad_step_is_the_one_reported(tmp_path, value):
    """However many follow before the loop looks."""
    model = ToyModel()
    with pytest.raises(NonFiniteLoss, match=r"^learning_rate: the loss is not finite at step 3; lower it \(there was"):
        train_toy(
            tmp_path,
            model,
            on_loss=lambda loss, number: loss * (value if number >= 3 else 1),
            logging_steps=5,
            max_steps=20,
            eval_epochs=9,
        )
    assert not find_checkpoints(tmp_path)


def test_it_names_the_last_good_checkpoint(tmp_path):
    with pytest.raises(NonFiniteLoss, match=rf"at step 8; lower it \(the last good checkpoint is {tmp_path}/check.*6"):
        train_toy(tmp_path, ToyModel(), on_loss=lambda loss, number: loss * (float("nan") if number == 8 else 1))
    assert [path.name for path in find_checkpoints(tmp_path)] == ["checkpoint-6"]


def test_an_evaluation_that_is_not_finite_leaves_no_checkpoint(tmp_path):
    """The last step may have broken the weights."""
    with pytest.raises(NonFiniteLoss, match="not finite at step 6"):
        train_toy(tmp_path, ToyModel(), scores=[1.0, float("nan")], max_steps=9)
    assert [path.name for path in find_checkpoints(tmp_path)] == ["checkpoint-3"]


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_checkpoints_come_with_evaluations_and_the_newest_are_kept(tmp_path):
    train_toy(tmp_path, ToyModel(), max_steps=11, eval_epochs=1, keep_checkpoints=3)
    assert [path.name for path in find_checkpoints(tmp_path)] == [f"checkpoint-{step}" for step in (6, 9, 11)]


def test_interrupted_between_checkpoints_and_resumed(tmp_path):
    """Optimizer, schedule, methods and order go on where they were, to the bit."""
    options = {"max_steps": 11, "lr_scheduler": "cosine", "optimizer": "adamw", "max_grad_norm": 0.5}
    whole, method = ToyModel(dropout=0.3), Counter()
    _, expected = train_toy(tmp_path / "whole", whole, methods=[method], **options)
    with pytest.raises(KeyboardInterrupt):
        train_toy(tmp_path / "run", ToyModel(dropout=0.3), [StopAt(8)], [Counter()], **options)
    (checkpoint,) = find_checkpoints(tmp_path / "run")
    assert checkpoint.name == "checkpoint-6"
    model, resumed = ToyModel(dropout=0.3), Counter()
    task, result = train_toy(tmp_path / "run", model, methods=[resumed], resume_from=checkpoint, **options)
    assert len(task.batches) == 5
    assert torch.equal(weights(model), weights(whole))
    assert result.evaluation == expected.evaluation
    assert resumed.count == method.count == 11


def test_a_training_that_is_over_is_evaluated_and_not_trained(tmp_path):
    model = ToyModel()
    _, first = train_toy(tmp_path, model, max_steps=3)
    again = copy.deepcopy(model)
    task, result = train_toy(tmp_path, again, max_steps=3, resume_from=checkpoint_path(tmp_path, 3))
    assert not task.batches
    assert result.evaluation == first.evaluation
    assert torch.equal(weights(again), weights(model))


def test_a_checkpoint_of_an_earlier_version_is_refused(tmp_path):
    train_toy(tmp_path, ToyModel(), max_steps=3)
    path = checkpoint_path(tmp_path, 3) / "training_state.pt"
    states = torch.load(path, weights_only=True)
    del states["step"]
    torch.save(states, path)
    with pytest.raises(ValueError, match=r"^resume_from_checkpoint: .* is of an earlier version; .*--overwrite"):
        train_toy(tmp_path, ToyModel(), max_steps=6, resume_from=path.parent)

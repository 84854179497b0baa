# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import nn

from helpers import randomize, snapshot
from sparsight import SparseT5Config, SparseT5ForConditionalGeneration
from sparsight.training.engine.checkpoints import (
    STATE_FILE,
    WEIGHTS_FILE,
    checkpoint_path,
    find_checkpoints,
    load_checkpoint,
    save_checkpoint,
)


STATES = {
    "step": 3,
    "optimizer": {"state": {0: {"exp_avg": torch.arange(3.0)}}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]},
    "observer_BestModel": {"score": -1.5, "name": "best"},
}


@pytest.fixture
def checkpoint(accelerator, tmp_path):
    """Of a linear layer of ones."""
    model = nn.Linear(4, 3)
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    path = checkpoint_path(tmp_path, 3)
    save_checkpoint(path, accelerator, model, STATES)
    return path


def test_what_is_saved_comes_back(checkpoint, accelerator):
    model = nn.Linear(4, 3)
    states = load_checkpoint(checkpoint, accelerator, model)
    assert all((parameter == 1).all() for parameter in model.parameters())
    assert states.pop("scaler") is None
    torch.testing.assert_close(states.pop("optimizer"), STATES["optimizer"], rtol=0, atol=0)
    assert states == {name: STATES[name] for name in ("step", "observer_BestModel")}
    assert sorted(path.name for path in checkpoint.iterdir()) == [STATE_FILE, WEIGHTS_FILE]
    assert sorted(load_file(checkpoint / WEIGHTS_FILE)) == ["bias", "weight"]
    assert torch.load(checkpoint / STATE_FILE, weights_only=True)["step"] == 3


def test_tied_weights_stay_tied(tiny_t5, accelerator, tmp_path):
    models = [SparseT5ForConditionalGeneration(SparseT5Config(**tiny_t5)) for _ in range(2)]
    randomize(models[0])
    save_checkpoint(tmp_path / "checkpoint-1", accelerator, models[0], {"step": 1})
    load_checkpoint(tmp_path / "checkpoint-1", accelerator, models[1])
    for name, parameter in models[0].named_parameters():
        torch.testing.assert_close(models[1].get_parameter(name), parameter, rtol=0, atol=0)
    assert models[1].shared.weight is models[1].encoder.embed_tokens.weight


class Scaler:
    """Stands for the loss scaler of float16, which needs an accelerator."""

    def __init__(self, scale: float):
        self.scale = scale

    def state_dict(self):
        return {"scale": self.scale}

    def load_state_dict(self, state_dict):
        self.scale = state_dict["scale"]


def test_the_scale_of_the_loss_comes_back(accelerator, checkpoint, tmp_path):
    accelerator.scaler = Scaler(512.0)
    save_checkpoint(tmp_path / "checkpoint-4", accelerator, nn.Linear(4, 3), STATES)
    accelerator.scaler = Scaler(1.0)
    load_checkpoint(tmp_path / "checkpoint-4", accelerator, nn.Linear(4, 3))
    assert accelerator.scaler.scale == 512.0
    # One of a run without stays as it is.
    load_checkpoint(checkpoint, accelerator, nn.Linear(4, 3))
    assert accelerator.scaler.scale == 512.0


def test_checkpoints_are_found_by_their_step(tmp_path):
    for name in ("checkpoint-10", "checkpoint-9", "checkpoint-100", ".checkpoint-11.tmp", "checkpoint-x", "best"):
        (tmp_path / name).mkdir()
    assert find_checkpoints(tmp_path) == [checkpoint_path(tmp_path, step) for step in (9, 10, 100)]
    assert [path.name for path in find_checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-10", "checkpoint-100"]
    assert find_checkpoints(tmp_path / "missing") == []


def test_a_failure_leaves_the_old_one_and_nothing_else(checkpoint, accelerator):
    before = snapshot(checkpoint.parent)
    with pytest.raises((AttributeError, TypeError)):
        save_checkpoint(checkpoint, accelerator, nn.Linear(4, 3), {"step": 4, "bad": (i for i in range(3))})
    assert snapshot(checkpoint.parent) == before


def refuse(path, accelerator: Accelerator, model: nn.Module | None = None) -> str:
    with pytest.raises(ValueError, match=r"^resume_from_checkpoint: ") as error:
        load_checkpoint(path, accelerator, model or nn.Linear(4, 3))
    message = str(error.value)
    assert message.startswith(f"resume_from_checkpoint: {path} is no checkpoint of this run (")
    assert message.endswith("); give another one")
    assert "\n" not in message
    return message


def test_no_checkpoint(tmp_path, accelerator):
    assert "No such file or directory" in refuse(tmp_path / "checkpoint-3", accelerator)


@pytest.mark.parametrize("model", [nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 3))], ids=["shape", "names"])
def test_checkpoint_of_another_model(checkpoint, accelerator, model):
    assert "Error(s) in loading state_dict" in refuse(checkpoint, accelerator, model)


@pytest.mark.parametrize("name", [WEIGHTS_FILE, STATE_FILE])
@pytest.mark.parametrize("kept", ["none", "half", "most", "other"])
def test_broken_files(checkpoint, accelerator, name, kept):
    content = (checkpoint / name).read_bytes()
    broken = {"none": b"", "half": content[: len(content) // 2], "most": content[:-3], "other": b"something else" * 9}
    (checkpoint / name).write_bytes(broken[kept])
    refuse(checkpoint, accelerator)

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What an observer is told and when, what resumes with a training, and the observers that there are."""

import contextlib
import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from script_testing import Runs, StopAt, reset_accelerator
from sparsight.analysis.sparsity import make_meter
from sparsight.training.engine.checkpoints import checkpoint_path, find_checkpoints
from sparsight.training.engine.observers import BestModel, Measurement, Observer, SparsityObserver, Training
from toy_testing import ToyModel, train_toy


class Diary(Observer):
    """Writes down every call."""

    def __init__(self, entries: list):
        self.entries = entries

    def begin(self, training):
        assert isinstance(training, Training)
        assert not isinstance(training.model, nn.parallel.DistributedDataParallel)
        self.entries.append(("begin", training.step, training.num_steps))

    @contextlib.contextmanager
    def watch_forward(self):
        self.entries.append("forward")
        yield
        self.entries.append("end of forward")

    def after_step(self, training):
        self.entries.append(("step", training.step, training.model.training))

    def report(self, training):
        self.entries.append(("report", training.step))
        return {"seen": 1.0}

    def after_evaluation(self, training, evaluation):
        there = checkpoint_path(training.output_dir, training.step).exists()
        self.entries.append(("evaluation", training.step, evaluation["num_examples"], there))

    def results(self):
        self.entries.append("results")
        return {"entries": len(self.entries)}

    def state_dict(self):
        self.entries.append("save")
        return {"entries": len(self.entries)}

    def load_state_dict(self, state_dict):
        self.entries.append(("load", state_dict))


class Losses(Observer):
    """The loss of each step, in a list that goes with the checkpoints."""

    def __init__(self):
        self.losses = []

    def after_step(self, training):
        self.losses.append(training.loss.item())

    def results(self):
        return {"losses": self.losses}

    def state_dict(self):
        return {"losses": self.losses}

    def load_state_dict(self, state_dict):
        self.losses = state_dict["losses"]


class Method:
    """Acts on the weights after a step, and writes that down."""

    def __init__(self, entries: list):
        self.entries = entries

    def step(self):
        self.entries.append("method")

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


# --- the calls -------------------------------------------------------------------------------------------------------


def test_the_calls_an_observer_gets(tmp_path):
    """Two micro-batches a step, a report every second step, an evaluation every third and at the end."""
    entries = []
    options = {"gradient_accumulation_steps": 2, "logging_steps": 2, "max_steps": 4}
    _, result = train_toy(tmp_path, ToyModel(), [Diary(entries)], [Method(entries)], **options)
    forward = ["forward", "end of forward"] * 2
    assert entries == [
        ("begin", 0, 4),
        *forward, "method", ("step", 1, True),
        *forward, "method", ("step", 2, True), ("report", 2),
        *forward, "method", ("step", 3, True), ("report", 3), ("evaluation", 3, 24, False), "save",
        *forward, "method", ("step", 4, True), ("report", 4), ("evaluation", 4, 24, False), "save",
        "results",
    ]  # fmt: skip
    assert result.observed == {"entries": len(entries)}


def test_an_observer_begins_before_it_gets_its_state_back(tmp_path):
    train_toy(tmp_path, ToyModel(), [Diary([])], max_steps=3)
    entries = []
    train_toy(tmp_path, ToyModel(), [Diary(entries)], max_steps=4, resume_from=checkpoint_path(tmp_path, 3))
    state = torch.load(checkpoint_path(tmp_path, 4) / "training_state.pt", weights_only=True)["observer_Diary"]
    assert entries[0] == ("begin", 0, 4)
    assert entries[1][0] == "load"
    assert entries[2] == "forward"
    assert state == {"entries": entries.index("save") + 1}


def test_observers_change_nothing(tmp_path):
    plain, watched = ToyModel(dropout=0.3), ToyModel(dropout=0.3)
    train_toy(tmp_path / "plain", plain, max_steps=7)
    train_toy(tmp_path / "watched", watched, [Diary([]), Losses()], max_steps=7)
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, watched.get_parameter(name)), name


def test_two_observers_of_a_name_are_refused(tmp_path):
    def measure(model):
        return {}

    with pytest.raises(ValueError, match=r"two observers share a name, .*: Losses, norms, norms"):
        train_toy(tmp_path, ToyModel(), [Losses(), Measurement("norms", measure), Measurement("norms", measure)])
    assert not list(tmp_path.iterdir())
    train_toy(tmp_path, ToyModel(), [Measurement("a", measure), Measurement("b", measure)], max_steps=1)


# --- state that resumes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("runs", "eval_epochs"), [("images", 1), ("addition", 2)], indirect=["runs"])
def test_interrupted_and_resumed_a_script_has_each_step_once(runs, eval_epochs):
    options = ("--max_steps", "12", "--eval_epochs", eval_epochs)
    whole = runs("whole", *options, observers=[Losses()])
    assert len(whole["losses"]) == 12
    with pytest.raises(KeyboardInterrupt):
        runs("run", *options, observers=[Losses(), StopAt(7)])
    reset_accelerator()
    (checkpoint,) = find_checkpoints(runs.folder / "run")
    assert checkpoint.name == "checkpoint-4"  # three steps of the list are to be forgotten
    resumed = runs("run", *options, "--resume_from_checkpoint", "latest", observers=[Losses()])
    assert resumed == whole
    runs.assert_same_weights("run", "whole")


def test_resumed_with_a_new_observer_starts_it_afresh(tmp_path):
    """And without one that was there, goes on."""
    train_toy(tmp_path, ToyModel(), [Losses(), Diary([])], max_steps=6)
    entries, new = [], Measurement("new", lambda model: {"one": 1.0})
    options = {"max_steps": 8, "resume_from": checkpoint_path(tmp_path, 6)}
    _, result = train_toy(tmp_path, ToyModel(), [new, Losses()], **options)
    assert result.observed["new"] == [{"step": 8, "one": 1.0}]
    assert len(result.observed["losses"]) == 8
    assert not entries


# --- Measurement -----------------------------------------------------------------------------------------------------


def norms(model: nn.Module) -> dict[str, float]:
    assert not model.training
    assert not torch.is_grad_enabled()
    return {"head": model.head.weight.norm().item()}


def test_a_measurement_has_an_entry_an_evaluation(tmp_path):
    model = ToyModel()
    start = model.head.weight.norm().item()
    _, result = train_toy(tmp_path / "whole", model, [Measurement("norms", norms)], max_steps=7)
    history = result.observed["norms"]
    assert [entry["step"] for entry in history] == [3, 6, 7]
    assert history[-1]["head"] == model.head.weight.norm().item()
    assert history[0]["head"] != start
    with pytest.raises(KeyboardInterrupt):
        train_toy(tmp_path / "run", ToyModel(), [Measurement("norms", norms), StopAt(5)], max_steps=7)
    options = {"max_steps": 7, "resume_from": checkpoint_path(tmp_path / "run", 3)}
    _, result = train_toy(tmp_path / "run", ToyModel(), [Measurement("norms", norms)], **options)
    assert result.observed["norms"] == history


# --- BestModel -------------------------------------------------------------------------------------------------------


def save_weights(model: nn.Module, folder) -> None:
    torch.save(model.head.weight.detach().clone(), folder / "head.pt")


@pytest.mark.parametrize(
    ("higher_is_better", "scores", "best"),
    [
        (False, [3.0, 1.0, 2.0, 1.0], 6),
        (True, [1.0, 3.0, 3.0, 2.0], 6),
        (True, [2.0, 2.0, 2.0, 2.0], 3),
        (False, [4.0, 3.0, 2.0, 1.0], 12),
        (False, [0.0, 0.0, -1.0, -1.0], 9),
    ],
)
def test_the_best_model_is_the_earliest_of_the_highest_score(tmp_path, higher_is_better, scores, best):
    heads = {}
    keep = Measurement("keep", lambda model: heads.update({len(heads): model.head.weight.clone()}) or {})
    observers = [BestModel("loss", higher_is_better, save_weights), keep]
    _, result = train_toy(tmp_path, ToyModel(), observers, scores=scores, max_steps=12)
    assert result.observed["best"] == {"step": best, "loss": scores[best // 3 - 1]}
    assert torch.equal(torch.load(tmp_path / "best" / "head.pt"), heads[best // 3 - 1])


def test_the_best_model_outlives_a_resumption_and_a_kill_while_it_is_replaced(tmp_path):
    def best():
        return [BestModel("loss", False, save_weights)]

    train_toy(tmp_path, ToyModel(), best(), scores=[1.0, 2.0], max_steps=6)
    head = (tmp_path / "best" / "head.pt").read_bytes()
    (tmp_path / "best").rename(tmp_path / ".best.old")  # between the two renamings
    options = {"max_steps": 9, "resume_from": checkpoint_path(tmp_path, 6)}
    _, result = train_toy(tmp_path, ToyModel(), best(), scores=[1.0], **options)
    assert result.observed["best"] == {"step": 3, "loss": 1.0}
    assert (tmp_path / "best" / "head.pt").read_bytes() == head
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "checkpoint-9"]


# --- sparsity --------------------------------------------------------------------------------------------------------


def test_the_sparsity_of_training_by_a_plain_loop(tmp_path):
    """Reports every fourth step, evaluations every third: intervals of 3, 1, 2, 2, 1, 2 steps."""
    reports = []

    class Watched(SparsityObserver):
        def report(self, training):
            values = super().report(training)
            reports.append((training.step, values["nonzero_share"]))
            return values

    model = ToyModel()
    task, result = train_toy(tmp_path, model, [Watched(make_meter(model))], logging_steps=4, max_steps=11)

    plain, shares = ToyModel(), []
    counted = []
    for layer in plain.layers:
        layer.act.register_forward_hook(lambda module, args, output: counted.append(output.gt(0).double().mean()))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    for batch in task.batches:
        counted.clear()
        optimizer.zero_grad()
        F.mse_loss(plain(batch["inputs"]), batch["targets"]).backward()
        optimizer.step()
        shares.append(sum(counted).item() / 2)
    assert len(set(shares)) > 3
    assert [step for step, _ in reports] == [3, 4, 6, 8, 9, 11]
    for begin, (end, share) in zip([0, 3, 4, 6, 8, 9], reports, strict=True):
        assert share == pytest.approx(sum(shares[begin:end]) / (end - begin))
    assert result.observed["training_nonzero_share"] == pytest.approx(sum(shares) / 11)


def test_the_sparsity_of_no_training_is_none():
    assert SparsityObserver(make_meter(ToyModel())).results() == {"training_nonzero_share": None}


def sparsity_of(runs: Runs, name: str, *options: str) -> tuple[dict, str]:
    """All that the results say of sparsity, and the card."""
    results = runs(name, "--max_steps", "2", "--report_to", "none", *options)
    found = {key: value for key, value in results.items() if "nonzero" in key and value is not None}
    return found, (runs.folder / name / "model" / "README.md").read_text()


@pytest.mark.parametrize("runs", ["images"], indirect=True)
def test_measure_sparsity(runs):
    gelu = ("--model.hidden_act", "gelu", "--model.zeroth_bias", "false", "--measure_sparsity")
    found, card = sparsity_of(runs, "auto", *gelu, "auto")
    assert "training_nonzero_share" not in found
    assert found["nonzero_share"] > 0.99
    assert len(found["derivative_nonzero_share_per_layer"]) == 2
    assert "Non-zero activations, layer by layer" in card
    found, _ = sparsity_of(runs, "always", *gelu, "always")
    assert found["training_nonzero_share"] > 0.99
    assert found["nonzero_share"] > 0.99

    found, card = sparsity_of(runs, "relu", "--measure_sparsity", "auto")
    assert 0 < found["training_nonzero_share"] < 0.9
    assert "non-zero activations" in card.lower()
    for options in (("--measure_sparsity", "never"), (*gelu, "never")):
        found, card = sparsity_of(runs, f"never{len(options)}", *options)
        assert not found
        assert "non-zero activations" not in card.lower()
        assert "activation_sparsity" not in card
        assert not (runs.folder / f"never{len(options)}" / "model" / "sparsity.png").exists()
    # The weights do not depend on who counts.
    runs.assert_same_weights("always", "auto")
    runs.assert_same_weights("never2", "relu")
    assert json.loads((runs.folder / "never2" / "arguments.json").read_text())["measure_sparsity"] == "never"

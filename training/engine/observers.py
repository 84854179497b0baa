# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What looks on while a model is trained: measurements, and the model at its best."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from sparsight.analysis.sparsity import SparsityMeter, TrainingSparsity
from sparsight.modeling.files import recover, written_beside


BEST_FOLDER = "best"


@dataclass
class Training:
    """A training as its observers see it.

    Attributes:
        accelerator: the processes and the device.
        model: unwrapped.
        optimizer: as accelerate has prepared it.
        output_dir: where its checkpoints go.
        num_steps: optimizer steps in all.
        step: optimizer steps taken so far.
        loss: mean loss of the last step on this process, a tensor on the device: reading its value waits for it.
    """

    accelerator: Accelerator
    model: nn.Module
    optimizer: torch.optim.Optimizer
    output_dir: Path
    num_steps: int
    step: int = 0
    loss: torch.Tensor | None = None


class Observer:
    """Looks on while a model is trained, and changes nothing.

    The loop calls the methods below on all processes; each does nothing until a subclass overrides it. What
    `state_dict` returns is saved with every checkpoint, and comes back where the training is resumed.
    """

    @property
    def name(self) -> str:
        """Tells its state from that of others; two observers of a training may not share it."""
        return type(self).__name__

    def begin(self, training: Training) -> None:
        """Called once before the first step, and before `load_state_dict`."""

    def watch_forward(self) -> contextlib.AbstractContextManager:
        """Is entered for the forward pass of every micro-batch."""
        return contextlib.nullcontext()

    def after_step(self, training: Training) -> None:
        """Called after every optimizer step and what the methods did to the weights."""

    def report(self, training: Training) -> dict[str, float]:
        """Numbers for trackers and the progress bar: of the steps since the last report.

        Called every `logging_steps` steps and before each evaluation.
        """
        return {}

    def after_evaluation(self, training: Training, evaluation: dict[str, Any]) -> None:
        """Called with what an evaluation measured, before the checkpoint is written."""

    def results(self) -> dict[str, Any]:
        """What it adds to `results.json` after the last step."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Plain containers of tensors, numbers and strings."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""


class SparsityObserver(Observer):
    """Counts non-zero activations of training batches, and integrates their share over the steps.

    Adds `training_nonzero_share` to the results, None before the first step.

    Args:
        meter: of the model that is trained.
    """

    def __init__(self, meter: SparsityMeter):
        self.meter = meter
        self.integral = TrainingSparsity()

    def watch_forward(self) -> contextlib.AbstractContextManager:
        return self.meter

    def report(self, training: Training) -> dict[str, float]:
        sparsity = self.meter.compute()
        self.meter.reset()
        self.integral.update(sparsity.nonzero_share, training.step - self.integral.num_steps)
        per_layer = {f"nonzero_share/{name}": share for name, share in sparsity.nonzero_share_per_layer.items()}
        return {"nonzero_share": sparsity.nonzero_share, **per_layer}

    def results(self) -> dict[str, Any]:
        return {"training_nonzero_share": self.integral.compute() if self.integral.num_steps else None}

    def state_dict(self) -> dict[str, Any]:
        return self.integral.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.integral.load_state_dict(state_dict)


class BestModel(Observer):
    """Keeps the model at its highest score in `best/`; of equal ones the earliest.

    Args:
        metric: the number of an evaluation that says how good the model is.
        higher_is_better: whether a high one is good.
        save: writes the model into a folder; called on the main process.
    """

    def __init__(self, metric: str, higher_is_better: bool, save: Callable[[nn.Module, Path], None]):
        self.metric = metric
        self.sign = 1 if higher_is_better else -1
        self.save = save
        self.step, self.score = 0, -math.inf

    def begin(self, training: Training) -> None:
        recover(training.output_dir / BEST_FOLDER)

    def after_evaluation(self, training: Training, evaluation: dict[str, Any]) -> None:
        score = self.sign * evaluation[self.metric]
        if score <= self.score:
            return
        self.step, self.score = training.step, score
        if training.accelerator.is_main_process:
            with written_beside(training.output_dir / BEST_FOLDER) as folder:
                folder.mkdir()
                self.save(training.model, folder)

    def results(self) -> dict[str, Any]:
        return {"best": {"step": self.step, self.metric: self.sign * self.score}}

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "score": self.score}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step, self.score = state_dict["step"], state_dict["score"]


class Measurement(Observer):
    """Measures the model with a function, after each evaluation, and adds what it found to the results.

    ```python
    Measurement("norms", lambda model: {"embedding": model.get_input_embeddings().weight.norm().item()})
    ```

    Args:
        name: of the measurement; the results have a list under it, an entry an evaluation with its `step`.
        measure: from the unwrapped model, in evaluation mode, to numbers by name.
    """

    def __init__(self, name: str, measure: Callable[[nn.Module], dict[str, float]]):
        self._name = name
        self.measure = measure
        self.history: list[dict[str, float]] = []

    @property
    def name(self) -> str:
        return self._name

    @torch.no_grad()
    def after_evaluation(self, training: Training, evaluation: dict[str, Any]) -> None:
        measured = self.measure(training.model)
        training.accelerator.log({f"{self.name}/{key}": v for key, v in measured.items()}, step=training.step)
        self.history.append({"step": training.step, **measured})

    def results(self) -> dict[str, Any]:
        return {self.name: self.history}

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = state_dict["history"]

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""A task in miniature: a regression of a few numbers, on which the loop can be followed by hand."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, default_collate

from script_testing import reset_accelerator
from sparsight.training.engine.batches import EpochBatches, make_evaluation_loader, make_training_loader
from sparsight.training.engine.loop import Method, TrainingResult, train
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.observers import Observer
from sparsight.training.engine.optimization import make_accelerator
from sparsight.training.engine.task import Task


NUM_EXAMPLES = 24


def toy_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (24, 3) and targets (24, 1)."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(NUM_EXAMPLES, 3, generator=generator)
    return inputs, inputs.sum(1, keepdim=True).relu() + 1


class ToyBlock(nn.Module):
    def __init__(self, activation: nn.Module):
        super().__init__()
        self.fc1 = nn.Linear(3, 8)
        self.act = activation
        self.fc2 = nn.Linear(8, 3)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.fc2(self.act(self.fc1(hidden)))


class ToyModel(nn.Module):
    """Two layers with an activation that a meter finds, and a head; the same weights each time."""

    def __init__(self, activation: type[nn.Module] = nn.ReLU, dropout: float = 0.0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(2)
            self.layers = nn.ModuleList(ToyBlock(activation()) for _ in range(2))
            self.head = nn.Linear(3, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = layer(inputs)
        return self.head(self.dropout(inputs))


class _Examples(Dataset):
    """By their index, in training the last part of the key."""

    def __len__(self) -> int:
        return NUM_EXAMPLES

    def __getitem__(self, key: int | tuple[int, int, int]) -> dict[str, torch.Tensor]:
        index = key if isinstance(key, int) else key[2]
        return {name: values[index] for name, values in zip(("inputs", "targets"), toy_data(), strict=True)}


class ToyTask(Task):
    """Mean squared error; the lowest decides which model is best.

    Attributes:
        batches: of the training so far.
        on_loss: what becomes of the loss of a micro-batch, given it and its number from 1 on.
        scores: what evaluations are to find in place of the loss, one after the other.
    """

    auto_class = arguments_class = source_class = default_model_type = embedded_dataset = None
    metric, higher_is_better = "loss", False
    sums = ("loss", "num_examples")

    def __init__(self, loop: LoopArguments, on_loss: Callable | None = None, scores: Iterable[float] = ()):
        super().__init__(None, loop)
        self.batches: list[dict[str, torch.Tensor]] = []
        self.on_loss = on_loss or (lambda loss, number: loss)
        self.scores = iter(scores)

    def load_data(self) -> Dataset:
        return _Examples()

    def make_model(self, start: Any) -> tuple[nn.Module, None]:
        return ToyModel(), None

    def load_processor(self, name: str, config: Any) -> None:
        return None

    def make_loaders(self, model: nn.Module, processor: None) -> tuple[DataLoader, DataLoader]:
        order = EpochBatches(self.data, self.loop)
        return (
            make_training_loader(self.data, order, default_collate, self.accelerator, self.loop),
            make_evaluation_loader(self.data, default_collate, self.accelerator, self.loop),
        )

    def compute_loss(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.batches.append(batch)
        return self.on_loss(F.mse_loss(model(batch["inputs"]), batch["targets"]), len(self.batches))

    def measure(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        loss = F.mse_loss(model(batch["inputs"]), batch["targets"], reduction="sum")
        return loss, torch.tensor(len(batch["targets"]))

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        loss = sums["loss"] / sums["num_examples"]
        return {"loss": next(self.scores, loss), "num_examples": int(sums["num_examples"])}


def toy_arguments(folder: Path, **given: Any) -> LoopArguments:
    """Plain steps of gradient descent with Nesterov's momentum, three an epoch."""
    plain = {"optimizer": "sgd", "weight_decay": 0.0, "max_grad_norm": 0.0, "lr_scheduler": "constant"}
    return LoopArguments(**{"output_dir": str(folder), "batch_size": 8, "learning_rate": 0.01, **plain, **given})


def train_toy(
    folder: Path,
    model: nn.Module,
    observers: Sequence[Observer] = (),
    methods: Sequence[Method] = (),
    resume_from: Path | None = None,
    on_loss: Callable | None = None,
    scores: Iterable[float] = (),
    **arguments: Any,
) -> tuple[ToyTask, TrainingResult]:
    """Train `model` in `folder`, with [`toy_arguments`]."""
    loop = toy_arguments(folder, **arguments)
    task = ToyTask(loop, on_loss, scores)
    accelerator = make_accelerator(loop)
    task.prepare(model, None, accelerator)
    try:
        return task, train(accelerator, model, task, loop, folder, methods, observers, resume_from)
    finally:
        reset_accelerator()

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What a task has to say for the engine to train it."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedConfig, PreTrainedModel

from sparsight.analysis.sparsity import make_meter
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.models import ModelArguments, find_families


class Data(Protocol):
    """What a task trains and evaluates on."""

    eval_split: str


class Task(ABC):
    """A kind of data, and how a model is trained and measured on it.

    An instance goes through three stages: made from arguments, it has loaded its data; [`make_model`] makes a model
    for them; and [`prepare`] sets up the batches for that model, whereupon the engine may train and evaluate.

    Attributes:
        arguments_class: the dataclass of its data arguments.
        source_class: the base of `arguments_class` whose fields say which examples there are.
        auto_class: loads and makes its models.
        default_model_type: the family where none is named.
        embedded_dataset: the data set that needs no download, by which `default_recipe` is named.
        metric, higher_is_better: the number of an evaluation that says which model is best.
        sums: what [`measure`] adds up over the examples, by name; `num_examples` is among them.
        arguments, loop: what the instance was made from.
        data: what was loaded.
        train_loader, eval_loader, accelerator: set by [`prepare`].
    """

    arguments_class: ClassVar[type]
    source_class: ClassVar[type]
    auto_class: ClassVar[type]
    default_model_type: ClassVar[str]
    embedded_dataset: ClassVar[str]
    metric: ClassVar[str]
    higher_is_better: ClassVar[bool]
    sums: ClassVar[tuple[str, ...]]

    accelerator: Accelerator
    train_loader: DataLoader
    eval_loader: DataLoader

    def __init__(self, arguments: Any, loop: LoopArguments, data: Data | None = None):
        """Load the data, or take what another instance has loaded.

        Raises:
            ValueError: that begins with the argument's name, if the data are not there or cannot be used.
        """
        self.arguments = arguments
        self.loop = loop
        self.data = self.load_data() if data is None else data

    # --- what a task defines ----------------------------------------------------------------------------------------

    @abstractmethod
    def load_data(self) -> Data:
        """The data that `self.arguments` name."""

    @abstractmethod
    def make_model(self, start: ModelArguments) -> tuple[PreTrainedModel, Any]:
        """A fresh model of a family, or a checkpoint to train on, and the processor that goes with it."""

    @abstractmethod
    def load_processor(self, name: str, config: PreTrainedConfig) -> Any:
        """The image processor or tokenizer of a checkpoint."""

    @abstractmethod
    def make_loaders(self, model: PreTrainedModel, processor: Any) -> tuple[DataLoader, DataLoader]:
        """Endless training batches in an order that [`EpochBatches`] or its like decides, and evaluation batches."""

    @abstractmethod
    def compute_loss(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The mean loss of a micro-batch."""

    @abstractmethod
    def measure(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The `sums` over the examples of an evaluation batch, in their order, each a tensor of one number."""

    @abstractmethod
    def summarize(self, sums: dict[str, float]) -> dict[str, Any]:
        """What an evaluation found, from the sums over all examples."""

    def check_model(self, name: str, model: PreTrainedModel, processor: Any) -> None:  # noqa: B027  (may do nothing)
        """Raise a ValueError if the data do not fit the checkpoint `name`."""

    # --- what all have ----------------------------------------------------------------------------------------------

    @classmethod
    def families(cls) -> list[str]:
        """Model types that it can train from scratch: those of sparsight that its Auto class has a model for."""
        return find_families(cls.auto_class)

    @classmethod
    def default_recipe(cls, given: Mapping[str, Any]) -> str | None:
        """The recipe where a command line names none: `<model_type>_<embedded data set>`, on the embedded data."""
        if given.get("dataset", cls.embedded_dataset) == cls.embedded_dataset and "model_name_or_path" not in given:
            return f"{given.get('model_type', cls.default_model_type)}_{cls.embedded_dataset}"
        return None

    def with_arguments(self, arguments: Any, loop: LoopArguments) -> "Task":
        """The same task on the data that this one has loaded."""
        return type(self)(arguments, loop, self.data)

    def prepare(self, model: PreTrainedModel, processor: Any, accelerator: Accelerator) -> None:
        """Set up the batches for a model.

        Raises:
            ValueError: if the batch size does not fit the data or the processes.
        """
        self.accelerator = accelerator
        self.train_loader, self.eval_loader = self.make_loaders(model, processor)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """Measure `model`, unwrapped, on every evaluation example; all processes have to call this.

        Returns:
            What [`summarize`] returns, and the sparsity of the activations, where the model has any to count and
            `measure_sparsity` does not say never.
        """
        model.to(self.accelerator.device).eval()
        meter = make_meter(model) if self.loop.measure_sparsity != "never" else None
        # In double, where counts are exact.
        total = torch.zeros(len(self.sums), dtype=torch.double, device=self.accelerator.device)
        with meter or contextlib.nullcontext():
            for batch in self.eval_loader:
                with self.accelerator.autocast():
                    total += torch.stack([value.double() for value in self.measure(model, batch)])
        total = self.accelerator.reduce(total, "sum").tolist()
        summary = self.summarize(dict(zip(self.sums, total, strict=True)))
        return {**summary, **(meter.compute().to_results() if meter else {})}

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Modular addition, a + b mod p, on which a network first memorises and then generalises (arXiv 2408.11804)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from sparsight.training.command_line.arguments import argument
from sparsight.training.engine.batches import EpochBatches, make_evaluation_loader, make_training_loader
from sparsight.training.engine.models import ModelArguments, load_pretrained, make_config
from sparsight.training.engine.task import Task


@dataclass
class AdditionArguments:
    """Which sums there are."""

    modulus: int = argument("p: the numbers are 0 to p - 1.", 59, at_least=3, on_card=True)
    train_share: float = argument(
        "Share of the p² pairs to train on, drawn by --seed; the rest is held out.",
        0.7,
        above=0,
        below=1,
        on_card=True,
    )


@dataclass
class Sums:
    """Pairs of numbers with their sums modulo p.

    Attributes:
        train, eval: `((pairs, 3), (pairs,))`: the tokens a, b and p, and the sum.
        eval_split: what the held-out pairs are called.
    """

    train: TensorDataset
    eval: TensorDataset
    eval_split: str = "the held-out pairs"


class ModularAddition(Task):
    """Cross-entropy of a + b mod p at the last of the tokens (a, b, p); accuracy decides which model is best."""

    arguments_class = AdditionArguments
    source_class = AdditionArguments
    auto_class = AutoModelForCausalLM
    default_model_type = "gpt2"
    embedded_dataset = "modular_addition"
    metric, higher_is_better = "accuracy", True
    sums = ("correct", "loss", "num_examples")

    arguments: AdditionArguments
    data: Sums

    @classmethod
    def families(cls) -> list[str]:
        return ["gpt2", "llama"]

    @classmethod
    def default_recipe(cls, given: dict[str, Any]) -> str | None:
        return None if {"model_type", "model_name_or_path"} & given.keys() else "modular_addition"

    def load_data(self) -> Sums:
        p = self.arguments.modulus
        a, b = torch.cartesian_prod(torch.arange(p), torch.arange(p)).T
        tokens, targets = torch.stack((a, b, torch.full_like(a, p)), dim=1), (a + b) % p
        order = torch.randperm(p * p, generator=torch.Generator().manual_seed(self.loop.seed))
        number = round(self.arguments.train_share * p * p)
        if not 0 < number < p * p:
            raise ValueError(
                f"train_share: {self.arguments.train_share} of {p * p} pairs is {number}; leave some to either side"
            )
        train, held_out = order.tensor_split([number])
        return Sums(*(TensorDataset(tokens[part], targets[part]) for part in (train, held_out)))

    def make_model(self, start: ModelArguments) -> tuple[PreTrainedModel, None]:
        """A fresh model of a family with p + 1 tokens, or a checkpoint; there is no processor.

        Raises:
            ValueError: if the family, a field of its config or the checkpoint is not there, a value is nonsense, or
                the model has another number of tokens.
        """
        size = self.arguments.modulus + 1
        if start.model_name_or_path is None:
            fixed = {"vocab_size": size, "max_position_embeddings": 3, "bos_token_id": None, "eos_token_id": None}
            config = make_config(self.families(), start.model_type, start.model, **fixed)
            model = self.auto_class.from_config(config)
        else:
            model = load_pretrained(start.model_name_or_path, self.auto_class, **start.model)
        self.check_model(start.model_name_or_path or "the model", model, None)
        return model, None

    def load_processor(self, name: str, config: PreTrainedConfig) -> None:
        return None

    def check_model(self, name: str, model: PreTrainedModel, processor: None) -> None:
        size = self.arguments.modulus + 1
        if model.config.vocab_size != size:
            raise ValueError(f"modulus: {size - 1} needs {size} tokens, and {name} has {model.config.vocab_size}")

    def make_loaders(self, model: PreTrainedModel, processor: None) -> tuple[DataLoader, DataLoader]:
        order = EpochBatches(self.data.train, self.loop)
        return (
            make_training_loader(_Pairs(self.data.train), order, _as_it_is, self.accelerator, self.loop),
            make_evaluation_loader(_Pairs(self.data.eval), _as_it_is, self.accelerator, self.loop),
        )

    def compute_loss(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = self._logits(model, batch)
        return F.cross_entropy(logits, batch["labels"], label_smoothing=self.loop.label_smoothing)

    def measure(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        logits, labels = self._logits(model, batch), batch["labels"]
        loss = F.cross_entropy(logits, labels, reduction="sum")
        return (logits.argmax(1) == labels).sum(), loss, labels.new_tensor(len(labels))

    @staticmethod
    def _logits(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """`(batch, vocab_size)`, at the last token; no other is computed."""
        return model(input_ids=batch["input_ids"], use_cache=False, logits_to_keep=1).logits[:, -1].float()

    def summarize(self, sums: dict[str, float]) -> dict[str, Any]:
        """Summarize an evaluation.

        Returns:
            `accuracy`: share of the sums that are right; `loss`: mean cross-entropy in nats; `num_examples`.
        """
        number = sums["num_examples"]
        return {
            "accuracy": sums["correct"] / number,
            "loss": sums["loss"] / number,
            "num_examples": int(number),
        }


class _Pairs(Dataset):
    """Whole batches of pairs; in training by the keys (epoch, position, index) of [`EpochBatches`]."""

    def __init__(self, pairs: TensorDataset):
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitems__(self, keys: Sequence[int | tuple[int, int, int]]) -> dict[str, torch.Tensor]:
        tokens, targets = self.pairs[[key if isinstance(key, int) else key[2] for key in keys]]
        return {"input_ids": tokens, "labels": targets}


def _as_it_is(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return batch

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Span corruption as a task of the training loop: the loss of a batch, and what held-out text shows."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from sparsight.analysis.sparsity import ActivationSparsity, make_meter
from sparsight.training.arguments import LoopArguments


_IGNORED = -100  # the label of padding


@dataclass(frozen=True)
class Evaluation:
    """An encoder-decoder on a data set. Shares lie in [0, 1]; padding counts nowhere.

    Attributes:
        loss: mean cross-entropy of the target tokens in nats.
        perplexity: its exponential.
        num_examples, num_target_tokens: examples, and target tokens in them.
        nonzero_share: non-zero activations of the MLPs, over all layers of encoder and decoder.
        encoder_nonzero_share_per_layer, decoder_nonzero_share_per_layer: the same from the first layer to the last.
        derivative_nonzero_share, encoder_derivative_nonzero_share_per_layer,
        decoder_derivative_nonzero_share_per_layer: the same of their derivatives.
        num_encoder_tokens, num_decoder_tokens: tokens that each layer saw.

    What a family has no activations for is None or empty.
    """

    loss: float
    perplexity: float
    num_examples: int
    num_target_tokens: int
    num_encoder_tokens: int | None = None
    num_decoder_tokens: int | None = None
    nonzero_share: float | None = None
    encoder_nonzero_share_per_layer: list[float] = field(default_factory=list)
    decoder_nonzero_share_per_layer: list[float] = field(default_factory=list)
    derivative_nonzero_share: float | None = None
    encoder_derivative_nonzero_share_per_layer: list[float] = field(default_factory=list)
    decoder_derivative_nonzero_share_per_layer: list[float] = field(default_factory=list)


def _model_inputs(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What the model takes; the mask tells the meter which tokens of the decoder are padding."""
    return {**batch, "decoder_attention_mask": batch["labels"].ne(_IGNORED).long(), "use_cache": False}


def make_compute_loss(loop: LoopArguments) -> Callable[[nn.Module, dict[str, torch.Tensor]], torch.Tensor]:
    """Mean cross-entropy of a batch's target tokens, with label smoothing."""

    def compute_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = model(**_model_inputs(batch)).logits.float()
        targets = batch["labels"].flatten()
        return F.cross_entropy(
            logits.flatten(0, 1), targets, ignore_index=_IGNORED, label_smoothing=loop.label_smoothing
        )

    return compute_loss


@torch.no_grad()
def evaluate_language_model(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> Evaluation:
    """Evaluate `model`, unwrapped, on every example of `loader`; all processes have to call this.

    Args:
        loader: batches of `input_ids`, `labels` with −100 at padding, and possibly `attention_mask`.
    """
    model.eval()
    device = accelerator.device
    # Target tokens and examples; exact as integers. The loss apart, in double.
    counts = torch.zeros(2, dtype=torch.long, device=device)
    loss_sum = torch.zeros((), dtype=torch.double, device=device)
    meter = make_meter(model)
    with meter or contextlib.nullcontext():
        for batch in loader:
            with accelerator.autocast():
                logits = model(**_model_inputs(batch)).logits.float()
            labels = batch["labels"]
            counts += torch.stack((labels.ne(_IGNORED).sum(), labels.new_tensor(len(labels))))
            loss_sum += F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=_IGNORED, reduction="sum")
    counts, loss_sum = accelerator.reduce(counts, "sum"), accelerator.reduce(loss_sum, "sum")
    num_target_tokens, num_examples = counts.tolist()
    loss = loss_sum.item() / num_target_tokens
    return Evaluation(
        loss=loss,
        perplexity=float(np.exp(loss)),
        num_examples=num_examples,
        num_target_tokens=num_target_tokens,
        **(_sparsity_fields(meter.compute()) if meter else {}),
    )


def _sparsity_fields(sparsity: ActivationSparsity) -> dict[str, Any]:
    def of_side(side: str, values: dict[str, Any]) -> list[Any]:
        return [value for name, value in values.items() if name.startswith(f"{side}.")]

    values: dict[str, Any] = {
        "nonzero_share": sparsity.nonzero_share,
        "derivative_nonzero_share": sparsity.derivative_nonzero_share,
    }
    for side in ("encoder", "decoder"):
        values[f"num_{side}_tokens"] = next(iter(of_side(side, sparsity.num_tokens)), None)
        for name in ("nonzero_share_per_layer", "derivative_nonzero_share_per_layer"):
            values[f"{side}_{name}"] = of_side(side, getattr(sparsity, name))
    return values

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Image classification as a task of the training loop: the loss of a batch, and what a test set shows."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from timm.data import Mixup
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import AutoImageProcessor, BaseImageProcessor, PreTrainedConfig, PreTrainedModel

from sparsight.analysis.sparsity import ActivationSparsity, make_meter
from sparsight.training.arguments import LoopArguments, require
from sparsight.training.checkpoints import load_pretrained
from sparsight.training.image_data import ImageArguments, make_image_processor


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """A classifier on a data set. Shares and accuracies lie in [0, 1].

    Attributes:
        accuracy, accuracy_top5: share of images whose label scores highest, is among the five highest.
        loss: mean cross-entropy in nats.
        nonzero_share, nonzero_share_per_layer: non-zero activations of the MLPs, from the first layer to the last.
        derivative_nonzero_share, derivative_nonzero_share_per_layer: the same of their derivatives.
        num_examples, num_tokens: images, and tokens that each layer saw.

    What a family has no activations for is None or empty.
    """

    accuracy: float
    accuracy_top5: float
    loss: float
    num_examples: int
    num_tokens: int | None = None
    nonzero_share: float | None = None
    nonzero_share_per_layer: list[float] = field(default_factory=list)
    derivative_nonzero_share: float | None = None
    derivative_nonzero_share_per_layer: list[float] = field(default_factory=list)


@torch.no_grad()
def evaluate_classifier(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> Evaluation:
    """Evaluate `model`, unwrapped, on every image of `loader`; all processes have to call this."""
    model.eval()
    device = accelerator.device
    # Correct, correct among five, and images; exact as integers. The loss apart, in double.
    counts, loss_sum = (
        torch.zeros(3, dtype=torch.long, device=device),
        torch.zeros((), dtype=torch.double, device=device),
    )
    meter = make_meter(model)
    with meter or contextlib.nullcontext():
        for batch in loader:
            with accelerator.autocast():
                logits = model(pixel_values=batch["pixel_values"]).logits.float()
            labels = batch["labels"]
            hits = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
            counts += torch.stack((hits[:, 0].sum(), hits.sum(), hits[:, 0].new_tensor(len(labels), dtype=torch.long)))
            loss_sum += F.cross_entropy(logits, labels, reduction="sum")
    counts, loss_sum = accelerator.reduce(counts, "sum"), accelerator.reduce(loss_sum, "sum")
    correct, correct_top5, num_examples = counts.tolist()
    sparsity = _sparsity_fields(meter.compute()) if meter else {}
    return Evaluation(
        accuracy=correct / num_examples,
        accuracy_top5=correct_top5 / num_examples,
        loss=loss_sum.item() / num_examples,
        num_examples=num_examples,
        **sparsity,
    )


def _sparsity_fields(sparsity: ActivationSparsity) -> dict[str, Any]:
    return {
        "nonzero_share": sparsity.nonzero_share,
        "nonzero_share_per_layer": list(sparsity.nonzero_share_per_layer.values()),
        "derivative_nonzero_share": sparsity.derivative_nonzero_share,
        "derivative_nonzero_share_per_layer": list(sparsity.derivative_nonzero_share_per_layer.values()),
        "num_tokens": next(iter(sparsity.num_tokens.values())),
    }


def make_compute_loss(
    loop: LoopArguments, images: ImageArguments, num_labels: int, num_processes: int = 1
) -> Callable[[nn.Module, dict[str, Any]], torch.Tensor]:
    """Mean cross-entropy of a batch with label smoothing, under mixup and cutmix where these are on.

    Raises:
        UsageError: if mixup or cutmix is on and a batch has an odd number of images.
    """
    mixup = None
    if images.mixup > 0 or images.cutmix > 0:
        per_process = loop.batch_size // loop.gradient_accumulation_steps // num_processes
        require(per_process % 2 == 0, "batch_size", f"mixup and cutmix mix pairs, and {per_process} a process is odd")
        mixup = Mixup(
            mixup_alpha=images.mixup,
            cutmix_alpha=images.cutmix,
            label_smoothing=loop.label_smoothing,
            num_classes=num_labels,
        )

    def compute_loss(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
        pixel_values, targets = batch["pixel_values"], batch["labels"]
        if mixup is None:
            return F.cross_entropy(
                model(pixel_values=pixel_values).logits.float(), targets, label_smoothing=loop.label_smoothing
            )
        pixel_values, targets = mixup(pixel_values, targets)
        return F.cross_entropy(model(pixel_values=pixel_values).logits.float(), targets)

    return compute_loss


def load_classifier(name: str, auto_class: type, **kwargs: Any) -> tuple[PreTrainedModel, BaseImageProcessor]:
    """A classifier and its image processor, from a folder or the Hub.

    Args:
        name: what `--model_name_or_path` gave.
        auto_class: the class whose `from_pretrained` loads the model, given `kwargs`.

    Raises:
        UsageError: if there is no such checkpoint, or it cannot be loaded so.
    """
    model = load_pretrained(name, auto_class, **kwargs)
    return model, load_image_processor(name, model.config)


def load_image_processor(name: str, config: PreTrainedConfig) -> BaseImageProcessor:
    """The image processor of a checkpoint; where it has none, the one that its config asks for."""
    try:
        return AutoImageProcessor.from_pretrained(name)
    except (OSError, ValueError):
        logger.warning(f"{name} has no image processor; taking the one that its config asks for")
        return make_image_processor(config, ImageArguments())

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Losses that stay the same when a batch is cut into micro-batches of gradient accumulation."""

import torch
from transformers import PreTrainedConfig
from transformers.loss.loss_utils import ForSequenceClassificationLoss, fixed_cross_entropy


IGNORED = -100  # the label of padding


def image_classification_loss(
    labels: torch.Tensor,
    pooled_logits: torch.Tensor,
    config: PreTrainedConfig,
    num_items_in_batch: torch.Tensor | int | None = None,
    **kwargs,
) -> torch.Tensor:
    """transformers' loss of image classifiers, for each `config.problem_type` a share of the accumulated batch's mean.

    Args:
        labels: classes `(batch,)`, or targets `(batch, num_labels)` for several labels an image or regression.
        pooled_logits: `(batch, num_labels)`.
        config: the model's.
        num_items_in_batch: the number of labels in all micro-batches together, which `Trainer` passes. By default the
            loss is the mean over this batch.
    """
    kwargs["num_items_in_batch"] = num_items_in_batch
    loss = ForSequenceClassificationLoss(labels, pooled_logits, config, **kwargs)
    # transformers itself heeds the number for a single label only.
    if num_items_in_batch is not None and config.problem_type != "single_label_classification":
        loss = loss * labels.ne(IGNORED).sum() / num_items_in_batch
    return loss


def token_loss(
    labels: torch.Tensor, logits: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Cross-entropy of the tokens that are not −100: a share of the accumulated batch's mean.

    Args:
        labels: `(batch, tokens)`.
        logits: `(batch, tokens, vocab_size)`.
        num_items_in_batch: see [`image_classification_loss`].
    """
    return fixed_cross_entropy(logits.flatten(0, 1), labels.flatten().to(logits.device), num_items_in_batch, IGNORED)

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Top-k accuracy, for `evaluate.load("metrics/topk_accuracy")`."""

from typing import TypeVar

import datasets
import evaluate
import numpy as np


Array = TypeVar("Array")

_DESCRIPTION = "Share of examples whose label is among the k classes with the highest scores."

_KWARGS_DESCRIPTION = """
Args:
    predictions: `(examples, classes)` scores.
    references: `(examples,)` labels.
    k: a number of classes, or several. Default 1 and 5.
Returns:
    `accuracy@k` for each k, in [0, 1]. Ties count against the label; with fewer classes than k the share is 1.
Examples:
    >>> metric = evaluate.load("metrics/topk_accuracy")
    >>> metric.compute(predictions=[[0.1, 0.9, 0.0], [0.2, 0.5, 0.3]], references=[1, 2], k=[1, 2])
    {'accuracy@1': 0.5, 'accuracy@2': 1.0}
"""


def label_ranks(scores: Array, labels: Array) -> Array:
    """How many classes other than the label score at least as high: ties count against the label, and so do NaNs.

    Args:
        scores: `(examples, classes)`, an array of NumPy or a tensor of torch.
        labels: `(examples,)` class numbers, of the same kind.

    Returns:
        `(examples,)` ranks of the same kind, from 0; the label is among the k highest where its rank is less than k.
    """
    own = scores[range(len(labels)), labels]
    return (~(scores < own[:, None])).sum(1) - 1


class TopKAccuracy(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                {"predictions": datasets.Sequence(datasets.Value("float32")), "references": datasets.Value("int64")}
            ),
        )

    def _compute(self, predictions, references, k: int | list[int] = (1, 5)) -> dict[str, float]:
        scores, labels = np.asarray(predictions), np.asarray(references)
        ks = [k] if isinstance(k, int) else list(k)
        if not ks or min(ks) < 1:
            raise ValueError(f"`k` must be a positive number of classes or several, got {k}")
        if labels.min() < 0 or labels.max() >= scores.shape[1]:
            raise ValueError(f"`references` must be labels from 0 to {scores.shape[1] - 1}")
        ranks = label_ranks(scores, labels)
        return {f"accuracy@{k}": float((ranks < k).mean()) for k in ks}

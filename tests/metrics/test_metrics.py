# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import evaluate
import numpy as np
import pytest
import torch

from helpers import ROOT
from sparsight.metrics.topk_accuracy.topk_accuracy import label_ranks


def load(name: str, tmp_path) -> evaluate.Metric:
    return evaluate.load(str(ROOT / "metrics" / name), cache_dir=str(tmp_path), experiment_id=str(tmp_path.name))


def test_topk_accuracy(tmp_path):
    metric = load("topk_accuracy", tmp_path)
    scores = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
    labels = np.random.default_rng(1).integers(0, 7, 50)
    for part in np.array_split(np.arange(50), 3):
        metric.add_batch(predictions=scores[part], references=labels[part])
    found = metric.compute(k=[1, 3, 7])
    for k in (1, 3, 7):
        hits = [label in np.argsort(-row)[:k] for row, label in zip(scores, labels, strict=True)]
        assert found[f"accuracy@{k}"] == pytest.approx(np.mean(hits))
    assert found["accuracy@7"] == 1


def test_topk_accuracy_counts_ties_against_the_label(tmp_path):
    metric = load("topk_accuracy", tmp_path)
    assert metric.compute(predictions=[[0.5, 0.5, 0.0]], references=[0], k=1) == {"accuracy@1": 0.0}


@pytest.mark.parametrize("num_classes", [1, 3, 9])  # also fewer than the k of top-5 accuracy
def test_ranks_are_the_same_for_numpy_and_torch(num_classes):
    # Few distinct scores, so that most rows have ties.
    scores = np.random.default_rng(0).integers(0, 4, (60, num_classes)).astype(np.float32)
    labels = np.random.default_rng(1).integers(0, num_classes, 60)
    ranks = label_ranks(scores, labels)
    assert ranks.tolist() == [
        sum(other >= row[label] for index, other in enumerate(row) if index != label)
        for row, label in zip(scores, labels, strict=True)
    ]
    of_tensors = label_ranks(torch.from_numpy(scores), torch.from_numpy(labels))
    assert isinstance(of_tensors, torch.Tensor)
    assert of_tensors.tolist() == ranks.tolist()
    assert (ranks < 5).all() == (num_classes < 9)


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_scores_that_are_not_numbers_rank_last(kind):
    """So that a model that has diverged is not right everywhere."""
    nan = float("nan")
    scores = kind([[nan, nan, nan], [0.5, nan, 0.0], [nan, 0.0, 1.0]])
    assert label_ranks(scores, kind([0, 0, 0])).tolist() == [2, 1, 2]


@pytest.mark.parametrize(
    ("references", "k", "named"), [([3], 1, "references"), ([-1], 1, "references"), ([0], 0, "k")]
)
def test_topk_accuracy_refuses_nonsense(tmp_path, references, k, named):
    with pytest.raises(ValueError, match=f"`{named}`"):
        load("topk_accuracy", tmp_path).compute(predictions=[[0.1, 0.2, 0.3]], references=references, k=k)


def test_activation_sparsity(tmp_path):
    metric = load("activation_sparsity", tmp_path)
    activations = np.maximum(np.random.default_rng(0).normal(size=(9, 5)), 0)
    mask = np.array([1, 1, 0, 1, 0, 0, 1, 1, 1])
    found = metric.compute(activations=activations, mask=mask)
    assert found == {"nonzero_share": np.mean(activations[mask == 1] > 0), "num_tokens": 6}
    assert metric.compute(activations=activations)["nonzero_share"] == np.mean(activations > 0)


@pytest.mark.parametrize("mask", [[1, 0, 1], [0, 0]])
def test_activation_sparsity_refuses_nonsense(tmp_path, mask):
    with pytest.raises(ValueError, match=r"`mask`|`activations`"):
        load("activation_sparsity", tmp_path).compute(activations=[[1.0], [0.0]], mask=mask)

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""How `results.json` is read: the one place that knows its keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A number of an evaluation.

    Attributes:
        key: in `results.json`.
        type: identifier of the metric on the Hub.
        name: what a reader calls it.
        format: of a value in tables.
        in_tables: whether tables that set models side by side have a row for it.
    """

    key: str
    type: str
    name: str
    format: str
    in_tables: bool = True


_SPARSITY = "activation_sparsity"
METRICS = (
    Metric("accuracy", "accuracy", "accuracy", "{:.2%}"),
    Metric("accuracy_top5", "accuracy", "top-5 accuracy", "{:.2%}"),
    Metric("perplexity", "perplexity", "perplexity", "{:.3f}"),
    Metric("loss", "loss", "loss", "{:.4f}"),
    Metric("nonzero_share", _SPARSITY, "non-zero activations", "{:.2%}"),
    Metric("derivative_nonzero_share", _SPARSITY, "non-zero derivatives of activations", "{:.2%}", False),
    Metric("training_nonzero_share", _SPARSITY, "non-zero activations over all of training", "{:.2%}", False),
)
_PER_LAYER = "nonzero_share_per_layer"


def layer_shares(results: Mapping[str, Any]) -> dict[str, float]:
    """Share of non-zero activations of each layer, in [0, 1], by the label of the layer.

    Read from every key that ends in `nonzero_share_per_layer`, in the order of the keys: `nonzero_share_per_layer`
    gives "layer 1", "layer 2", …; `encoder_nonzero_share_per_layer` gives "encoder 1", …. Derivatives are left out.

    Args:
        results: of one model. What was not measured may be missing, None or empty.
    """
    shares = {}
    for key, layers in results.items():
        prefix = key.removesuffix(_PER_LAYER)
        if key.endswith(_PER_LAYER) and not prefix.endswith("derivative_"):
            label = prefix.strip("_").replace("_", " ") or "layer"
            shares |= {f"{label} {number}": share for number, share in enumerate(layers or [], start=1)}
    return shares

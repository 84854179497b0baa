# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Figures of what the analysis measures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from sparsight.modeling.files import written_beside


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write `figure`, whole or not at all; the format is that of the path's ending."""
    with written_beside(path) as new:
        figure.savefig(new, dpi=150)


def plot_sparsity(shares: Mapping[str, Sequence[float]], title: str | None = None) -> Figure:
    """Non-zero activations layer by layer, a line for each model.

    Args:
        shares: non-zero share of each layer in [0, 1], from the first layer to the last, by the model's label.
        title: of the figure.
    """
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for (label, layers), marker in zip(shares.items(), "osD^vPX*" * len(shares), strict=False):
        axes.plot(range(1, len(layers) + 1), layers, marker=marker, label=label)
    axes.set_xlabel("MLP layer")
    axes.set_ylabel("non-zero activations (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=""))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    if title:
        axes.set_title(title)
    return figure

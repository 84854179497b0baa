# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What one can see in a CRATE: rates by layer, dictionaries and subspaces, attention maps."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from torch.nn import functional as F

from sparsight.analysis.rate_reduction import LayerRates, record_layers
from sparsight.modeling.modeling_crate import CrateISTA, CratePreTrainedModel, CrateSubspaceAttention


def _tidy(axes: Axes, title: str, label: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("layer")
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plot_rate_reduction(rates: Mapping[str, Sequence[LayerRates]]) -> Figure:
    """R^c and the non-zero share by layer, one line a checkpoint, with bands of one standard deviation over images.

    Args:
        rates: what [`layerwise_rate_reduction`] returns, by the name of the checkpoint.
    """
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    colours = colormaps["viridis"](np.linspace(0, 0.85, len(rates)))
    for colour, (name, layers) in zip(colours, rates.items(), strict=True):
        numbers = np.arange(1, len(layers) + 1)
        for axes, quantity in zip(panels, ("compression_rate", "nonzero_share"), strict=True):
            mean, std = (np.array([getattr(layer, f"{quantity}_{s}") for layer in layers]) for s in ("mean", "std"))
            axes.plot(numbers, mean, marker="o", markersize=4, color=colour, label=name)
            axes.fill_between(numbers, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
    _tidy(panels[0], "Compression against the subspaces", "$R^c$ [nats]")
    _tidy(panels[1], "Sparsity after the layer", "non-zero entries")
    panels[1].yaxis.set_major_formatter(PercentFormatter(1))
    panels[1].set_ylim(0, 1.02)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


@torch.no_grad()
def plot_dictionaries(model: CratePreTrainedModel, layers: Sequence[int] | None = None) -> Figure:
    """|DᵀD| of the dictionaries, and |U_iᵀU_j| of the subspaces' bases, both with columns of unit norm.

    An incoherent dictionary and orthogonal subspaces show a diagonal and nothing beside it.

    Args:
        model: any CRATE.
        layers: indices of the layers to show, by default the first, the middle and the last.

    Raises:
        IndexError: if the model has no such layer.
    """
    attentions = [module for module in model.modules() if isinstance(module, CrateSubspaceAttention)]
    istas = [module for module in model.modules() if isinstance(module, CrateISTA)]
    layers = sorted({0, len(istas) // 2, len(istas) - 1}) if layers is None else layers
    figure = Figure(figsize=(3.2 * len(layers) + 0.8, 6.2), layout="constrained")
    panels = figure.subplots(2, len(layers), squeeze=False)
    for column, layer in enumerate(layers):
        # Rows of `subspace_proj.weight` are the columns of [U_1 … U_K].
        for row, (vectors, symbol) in enumerate(
            ((istas[layer].weight.T, "|D^\\top D|"), (attentions[layer].subspace_proj.weight, "|U_i^\\top U_j|"))
        ):
            vectors = F.normalize(vectors.float(), dim=-1)
            axes = panels[row, column]
            image = axes.imshow((vectors @ vectors.T).abs().numpy(force=True), vmin=0, vmax=1, cmap="magma")
            axes.set_title(f"${symbol}$, layer {layer % len(istas) + 1}", fontsize=11)
            ticks = np.arange(0, len(vectors) + 1, attentions[layer].head_dim if row else len(vectors))
            axes.set_xticks(ticks - 0.5, [])
            axes.set_yticks(ticks - 0.5, [])
    figure.colorbar(image, ax=panels, shrink=0.6)
    return figure


@torch.no_grad()
def plot_attention_maps(
    model: CratePreTrainedModel, pixel_values: torch.Tensor, layer: int = -1, heads: Sequence[int] | None = None
) -> Figure:
    """How much each head's class token attends to each patch, over the image.

    Args:
        model: any CRATE.
        pixel_values: one image, `(channels, height, width)`.
        layer: index of the layer.
        heads: indices of the heads, by default all of them.

    Raises:
        IndexError: if the model has no such layer or head.
    """
    with record_layers(model) as states:
        model(pixel_values=pixel_values[None].to(model.device, model.dtype))
    subspaces = states[layer].projections[0].float()
    # Row of the class token alone; the other rows are not needed.
    scores = subspaces[:, :1] @ subspaces.mT * subspaces.shape[-1] ** -0.5
    maps = scores.softmax(-1)[:, 0, 1:]
    patch_height, patch_width = model.config.patch_shape
    height, width = pixel_values.shape[-2:]
    maps = maps.unflatten(-1, (height // patch_height, width // patch_width)).numpy(force=True)

    heads = range(len(maps)) if heads is None else heads
    image = pixel_values.float().movedim(0, -1).numpy(force=True)
    image = (image - image.min()) / max(np.ptp(image), 1e-12)
    grey = image.mean(-1)
    figure = Figure(figsize=(2.2 * (len(heads) + 1), 2.5), layout="constrained")
    panels = figure.subplots(1, len(heads) + 1)
    panels[0].imshow(image if image.shape[-1] == 3 else grey, cmap="gray")
    panels[0].set_title("image", fontsize=11)
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    for axes, head in zip(panels[1:], heads, strict=True):
        axes.imshow(grey, cmap="gray", alpha=0.5)
        axes.imshow(maps[head], cmap="magma", alpha=0.7, extent=extent, interpolation="bilinear")
        axes.set_title(f"head {head % len(maps) + 1}", fontsize=11)
    for axes in panels:
        axes.set_axis_off()
    return figure

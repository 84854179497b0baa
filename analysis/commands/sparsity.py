# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Share of non-zero activations, and of their non-zero derivatives, in each MLP layer of any model on images: a table,
a figure, and beside the figure the numbers as JSON."""

import argparse
from collections.abc import Mapping

import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from sparsight.analysis.commands.common import add_common_options, measure_models
from sparsight.analysis.sparsity import ActivationSparsity, SparsityMeter
from sparsight.modeling.files import write_json


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command `sparsity`."""
    add_common_options(parser, output="sparsity.png")


def run(args: argparse.Namespace) -> None:
    """Measure, print the table, and write the figure and the numbers."""
    from sparsight.analysis.plots import plot_sparsity, save_figure

    found = measure_models(args, measure)
    print(format_table(found))
    shares = {name: list(sparsity.nonzero_share_per_layer.values()) for name, sparsity in found.items()}
    save_figure(plot_sparsity(shares), args.output)
    print(f"figure: {args.output}")
    numbers = args.output.with_suffix(".json")
    write_json(numbers, {name: sparsity.to_results() for name, sparsity in found.items()})
    print(f"numbers: {numbers}")


@torch.no_grad()
def measure(model: PreTrainedModel, loader: DataLoader[torch.Tensor]) -> ActivationSparsity:
    """The activation sparsity of `model` on batches of images, `(batch, channels, height, width)`.

    Raises:
        ValueError: if the model has no MLP whose activation is a module.
    """
    with SparsityMeter(model) as meter:
        for pixel_values in loader:
            model(pixel_values=pixel_values.to(model.device, model.dtype))
    return meter.compute()


def format_table(found: Mapping[str, ActivationSparsity]) -> str:
    """The shares of several checkpoints, one line a layer and one for all layers together."""
    width = max(len("checkpoint"), *map(len, found))
    lines = [f"{'checkpoint':{width}}  layer  non-zero activations  non-zero derivatives"]
    for name, sparsity in found.items():
        layers = zip(
            sparsity.nonzero_share_per_layer.values(),
            sparsity.derivative_nonzero_share_per_layer.values(),
            strict=True,
        )
        rows = [(str(number), *shares) for number, shares in enumerate(layers, start=1)]
        rows.append(("all", sparsity.nonzero_share, sparsity.derivative_nonzero_share))
        lines += [
            f"{name:{width}}  {layer:>5}  {share:20.2%}  {derivative:20.2%}" for layer, share, derivative in rows
        ]
    return "\n".join(lines)

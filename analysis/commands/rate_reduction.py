# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Compression rate R^c and sparsity from layer to layer, of CRATE or any vision transformer: a table and a figure
(arXiv 2306.01129, figures 3 and 4)."""

import argparse
from collections.abc import Mapping, Sequence

from sparsight.analysis.commands.common import add_common_options, measure_models, positive_float
from sparsight.analysis.rate_reduction import LayerRates, layerwise_rate_reduction


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command `rate-reduction`."""
    add_common_options(parser, output="rate_reduction.png")
    parser.add_argument(
        "--eps", type=positive_float, default=0.1, help="precision ε of the rate (default: %(default)s)"
    )
    parser.add_argument(
        "--projection",
        choices=("query", "key", "value"),
        default="value",
        help="which of a vision transformer's projections spans the subspaces (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    """Measure, print the table, and write the figure."""
    from sparsight.analysis.plots import save_figure
    from sparsight.analysis.whitebox_plots import plot_rate_reduction

    rates = measure_models(
        args, lambda model, loader: layerwise_rate_reduction(model, loader, args.eps, args.projection)
    )
    print(format_table(rates))
    save_figure(plot_rate_reduction(rates), args.output)
    print(f"figure: {args.output}")


def format_table(rates: Mapping[str, Sequence[LayerRates]]) -> str:
    """The measurements of several checkpoints, one line a layer."""
    width = max(len("checkpoint"), *map(len, rates))
    lines = [f"{'checkpoint':{width}}  layer  R^c [nats]          non-zero share"]
    for name, layers in rates.items():
        lines += [
            f"{name:{width}}  {number:5}  {layer.compression_rate_mean:9.3f} ± {layer.compression_rate_std:7.3f}"
            f"  {layer.nonzero_share_mean:6.2%} ± {layer.nonzero_share_std:6.2%}"
            for number, layer in enumerate(layers, start=1)
        ]
    return "\n".join(lines)

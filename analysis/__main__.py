# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Measurements from the command line.

python -m sparsight.analysis rate-reduction MODEL [MODEL ...] --dataset digits --output rate_reduction.png
"""

import argparse
import sys
from pathlib import Path

from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageClassification, set_seed

import sparsight  # noqa: F401  registers the families
from sparsight.analysis.data import digits_images, folder_images, image_loader
from sparsight.analysis.rate_reduction import LayerRates, layerwise_rate_reduction


def rate_reduction_table(rates: dict[str, list[LayerRates]]) -> str:
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


def rate_reduction(args: argparse.Namespace) -> None:
    from sparsight.analysis.plots import save_figure
    from sparsight.analysis.whitebox_plots import plot_rate_reduction

    images = digits_images()[0] if args.dataset == "digits" else folder_images(args.dataset)
    images = images[: args.num_images]
    rates = {}
    for path in args.models:
        loader = image_loader(images, AutoImageProcessor.from_pretrained(path), args.batch_size)
        model = AutoModelForImageClassification.from_pretrained(path, device_map=args.device)
        rates[path] = layerwise_rate_reduction(model, loader, args.eps, args.projection)
        if args.random_init:
            set_seed(0)
            model = AutoModelForImageClassification.from_config(AutoConfig.from_pretrained(path)).to(args.device)
            rates[f"{path} (random)"] = layerwise_rate_reduction(model, loader, args.eps, args.projection)
    print(rate_reduction_table(rates))
    save_figure(plot_rate_reduction(rates), args.output)
    print(f"figure: {args.output}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sparsight.analysis", description="Measurements of trained models."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser(
        "rate-reduction", help="compression rate and sparsity by layer, of CRATE or any vision transformer"
    )
    command.add_argument("models", nargs="+", metavar="MODEL", help="folder or Hub name of an image classifier")
    command.add_argument("--dataset", default="digits", help='"digits", or a folder of images (default: %(default)s)')
    command.add_argument("--output", type=Path, default="rate_reduction.png", help="figure (default: %(default)s)")
    command.add_argument("--num_images", type=int, default=512, help="the first so many (default: %(default)s)")
    command.add_argument("--batch_size", type=int, default=32, help="(default: %(default)s)")
    command.add_argument("--eps", type=float, default=0.1, help="precision ε of the rate (default: %(default)s)")
    command.add_argument(
        "--projection",
        choices=("query", "key", "value"),
        default="value",
        help="which of a vision transformer's projections spans the subspaces (default: %(default)s)",
    )
    command.add_argument("--random_init", action="store_true", help="measure each model at random initialisation too")
    command.add_argument("--device", default="cpu", help="(default: %(default)s)")
    command.set_defaults(run=rate_reduction)
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        args.run(args)
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Converts CRATE checkpoints between the authors' layout and transformers'.

python -m sparsight.modeling.convert_crate --checkpoint crate_base.pth --num_attention_heads 12 --output crate-base
python -m sparsight.modeling.convert_crate --checkpoint crate-base --output crate_base.pth --reverse
"""

import argparse
import sys
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig
from transformers.utils import logging

from sparsight.configuration.configuration_crate import CrateConfig
from sparsight.configuration.console import ConsoleParser
from sparsight.configuration.messages import single_line
from sparsight.modeling.crate_checkpoints import (
    ConversionError,
    check_weights,
    config_from_official,
    from_official,
    image_processor_for,
    listed,
    load_official_checkpoint,
    to_official,
)
from sparsight.modeling.files import recover, written_beside
from sparsight.modeling.modeling_crate import CrateForImageClassification


def _check_output(output: Path, checkpoint: Path, overwrite: bool) -> None:
    if output.is_dir():
        if not any(output.iterdir()):
            return
        if checkpoint.resolve().is_relative_to(output.resolve()):
            raise ConversionError(f"--output {output}: holds the checkpoint itself; give another folder")
        if overwrite and not (output / "config.json").is_file():
            raise ConversionError(
                f"--output {output}: holds no config.json, so it is not a model's folder and --overwrite leaves it "
                "alone; give another folder"
            )
    if output.exists() and not overwrite:
        raise ConversionError(f"--output {output}: exists already; give another path, or --overwrite to replace it")


def convert(args: argparse.Namespace) -> str:
    """Converts from the authors' layout to a folder for `from_pretrained`; returns what was done."""
    if args.num_attention_heads is None:
        raise ConversionError("--num_attention_heads: missing; give it, as it cannot be read off the checkpoint")
    if args.output.exists() and not args.output.is_dir():
        raise ConversionError(f"--output {args.output}: is a file; give a folder")
    state_dict = load_official_checkpoint(args.checkpoint)
    overrides = {name: getattr(args, name) for name in ("pooling", "ista_step_size", "ista_lambda")}
    config = config_from_official(state_dict, args.num_attention_heads, args.image_size, args.patch_size, **overrides)
    model = from_official(state_dict, config)
    with written_beside(args.output) as folder:
        model.save_pretrained(folder)
        image_processor_for(config).save_pretrained(folder)
    return f"{args.output}: {model.num_parameters():,} parameters, {config.num_labels:,} classes"


def convert_back(args: argparse.Namespace) -> str:
    """Converts from a folder of `save_pretrained` to a file in the authors' layout; returns what was done."""
    if args.output.suffix not in (".pth", ".safetensors"):
        raise ConversionError(f"--output {args.output}: with --reverse, give a file that ends in .pth or .safetensors")
    if args.output.is_dir():
        raise ConversionError(f"--output {args.output}: is a folder; with --reverse, give a file")
    if not (args.checkpoint / "config.json").is_file():
        raise ConversionError(f"--checkpoint {args.checkpoint}: with --reverse, give a folder that has a config.json")
    try:
        config = AutoConfig.from_pretrained(args.checkpoint, local_files_only=True, trust_remote_code=False)
        if not isinstance(config, CrateConfig):
            raise ValueError(f"its model type is {config.model_type}")
        model, info = CrateForImageClassification.from_pretrained(
            args.checkpoint,
            config=config,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
        if missing := info["missing_keys"]:
            raise ValueError(f"it lacks {listed(missing)}")
        if left_over := info["unexpected_keys"]:
            raise ValueError(f"its config.json leaves out {listed(left_over)}")
        if misshapen := info["mismatched_keys"]:
            raise ValueError(f"its config.json has other shapes of {listed(name for name, *_ in misshapen)}")
    except Exception as error:  # of any kind: transformers reads a cut or altered folder until something does not fit
        raise ConversionError(
            f"--checkpoint {args.checkpoint}: is no CRATE classifier ({single_line(error)}); give a folder "
            "that `CrateForImageClassification.save_pretrained` wrote"
        ) from error
    state_dict = to_official(model)
    check_weights(state_dict)
    with written_beside(args.output) as file:
        if args.output.suffix == ".safetensors":
            save_file(state_dict, file)
        else:
            torch.save({"state_dict": state_dict}, file)
    config = model.config
    return (
        f"{args.output}: {config.num_attention_heads} heads of {config.head_dim}, step size {config.ista_step_size}, "
        f"lambda {config.ista_lambda}, pooling {config.pooling}, which this layout does not record"
    )


def _parser(prog: str) -> ConsoleParser:
    parser = ConsoleParser(prog=prog, description=__doc__.partition("\n")[0])
    parser.add_argument("--checkpoint", type=Path, required=True, help="official file; with --reverse, a folder")
    parser.add_argument("--output", type=Path, required=True, help="folder to write; with --reverse, a file")
    parser.add_argument("--num_attention_heads", type=int, help="K; not needed with --reverse")
    parser.add_argument("--ista_step_size", type=float, default=0.1, help="η (default: %(default)s)")
    parser.add_argument("--ista_lambda", type=float, default=0.1, help="λ (default: %(default)s)")
    parser.add_argument("--pooling", choices=("cls", "mean"), default="cls", help="(default: %(default)s)")
    size = {"type": int, "nargs": 2, "metavar": ("HEIGHT", "WIDTH")}
    parser.add_argument("--image_size", **size, help="in pixels, where the images are not square")
    parser.add_argument("--patch_size", **size, help="in pixels, where the patches are not square")
    parser.add_argument("--overwrite", action="store_true", help="replace what lies at --output")
    parser.add_argument("--reverse", action="store_true", help="from transformers' layout to the authors'")
    return parser


def main(argv: list[str] | None = None, prog: str = "python -m sparsight.modeling.convert_crate") -> int:
    parser = _parser(prog)
    args = parser.parse_args(argv)
    for name in ("image_size", "patch_size"):
        if (size := getattr(args, name)) is not None:
            setattr(args, name, tuple(size))
    # What goes to stderr is one line about what is wrong.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    try:
        recover(args.output)
        _check_output(args.output, args.checkpoint, args.overwrite)
        print(convert_back(args) if args.reverse else convert(args))
    except (ConversionError, OSError) as error:
        return parser.report(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())

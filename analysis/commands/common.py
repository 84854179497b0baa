# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What the commands share: the options, their checks, and the models with the images that they are measured on."""

import argparse
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from huggingface_hub.errors import HFValidationError, StrictDataclassError
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError
from torch.utils.data import DataLoader
from transformers import (
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    BaseImageProcessor,
    PreTrainedModel,
    set_seed,
)

from sparsight.analysis.data import digits_images, folder_images, image_loader
from sparsight.configuration.messages import single_line


Measurement = TypeVar("Measurement")


# ---------------------------------------------------------------------------------------------------------------------
# Options
# ---------------------------------------------------------------------------------------------------------------------


def add_common_options(parser: argparse.ArgumentParser, output: str, random_init: bool = True) -> None:
    """Add MODEL and the options that all measurements on images have.

    Args:
        output: default of `--output`, a figure.
        random_init: whether the measurement says something of a model before its training.
    """
    parser.add_argument(
        "models", nargs="+", type=model_name, metavar="MODEL", help="folder or Hub name of a model on images"
    )
    parser.add_argument(
        "--dataset", type=dataset, default="digits", help='"digits", or a folder of images (default: %(default)s)'
    )
    parser.add_argument(
        "--num_images", type=positive_int, default=512, help="the first so many of them (default: %(default)s)"
    )
    parser.add_argument(
        "--batch_size", type=positive_int, default=32, help="images in one forward pass (default: %(default)s)"
    )
    parser.add_argument("--device", type=device, default="cpu", help="such as cuda:0 (default: %(default)s)")
    parser.add_argument(
        "--output", type=figure_path, default=output, help="figure to write, by its ending (default: %(default)s)"
    )
    parser.set_defaults(random_init=False)
    if random_init:
        parser.add_argument(
            "--random_init", action="store_true", help="measure each model at random initialization too"
        )


def positive_int(text: str) -> int:
    """A whole number of at least 1, as the `type` of an option."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def positive_float(text: str) -> float:
    """A number above 0, as the `type` of an option."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def model_name(text: str) -> str:
    """A folder of `save_pretrained`, or what can be a name on the Hub, as the `type` of an option."""
    if Path(text).is_dir():
        if not (Path(text) / "config.json").is_file():
            raise argparse.ArgumentTypeError(f"{text} has no config.json; give a folder that `save_pretrained` wrote")
        return text
    try:
        validate_repo_id(text)
    except HFValidationError:
        raise argparse.ArgumentTypeError(f"there is no folder {text}; give one, or a name on the Hub") from None
    return text


def dataset(text: str) -> str:
    """`digits` or a folder, as the `type` of an option."""
    if text == "digits":
        if importlib.util.find_spec("sklearn") is None:
            raise argparse.ArgumentTypeError(
                "digits come with scikit-learn, which is missing; `pip install scikit-learn`, or give a folder"
            )
    elif not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f'there is no folder {text}; give one of images, or "digits"')
    return text


def device(text: str) -> torch.device:
    """A device of this machine, as the `type` of an option."""
    known = ["cpu"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator().type
        known += [kind, *(f"{kind}:{index}" for index in range(torch.accelerator.device_count()))]
    if text not in known:
        raise argparse.ArgumentTypeError(f"there is no device {text!r} here; give one of {', '.join(known)}")
    return torch.device(text)


def figure_path(text: str) -> Path:
    """A file whose ending is a format that matplotlib writes, as the `type` of an option."""
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("figures need matplotlib, which is missing; `pip install matplotlib`")
    from matplotlib.backend_bases import FigureCanvasBase

    path, formats = Path(text), sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix[1:].lower() not in formats:
        raise argparse.ArgumentTypeError(f"{text} has no ending of a figure; give one of .{', .'.join(formats)}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; give a file")
    return path


# ---------------------------------------------------------------------------------------------------------------------
# Models and images
# ---------------------------------------------------------------------------------------------------------------------


def measure_models(
    args: argparse.Namespace, measure: Callable[[PreTrainedModel, DataLoader[torch.Tensor]], Measurement]
) -> dict[str, Measurement]:
    """Measure each model, and where `--random_init` asks for it also one of the same config at random initialization.

    Args:
        args: of a parser that [`add_common_options`] prepared.
        measure: takes a model, in evaluation mode, and the batches of images, `(batch, channels, height, width)`.

    Returns:
        What `measure` returns, by the model's name.

    Raises:
        ValueError: if an image cannot be read, or a model cannot be loaded or measured; it names which.
    """
    images = digits_images()[0] if args.dataset == "digits" else folder_images(args.dataset, args.num_images)
    images = images[: args.num_images]
    found = {}
    for name in args.models:
        model, image_processor, auto_class = _load(name)
        models = {name: model}
        if args.random_init:
            set_seed(0)
            models[f"{name} (random)"] = auto_class.from_config(model.config)
        for label, model in models.items():
            loader = image_loader(images, image_processor, args.batch_size)
            try:
                found[label] = measure(model.to(args.device).eval(), loader)
            except ValueError as error:
                raise ValueError(f"MODEL {label}: cannot be measured ({single_line(error)}); give another") from error
    return found


def _load(name: str) -> tuple[PreTrainedModel, BaseImageProcessor, type]:
    """A model with its image processor, and the Auto class that it is loaded with."""
    try:
        config = AutoConfig.from_pretrained(name)
        is_classifier = type(config) in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
        auto_class = AutoModelForImageClassification if is_classifier else AutoModel
        image_processor = AutoImageProcessor.from_pretrained(name)
        return auto_class.from_pretrained(name, config=config), image_processor, auto_class
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError, StrictDataclassError) as error:
        raise ValueError(
            f"MODEL {name}: cannot be loaded ({single_line(error)}); give the folder or Hub name of a model on images "
            "with its image processor"
        ) from error

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Images to measure a model on."""

import contextlib
import os
import struct
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader
from transformers import BaseImageProcessor

from sparsight.configuration.messages import single_line


def digits_images() -> tuple[list[Image.Image], list[int]]:
    """scikit-learn's 1,797 handwritten digits as 8×8 RGB images, and their classes.

    Raises:
        ImportError: if scikit-learn is not installed.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    # Sixteen grey levels, 0 to 16.
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    return [Image.fromarray(image).convert("RGB") for image in images], digits.target.tolist()


def check_mode(image: Image.Image) -> None:
    """Refuse pixels of 32 bits: no number among them stands for white.

    Raises:
        ValueError: that names the mode.
    """
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode}, 32 bits each, have no defined range; store 8 or 16 bits")


def upright_image(image: Image.Image, mode: str = "RGB") -> Image.Image:
    """The pixels of an opened image, 8 bits each and upright, as transformers' pipelines see them.

    All that reads images reads them so. Sixteen bits are scaled to eight; Pillow's own conversion would cut them off.

    Args:
        image: as `Image.open` gives it, with the orientation that a camera noted in its EXIF data.
        mode: "RGB", or "L" for a single channel.

    Raises:
        ValueError: if the pixels have no defined range.
        OSError: if the file is cut. Pillow raises other types for other faults.
    """
    check_mode(image)
    image.load()
    # Damaged EXIF data may stand beside sound pixels.
    with contextlib.suppress(struct.error, KeyError, SyntaxError, TypeError, ValueError, ZeroDivisionError):
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        image = Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
    return image.convert(mode)


def image_paths(folder: str | Path) -> list[Path]:
    """The image files below `folder` by their endings, hidden ones left out, in the order of their paths."""
    readable = {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    found = []
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        found += [
            Path(parent, name)
            for name in files
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in readable
        ]
    return sorted(found)


def folder_images(folder: str | Path, limit: int | None = None) -> list[Image.Image]:
    """The images below `folder`, in the order of their paths, upright and as RGB.

    Args:
        limit: read the first so many only.

    Raises:
        ValueError: if there are none, or one of them cannot be read; it names which.
    """
    paths = image_paths(folder)
    if not paths:
        raise ValueError(f"there are no images below {folder}; give a folder that has some")
    return [_read_image(path) for path in paths[:limit]]


def _read_image(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            return upright_image(image)
    # What Pillow raises for files that are cut, of another kind, broken, or suspiciously large.
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: cannot be read as an image ({single_line(error)}); repair or remove it") from error


def image_loader(
    images: list[Image.Image], image_processor: BaseImageProcessor, batch_size: int = 32
) -> DataLoader[torch.Tensor]:
    """Batches of `pixel_values`, `(batch, channels, height, width)`, in the order of the images."""

    def collate(batch: list[Image.Image]) -> torch.Tensor:
        return image_processor(batch, return_tensors="pt")["pixel_values"]

    return DataLoader(images, batch_size=batch_size, collate_fn=collate)

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Images to measure a model on."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
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


def folder_images(folder: str | Path, limit: int | None = None) -> list[Image.Image]:
    """The images below `folder`, in the order of their paths, as RGB.

    Args:
        limit: read the first so many only.

    Raises:
        ValueError: if there are none, or one of them cannot be read; it names which.
    """
    readable = {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    paths = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in readable and path.is_file())
    if not paths:
        raise ValueError(f"there are no images below {folder}; give a folder that has some")
    return [_read_image(path) for path in paths[:limit]]


def _read_image(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
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

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""From the name of a data set to labelled images: embedded digits, an image folder, or a data set of the Hub."""

import io
import os
import re
from dataclasses import dataclass
from typing import Any, Literal

import datasets
from accelerate.utils import tqdm
from PIL import Image

from sparsight.analysis.data import check_mode, digits_images, upright_image
from sparsight.configuration.messages import single_line
from sparsight.training.command_line.arguments import argument
from sparsight.training.data.image_folders import load_image_folder
from sparsight.training.data.splits import SourceArguments, choose_splits, limit, load_from_hub
from sparsight.training.engine.places import is_here


DIGITS = "digits"


@dataclass
class ImageSource(SourceArguments):
    """Which images there are."""

    dataset: str = argument(
        "'digits' (embedded), a folder in imagefolder layout (train/<class>/<image>, ...), or a data set of the Hub.",
        DIGITS,
    )
    image_column: str | None = argument("Column of the images. Default: the only one that holds images.")
    label_column: str | None = argument("Column of the class labels. Default: the only one that holds class labels.")


@dataclass
class LabelledImages:
    """Training and evaluation images with their class names; images are still encoded."""

    train: datasets.Dataset
    eval: datasets.Dataset
    eval_split: str
    class_names: list[str]

    def in_order_of(self, class_names: list[str]) -> "LabelledImages":
        """The same images, with the labels that `class_names` give to the same classes.

        Raises:
            ValueError: if they are the names of other classes.
        """
        order = _match_names(self.class_names, class_names)
        if order == list(range(len(class_names))):
            return self
        train, evaluation = (_relabel(images, order, class_names) for images in (self.train, self.eval))
        return LabelledImages(train, evaluation, self.eval_split, list(class_names))


def load_images(source: ImageSource) -> LabelledImages:
    """Load and check the images that the arguments name.

    Raises:
        ValueError: if the data set is not there, lacks an image or label column, or holds an unreadable file.
    """
    train, evaluation, eval_split = choose_splits(_load_splits(source), source)
    train = _select_columns(train, source)
    class_names = train.features["label"].names
    if eval_split is None:
        parts = train.train_test_split(test_size=0.1, stratify_by_column="label", seed=0)
        train, evaluation, eval_split = parts["train"], parts["test"], f"a tenth of {source.train_split}"
    else:
        evaluation = _select_columns(evaluation, source)
        if evaluation.features["label"].names != class_names:
            raise ValueError(f"dataset: {eval_split} and {source.train_split} have other classes; make them the same")
    train, evaluation = limit(train, evaluation, source)
    if os.path.isdir(source.dataset):
        for images in (train, evaluation):
            _check_files(images)
    return LabelledImages(train, evaluation, eval_split, class_names)


def _load_splits(source: ImageSource) -> datasets.DatasetDict:
    name = source.dataset
    if name == DIGITS:
        return _load_digits()
    if is_here("dataset", name, "folder", f"one, {DIGITS!r}, or a data set of the Hub"):
        return load_image_folder(name)
    return load_from_hub(source, DIGITS, "folder")


def _load_digits() -> datasets.DatasetDict:
    """scikit-learn's 1,797 handwritten digits, 8×8 pixels in RGB; a fifth of each class is the test split."""
    images, labels = digits_images()
    class_names = [str(label) for label in sorted(set(labels))]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=class_names)})
    data = datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)
    return data.train_test_split(test_size=0.2, stratify_by_column="label", seed=0)


def _select_columns(data: datasets.Dataset, source: ImageSource) -> datasets.Dataset:
    """Columns `image` (still encoded) and `label` (class labels) of `data`."""
    columns = ", ".join(data.column_names)
    chosen = {}
    for kind, feature in (("image", datasets.Image), ("label", datasets.ClassLabel)):
        name = getattr(source, f"{kind}_column")
        if name is None:
            of_kind = [column for column, value in data.features.items() if isinstance(value, feature)]
            if not of_kind and kind == "label" and "label" in data.column_names:
                of_kind = ["label"]
            if len(of_kind) != 1:
                found = f"several {kind} columns" if of_kind else f"no {kind} column"
                raise ValueError(f"{kind}_column: the data set has {found}; name one of its columns: {columns}")
            name = of_kind[0]
        elif name not in data.column_names:
            raise ValueError(f"{kind}_column: there is no column {name!r}; the data set has {columns}")
        chosen[name] = kind
    data = data.select_columns(list(chosen)).rename_columns(chosen)
    if not isinstance(data.features["label"], datasets.ClassLabel):
        data = data.class_encode_column("label")
    return data.cast_column("image", datasets.Image(decode=False))


def _match_names(own: list[str], others: list[str]) -> list[int]:
    """For each of our own names, where it stands among the others."""
    in_order = list(range(len(others)))
    if len(own) == len(others) and (
        all(map(re.compile(r"LABEL_\d+").fullmatch, others))  # a checkpoint without names
        # Folders of ImageNet are named by the numbers of WordNet, in whose order the classes stand everywhere.
        or (len(own) == 1000 and all(map(re.compile(r"n\d{8}").fullmatch, own)) and own == sorted(own))
    ):
        return in_order
    places = {name: place for place, name in enumerate(others)}
    places |= {name: place for place, (name, other) in enumerate(zip(own, others, strict=False)) if name == other}
    missing = [name for name in own if name not in places]
    # Two spellings of one class in a hundred, as with ImageNet's, are taken for the same where they stand alike.
    if len(own) == len(others) and len(missing) <= len(own) // 100:
        order = [places.get(name, place) for place, name in enumerate(own)]
        if sorted(order) == in_order:
            return order
    names = ", ".join((missing or own)[:5])
    raise ValueError(
        f"dataset: the checkpoint's head is for other classes ({', '.join(others[:5])}, …) than {names}; give a "
        "checkpoint that was trained on them (training/train_image_classification.py trains a new head)"
    )


def _relabel(images: datasets.Dataset, order: list[int], class_names: list[str]) -> datasets.Dataset:
    labels = [order[label] if label >= 0 else label for label in images["label"]]
    return images.remove_columns("label").add_column("label", labels, feature=datasets.ClassLabel(names=class_names))


def _check_files(images: datasets.Dataset) -> None:
    """Read every file's header, so that a bad file ends the run before it begins rather than in its middle."""
    column = images.select_columns("image")
    for row in tqdm(column, desc="checking images", leave=False, disable=len(column) < 1000):
        image = open_image(row["image"])
        try:
            check_mode(image)
            image.verify()
        except Exception as error:  # Pillow's decoders raise many types
            raise _unreadable(row["image"], error) from error


def _unreadable(encoded: dict[str, Any], error: Exception) -> ValueError:
    place = encoded.get("path") or "an image of the data set"
    return ValueError(f"dataset: cannot read {place} ({single_line(error)}); remove or replace it")


def open_image(encoded: dict[str, Any]) -> Image.Image:
    """An image whose pixels are not read yet.

    Args:
        encoded: `bytes` and `path` of an image, one of them possibly None.

    Raises:
        ValueError: with its path, if it is no image.
    """
    try:
        return Image.open(io.BytesIO(encoded["bytes"]) if encoded["bytes"] is not None else encoded["path"])
    except OSError as error:
        raise _unreadable(encoded, error) from error


def decode_image(encoded: dict[str, Any], mode: Literal["L", "RGB"]) -> Image.Image:
    """As [`open_image`], with the pixels read, upright and converted."""
    image = open_image(encoded)
    try:
        return upright_image(image, mode)
    except (OSError, SyntaxError, ValueError) as error:
        raise _unreadable(encoded, error) from error

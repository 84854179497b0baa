# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Labelled images for the scripts: embedded digits, an image folder, or a data set of the Hub."""

import io
import os
from dataclasses import dataclass
from typing import Any, Literal

import datasets
import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import tqdm
from PIL import Image
from timm.data import create_transform
from torch.utils.data import DataLoader, Dataset
from transformers import BaseImageProcessor, PreTrainedConfig, ViTImageProcessor

from sparsight.analysis.data import digits_images
from sparsight.training.arguments import LoopArguments, UsageError, argument, require, single_line
from sparsight.training.batches import EpochBatches, make_training_loader
from sparsight.training.seeding import derive_seed, seed_generators


@dataclass
class ImageArguments:
    """Data set and augmentation."""

    dataset: str = argument(
        "'digits' (embedded), a folder in imagefolder layout (train/<class>/<image>, ...), or a data set of the Hub.",
        "digits",
    )
    dataset_config: str | None = argument("Configuration name of a data set of the Hub.")
    train_split: str = argument("Split to train on.", "train")
    eval_split: str | None = argument(
        "Split to evaluate on. Default: validation or test, whichever there is, else a tenth held out of training."
    )
    image_column: str | None = argument("Column of the images. Default: the only one that holds images.")
    label_column: str | None = argument("Column of the class labels. Default: the only one that holds class labels.")
    max_train_samples: int = argument("Train on the first so many examples only; 0 takes all.", 0)
    max_eval_samples: int = argument("Evaluate on the first so many examples only; 0 takes all.", 0)
    image_mean: list[float] = argument("Mean to subtract, one of all channels or one each.", [0.5])
    image_std: list[float] = argument("Standard deviation to divide by, one of all channels or one each.", [0.5])
    crop_pct: float = argument("Evaluate on the central crop of this share of the shorter side; 1 takes all.", 1.0)
    augmentation: bool = argument("Augment training images; without, they are treated as in evaluation.", True)
    crop_scale: list[float] = argument("Range of the random crop's share of the area.", [0.08, 1.0])
    crop_ratio: list[float] = argument("Range of the random crop's aspect ratio.", [0.75, 4 / 3])
    horizontal_flip: float = argument("Probability of a horizontal flip.", 0.5)
    color_jitter: float = argument("Strength of color jitter; unused where --auto_augment is given.", 0.0)
    auto_augment: str | None = argument("timm's name of an augmentation policy, such as rand-m9-mstd0.5.")
    random_erasing: float = argument("Probability of random erasing.", 0.0)
    repeated_augmentation: int = argument("Versions of each image in an epoch of as many images.", 1)
    mixup: float = argument("Alpha of mixup; 0 is off.", 0.0)
    cutmix: float = argument("Alpha of cutmix; 0 is off.", 0.0)


@dataclass
class LabelledImages:
    """Training and evaluation images with their class names; images are still encoded."""

    train: datasets.Dataset
    eval: datasets.Dataset
    eval_split: str
    class_names: list[str]


def load_images(arguments: ImageArguments) -> LabelledImages:
    """
    Raises:
        UsageError: if the data set is not there, lacks an image or label column, or holds an unreadable file.
    """
    splits = _load_splits(arguments)
    require(
        arguments.train_split in splits,
        "train_split",
        f"{arguments.dataset} has no split {arguments.train_split!r}; it has {', '.join(splits)}",
    )
    train = _select_columns(splits[arguments.train_split], arguments)
    class_names = train.features["label"].names
    eval_split = arguments.eval_split or next((s for s in ("validation", "valid", "val", "test") if s in splits), None)
    if eval_split is None:
        parts = train.train_test_split(test_size=0.1, stratify_by_column="label", seed=0)
        train, evaluation, eval_split = parts["train"], parts["test"], f"a tenth of {arguments.train_split}"
    else:
        require(
            eval_split in splits,
            "eval_split",
            f"{arguments.dataset} has no split {eval_split!r}; it has {', '.join(splits)}",
        )
        evaluation = _select_columns(splits[eval_split], arguments)
        if evaluation.features["label"].names != class_names:
            raise UsageError(
                f"--dataset: {eval_split} and {arguments.train_split} have other classes; make them the same"
            )
    if arguments.max_train_samples > 0:
        train = train.select(range(min(arguments.max_train_samples, len(train))))
    if arguments.max_eval_samples > 0:
        evaluation = evaluation.select(range(min(arguments.max_eval_samples, len(evaluation))))
    if os.path.isdir(arguments.dataset):
        for images in (train, evaluation):
            _check_files(images)
    return LabelledImages(train, evaluation, eval_split, class_names)


def _load_splits(arguments: ImageArguments) -> datasets.DatasetDict:
    name = arguments.dataset
    if name == "digits":
        return _load_digits()
    if os.path.isdir(name):
        try:
            return datasets.load_dataset("imagefolder", data_dir=name)
        except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
            raise UsageError(
                f"--dataset: no images in {name} ({single_line(error)}); lay it out as train/<class>/<image>"
            ) from error
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UsageError(f"--dataset: there is no folder {name}; give one, 'digits', or a data set of the Hub")
    try:
        return datasets.load_dataset(name, arguments.dataset_config)
    except Exception as error:  # the loader of a data set may raise anything
        raise UsageError(
            f"--dataset: {name!r} is neither 'digits', a folder here, nor a data set that the Hub gave "
            f"({single_line(error)})"
        ) from error


def _load_digits() -> datasets.DatasetDict:
    """scikit-learn's 1,797 handwritten digits, 8×8 pixels in RGB; a fifth of each class is the test split."""
    images, labels = digits_images()
    class_names = [str(label) for label in sorted(set(labels))]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=class_names)})
    data = datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)
    return data.train_test_split(test_size=0.2, stratify_by_column="label", seed=0)


def _select_columns(data: datasets.Dataset, arguments: ImageArguments) -> datasets.Dataset:
    """Columns `image` (still encoded) and `label` (class labels) of `data`."""
    columns = ", ".join(data.column_names)
    chosen = {}
    for kind, feature in (("image", datasets.Image), ("label", datasets.ClassLabel)):
        name = getattr(arguments, f"{kind}_column")
        if name is None:
            of_kind = [column for column, value in data.features.items() if isinstance(value, feature)]
            if not of_kind and kind == "label" and "label" in data.column_names:
                of_kind = ["label"]
            if len(of_kind) != 1:
                found = f"several {kind} columns" if of_kind else f"no {kind} column"
                raise UsageError(f"--{kind}_column: the data set has {found}; name one of its columns: {columns}")
            name = of_kind[0]
        elif name not in data.column_names:
            raise UsageError(f"--{kind}_column: there is no column {name!r}; the data set has {columns}")
        chosen[name] = kind
    data = data.select_columns(list(chosen)).rename_columns(chosen)
    if not isinstance(data.features["label"], datasets.ClassLabel):
        data = data.class_encode_column("label")
    return data.cast_column("image", datasets.Image(decode=False))


def _check_files(images: datasets.Dataset) -> None:
    """Read every file's header, so that a bad file ends the run before it begins rather than in its middle."""
    column = images.select_columns("image")
    for row in tqdm(column, desc="checking images", leave=False, disable=len(column) < 1000):
        try:
            open_image(row["image"]).verify()
        except UsageError:
            raise
        except Exception as error:  # Pillow's decoders raise many types
            raise _unreadable(row["image"], error) from error


def _unreadable(encoded: dict[str, Any], error: Exception) -> UsageError:
    place = encoded.get("path") or "an image of the data set"
    return UsageError(f"--dataset: cannot read {place} ({single_line(error)}); remove or replace it")


def open_image(encoded: dict[str, Any]) -> Image.Image:
    """
    Args:
        encoded: `bytes` and `path` of an image, one of them possibly None.

    Raises:
        UsageError: with its path, if it is no image.
    """
    try:
        return Image.open(io.BytesIO(encoded["bytes"]) if encoded["bytes"] is not None else encoded["path"])
    except OSError as error:
        raise _unreadable(encoded, error) from error


def decode_image(encoded: dict[str, Any], mode: Literal["L", "RGB"]) -> Image.Image:
    """As [`open_image`], with the pixels read and converted."""
    image = open_image(encoded)
    try:
        return image.convert(mode)
    except (OSError, SyntaxError, ValueError) as error:
        raise _unreadable(encoded, error) from error


def make_image_processor(config: PreTrainedConfig, arguments: ImageArguments) -> ViTImageProcessor:
    """The image processor that belongs to a model trained from scratch; it goes into the checkpoint.

    Raises:
        UsageError: if mean or standard deviation do not fit the channels.
    """
    height, width = image_size(config)
    normalization = {}
    for name in ("image_mean", "image_std"):
        values = getattr(arguments, name)
        fits = len(values) in (1, config.num_channels)
        require(fits, name, f"{len(values)} values for {config.num_channels} channels; give one, or one a channel")
        normalization[name] = values * config.num_channels if len(values) == 1 else values
    if arguments.crop_pct == 1:
        return ViTImageProcessor(size={"height": height, "width": width}, **normalization)
    return ViTImageProcessor(
        size={"shortest_edge": round(min(height, width) / arguments.crop_pct)},
        do_center_crop=True,
        crop_size={"height": height, "width": width},
        **normalization,
    )


def image_size(config: PreTrainedConfig) -> tuple[int, int]:
    """Height and width of the images a model takes."""
    size = config.image_size
    return (size, size) if isinstance(size, int) else tuple(size)


class TrainingImages(Dataset):
    """Augmented training images by (epoch, position in the epoch, index).

    The augmentation of an image is a function of the seed, the epoch and its position alone. So it is the same for any
    number of workers and processes, and after resuming.
    """

    def __init__(self, images: datasets.Dataset, config: PreTrainedConfig, processor, arguments: ImageArguments, seed):
        self.images = images
        self.mode = "L" if config.num_channels == 1 else "RGB"
        self.seed = seed
        self.transform = create_transform(
            image_size(config),
            is_training=True,
            no_aug=not arguments.augmentation,
            scale=arguments.crop_scale,
            ratio=arguments.crop_ratio,
            hflip=arguments.horizontal_flip,
            color_jitter=arguments.color_jitter or None,
            auto_augment=arguments.auto_augment,
            interpolation="bicubic",
            re_prob=arguments.random_erasing,
            re_mode="pixel",
            mean=tuple(processor.image_mean),
            std=tuple(processor.image_std),
        )

    def __getitem__(self, key: tuple[int, int, int]) -> tuple[torch.Tensor, int]:
        epoch, position, index = key
        row = self.images[index]
        # The training loop seeds its own steps, so nothing has to be put back.
        seed_generators(derive_seed(self.seed, epoch, position))
        return self.transform(decode_image(row["image"], self.mode)), row["label"]


def make_train_loader(
    images: TrainingImages, accelerator: Accelerator, loop: LoopArguments, repeats: int = 1
) -> DataLoader:
    """Batches `{"pixel_values", "labels"}`, each split over the processes; see [`EpochBatches`].

    Raises:
        UsageError: if the batch size does not fit the data or the processes.
    """
    require(
        len(images.images) >= loop.batch_size,
        "batch_size",
        f"{loop.batch_size} is more than the {len(images.images)} training images; lower it",
    )
    return make_training_loader(images, EpochBatches(images.images, loop, repeats), _collate, accelerator, loop)


def _collate(examples: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
    pixel_values, labels = zip(*examples, strict=True)
    return {"pixel_values": torch.stack(pixel_values), "labels": torch.tensor(labels)}


class EvalCollator:
    """Encoded images to `{"pixel_values", "labels"}`, through the image processor that the checkpoint carries."""

    def __init__(self, config: PreTrainedConfig, processor: BaseImageProcessor):
        self.mode = "L" if config.num_channels == 1 else "RGB"
        self.processor = processor

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        images = [decode_image(row["image"], self.mode) for row in rows]
        pixel_values = self.processor(images, return_tensors="pt")["pixel_values"]
        return {"pixel_values": pixel_values, "labels": torch.tensor([row["label"] for row in rows])}


def make_eval_loader(
    images: datasets.Dataset, config: PreTrainedConfig, processor, accelerator: Accelerator, loop: LoopArguments
) -> DataLoader:
    """Every image once: whole batches go to the processes in turn, and none is repeated to even them out."""
    loader = DataLoader(
        images,
        batch_size=loop.eval_batch_size,
        collate_fn=EvalCollator(config, processor),
        num_workers=loop.num_workers,
        pin_memory=accelerator.device.type == "cuda",
    )
    return prepare_data_loader(loader, accelerator.device, put_on_device=True, even_batches=False, non_blocking=True)

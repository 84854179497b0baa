# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""From encoded images to batches of pixels: image processors, augmentation, loaders."""

import logging
import math
from dataclasses import dataclass
from typing import Any

import datasets
import torch
from accelerate import Accelerator
from PIL import Image
from timm.data import create_transform
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose
from torchvision.transforms import functional as image_functions
from transformers import AutoImageProcessor, BaseImageProcessor, PreTrainedConfig, ViTImageProcessor
from transformers.utils import cached_file

from sparsight.configuration.messages import single_line
from sparsight.training.command_line.arguments import argument
from sparsight.training.data.images import ImageSource, decode_image
from sparsight.training.engine.batches import EpochBatches, make_evaluation_loader, make_training_loader
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.seeding import derive_seed, seed_generators


logger = logging.getLogger(__name__)


@dataclass
class ImageArguments(ImageSource):
    """Images and their augmentation."""

    image_mean: list[float] = argument("Mean to subtract, one of all channels or one each.", [0.5])
    image_std: list[float] = argument(
        "Standard deviation to divide by, one of all channels or one each.", [0.5], above=0
    )
    crop_pct: float = argument(
        "Evaluate on the central crop of this share of the shorter side; 1 takes all.", 1.0, above=0, at_most=1
    )
    augmentation: bool = argument("Augment training images; without, they are treated as in evaluation.", True)
    crop_scale: list[float] = argument(
        "Range of the random crop's share of the area.", [0.08, 1.0], above=0, at_most=1
    )
    crop_ratio: list[float] = argument("Range of the random crop's aspect ratio.", [0.75, 4 / 3], above=0)
    horizontal_flip: float = argument("Probability of a horizontal flip.", 0.5, at_least=0, at_most=1)
    color_jitter: float = argument("Strength of color jitter; unused where --auto_augment is given.", 0.0, at_least=0)
    auto_augment: str | None = argument("timm's name of an augmentation policy, such as rand-m9-mstd0.5.")
    random_erasing: float = argument("Probability of random erasing.", 0.0, at_least=0, at_most=1)
    repeated_augmentation: int = argument("Versions of each image in an epoch of as many images.", 1, at_least=1)
    mixup: float = argument("Alpha of mixup; 0 is off.", 0.0, at_least=0)
    cutmix: float = argument("Alpha of cutmix; 0 is off.", 0.0, at_least=0)


def make_image_processor(config: PreTrainedConfig, arguments: ImageArguments) -> ViTImageProcessor:
    """The image processor that belongs to a model trained from scratch; it goes into the checkpoint.

    Raises:
        ValueError: if mean or standard deviation do not fit the channels.
    """
    height, width = image_size(config)
    normalization = {}
    for name in ("image_mean", "image_std"):
        values = getattr(arguments, name)
        if len(values) not in (1, config.num_channels):
            raise ValueError(
                f"{name}: {len(values)} values for {config.num_channels} channels; give one, or one a channel"
            )
        normalization[name] = values * config.num_channels if len(values) == 1 else values
    if arguments.crop_pct == 1:
        return ViTImageProcessor(size={"height": height, "width": width}, **normalization)
    return ViTImageProcessor(
        size={"shortest_edge": round(min(height, width) / arguments.crop_pct)},
        do_center_crop=True,
        crop_size={"height": height, "width": width},
        **normalization,
    )


def load_image_processor(name: str, config: PreTrainedConfig) -> BaseImageProcessor:
    """The image processor of a checkpoint; where it has none, the one that its config asks for.

    Raises:
        ValueError: if it has one that cannot be read.
    """
    try:
        return AutoImageProcessor.from_pretrained(name)
    except Exception as error:  # a file that is JSON, but no image processor, raises anything
        if (file := _find_processor_file(name)) is not None:
            raise ValueError(
                f"model_name_or_path: {name} has no image processor in its {file} ({single_line(error)}); repair the "
                "file, or remove it to have the one that the config asks for"
            ) from error
        if not isinstance(error, (OSError, ValueError)):
            raise
        logger.warning(f"{name} has no image processor; taking the one that its config asks for")
        return make_image_processor(config, ImageArguments())


def _find_processor_file(name: str) -> str | None:
    for file in ("preprocessor_config.json", "processor_config.json"):
        found = cached_file(
            name,
            file,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        if found is not None:
            return file
    return None


def image_size(config: PreTrainedConfig) -> tuple[int, int]:
    """Height and width of the images a model takes."""
    size = config.image_size
    return (size, size) if isinstance(size, int) else tuple(size)


class PixelValues:
    """Images of 8 bits to pixel values: rescaled and normalized as far as an image processor does so.

    Where it rescales to [0, 1], the numbers are those of torchvision's `ToTensor` and `Normalize`, to the last bit.
    """

    def __init__(self, processor: BaseImageProcessor):
        self.rescale_factor = processor.rescale_factor if processor.do_rescale else 1.0
        self.normalization = None
        if processor.do_normalize:
            self.normalization = list(processor.image_mean), list(processor.image_std)

    def __call__(self, image: Image.Image | torch.Tensor) -> torch.Tensor:
        """`(channels, height, width)` of an image, or of a tensor of bytes of this shape."""
        pixels = image_functions.pil_to_tensor(image) if isinstance(image, Image.Image) else image
        if math.isclose(self.rescale_factor, 1 / 255):
            pixels = pixels.float().div(255)
        else:
            pixels = pixels.float().mul(self.rescale_factor)
        return image_functions.normalize(pixels, *self.normalization) if self.normalization else pixels


class TrainingImages(Dataset):
    """Augmented training images by (epoch, position in the epoch, index).

    The augmentation of an image is a function of the seed, the epoch and its position alone. So it is the same for any
    number of workers and processes, and after resuming. Augmentation chooses and resizes the pixels; what numbers they
    become is for the image processor to say. Without augmentation all is done as the processor does it.
    """

    def __init__(
        self,
        images: datasets.Dataset,
        config: PreTrainedConfig,
        processor: BaseImageProcessor,
        arguments: ImageArguments,
        seed: int,
    ):
        self.images = images
        self.mode = "L" if config.num_channels == 1 else "RGB"
        self.seed = seed
        self.processor = processor
        self.pixel_values = PixelValues(processor)
        self.transform = self._transform_as_in_evaluation
        if arguments.augmentation:
            on_size, on_colors, (_to_tensor, _normalize, *on_pixel_values) = (
                step.transforms
                for step in create_transform(
                    image_size(config),
                    is_training=True,
                    separate=True,
                    scale=arguments.crop_scale,
                    ratio=arguments.crop_ratio,
                    hflip=arguments.horizontal_flip,
                    color_jitter=arguments.color_jitter or None,
                    auto_augment=arguments.auto_augment,
                    interpolation="bicubic",
                    re_prob=arguments.random_erasing,
                    re_mode="pixel",
                    # The colour of what is left empty where an image is moved.
                    mean=tuple(processor.image_mean or (0.5,) * config.num_channels),
                )
            )
            self.transform = Compose([*on_size, *on_colors, self.pixel_values, *on_pixel_values])

    def _transform_as_in_evaluation(self, image: Image.Image) -> torch.Tensor:
        inputs = self.processor(image, do_rescale=False, do_normalize=False, return_tensors="pt")
        return self.pixel_values(inputs["pixel_values"][0])

    def __getitem__(self, key: tuple[int, int, int]) -> tuple[torch.Tensor, int]:
        epoch, position, index = key
        row = self.images[index]
        # The training loop seeds its own steps, so nothing has to be put back.
        seed_generators(derive_seed(self.seed, epoch, position))
        return self.transform(decode_image(row["image"], self.mode)), row["label"]


def make_train_loader(
    images: TrainingImages, accelerator: Accelerator, loop: LoopArguments, repeats: int = 1
) -> DataLoader:
    """Endless batches `{"pixel_values": (batch, channels, height, width), "labels": (batch,)}`.

    Args:
        repeats: versions of each image in an epoch, see [`EpochBatches`].

    Raises:
        ValueError: if the batch size does not fit the images or the processes.
    """
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
        pixel_values = self.processor(images, return_tensors="pt")["pixel_values"].float()  # bytes, if not rescaled
        return {"pixel_values": pixel_values, "labels": torch.tensor([row["label"] for row in rows])}


def make_eval_loader(
    images: datasets.Dataset,
    config: PreTrainedConfig,
    processor: BaseImageProcessor,
    accelerator: Accelerator,
    loop: LoopArguments,
) -> DataLoader:
    """Batches as in training, of every image once, as the image processor makes them."""
    return make_evaluation_loader(images, EvalCollator(config, processor), accelerator, loop)

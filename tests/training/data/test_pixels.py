# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.transforms import RandomResizedCropAndInterpolation
from torchvision import transforms
from transformers import PreTrainedConfig, ViTImageProcessor

from sparsight import SparseViTConfig
from sparsight.training.data.images import LabelledImages, decode_image
from sparsight.training.data.pixels import (
    ImageArguments,
    TrainingImages,
    image_size,
    load_image_processor,
    make_eval_loader,
    make_image_processor,
    make_train_loader,
)
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.seeding import derive_seed, seed_generators


CONFIG = SparseViTConfig(
    hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, image_size=8, patch_size=4
)
PROCESSOR = make_image_processor(CONFIG, ImageArguments())


def training_images(digits: LabelledImages, seed: int = 0, config: PreTrainedConfig = CONFIG, **fields):
    arguments = ImageArguments(**fields)
    return TrainingImages(digits.train, config, make_image_processor(config, arguments), arguments, seed)


# --- training --------------------------------------------------------------------------------------------------------


def test_versions_of_repeated_augmentation_differ(digits, accelerator):
    images = training_images(digits)
    loader = make_train_loader(images, accelerator, LoopArguments(batch_size=8), repeats=3)
    keys = list(itertools.chain.from_iterable(itertools.islice(loader.batch_sampler, 5)))
    versions = [images[key][0] for key in keys if key[2] == keys[0][2]]
    assert len(versions) == 3
    assert not any(torch.equal(one, two) for one, two in itertools.combinations(versions, 2))


def test_augmentation_depends_on_seed_epoch_and_position_alone(digits):
    images = training_images(digits, seed=3)
    image, label = images[(1, 5, 7)]
    assert label == digits.train[7]["label"]
    torch.manual_seed(99)
    np.random.seed(99)
    torch.testing.assert_close(images[(1, 5, 7)][0], image, rtol=0, atol=0)
    assert not torch.equal(images[(2, 5, 7)][0], image)
    assert not torch.equal(images[(1, 6, 7)][0], image)
    assert not torch.equal(training_images(digits, seed=4)[(1, 5, 7)][0], image)


@pytest.mark.parametrize("fields", [{"auto_augment": "rand-m9"}, {"color_jitter": 0.4, "random_erasing": 0.5}])
def test_batches_are_the_same_for_any_number_of_workers(digits, accelerator, fields):
    images = training_images(digits, **fields)
    batches = [
        list(
            itertools.islice(
                make_train_loader(images, accelerator, LoopArguments(batch_size=8, num_workers=workers)), 7
            )
        )
        for workers in (0, 2)
    ]
    assert batches[0][0]["pixel_values"].shape == (8, 3, 8, 8)
    torch.testing.assert_close(batches[0], batches[1], rtol=0, atol=0)


def test_batches_are_the_images_of_the_order(digits, accelerator):
    images = training_images(digits, augmentation=False)
    loader = make_train_loader(images, accelerator, LoopArguments(batch_size=8))
    for keys, batch in itertools.islice(zip(loader.batch_sampler, loader, strict=True), 7):
        assert batch["labels"].tolist() == [digits.train[index]["label"] for _, _, index in keys]
        expected = torch.stack([images[(0, 0, index)][0] for _, _, index in keys])
        torch.testing.assert_close(batch["pixel_values"], expected, rtol=0, atol=0)


def test_batch_size_must_fit(digits, accelerator):
    with pytest.raises(ValueError, match=r"^batch_size: 64 is more than the 40 training examples; lower it"):
        make_train_loader(training_images(digits), accelerator, LoopArguments(batch_size=64))


def test_without_augmentation_training_sees_what_evaluation_sees(digits, accelerator):
    images = training_images(digits, augmentation=False)
    batch = next(iter(make_eval_loader(digits.train, CONFIG, PROCESSOR, accelerator, LoopArguments())))
    for index in range(5):
        torch.testing.assert_close(images[(0, 0, index)][0], batch["pixel_values"][index], atol=1e-6, rtol=0)


def processor_of(**fields) -> ViTImageProcessor:
    return ViTImageProcessor(**{"size": {"height": 8, "width": 8}, **fields})


SWITCHES = {
    "not normalized": {"do_normalize": False},
    "not rescaled": {"do_rescale": False, "do_normalize": False},
    "normalized as bytes": {"do_rescale": False, "image_mean": [127.0] * 3, "image_std": [60.0] * 3},
    "another factor": {"rescale_factor": 1 / 127.5},
    "no mean": {"do_normalize": False, "image_mean": None, "image_std": None},
    "resampled": {"size": {"height": 5, "width": 5}, "resample": 0},
    "cropped": {"size": {"shortest_edge": 12}, "do_center_crop": True, "crop_size": {"height": 8, "width": 8}},
}


@pytest.mark.parametrize("case", SWITCHES)
def test_training_follows_the_switches_of_the_processor(digits, accelerator, case):
    processor = processor_of(**SWITCHES[case])
    images = TrainingImages(digits.train, CONFIG, processor, ImageArguments(augmentation=False), 0)
    batch = next(iter(make_eval_loader(digits.train, CONFIG, processor, accelerator, LoopArguments())))
    for index in range(5):
        torch.testing.assert_close(images[(0, 0, index)][0], batch["pixel_values"][index], atol=1e-5, rtol=0)


@pytest.mark.parametrize("case", [case for case in SWITCHES if case not in ("resampled", "cropped")])
def test_augmented_images_follow_them_too(digits, case):
    processor = processor_of(**SWITCHES[case])
    # All of the image, so that nothing but the numbers can differ, whatever policy is loaded.
    TrainingImages(digits.train, CONFIG, processor, ImageArguments(auto_augment="rand-m9"), 0)[(0, 0, 3)]
    arguments = ImageArguments(crop_scale=[1.0, 1.0], crop_ratio=[1.0, 1.0], horizontal_flip=0.0)
    found = TrainingImages(digits.train, CONFIG, processor, arguments, 0)[(0, 0, 3)][0]
    image = decode_image(digits.train[3]["image"], "RGB")
    expected = processor(image, return_tensors="pt")["pixel_values"][0].float()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("fields", [{}, {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}])
@pytest.mark.parametrize("augmentation", [False, True])
def test_pixels_are_those_of_torchvision_to_the_last_bit(digits, fields, augmentation):
    """For the processors that are made here: measured results stay what they are."""
    arguments = ImageArguments(augmentation=augmentation, **fields)
    images = TrainingImages(digits.train, CONFIG, make_image_processor(CONFIG, arguments), arguments, 0)
    numbers = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize(arguments.image_mean, arguments.image_std)]
    )
    crop = RandomResizedCropAndInterpolation((8, 8), interpolation="bicubic")
    augment = transforms.Compose([crop, transforms.RandomHorizontalFlip()])
    for index in range(10):
        image = decode_image(digits.train[index]["image"], "RGB")
        seed_generators(derive_seed(0, 2, 1))
        expected = numbers(augment(image) if augmentation else image)
        torch.testing.assert_close(images[(2, 1, index)][0], expected, rtol=0, atol=0)


# --- evaluation ------------------------------------------------------------------------------------------------------


def test_eval_loader_gives_every_image_once(digits, accelerator):
    loader = make_eval_loader(digits.train, CONFIG, PROCESSOR, accelerator, LoopArguments(eval_batch_size=16))
    assert [len(batch["labels"]) for batch in loader] == [16, 16, 8]
    assert torch.cat([batch["labels"] for batch in loader]).tolist() == digits.train["label"][:]


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_follow_the_config(digits, accelerator, channels):
    config = SparseViTConfig(**{**CONFIG.to_dict(), "num_channels": channels})
    images = training_images(digits, config=config)
    assert images[(0, 0, 0)][0].shape == (channels, 8, 8)
    processor = make_image_processor(config, ImageArguments())
    batch = next(iter(make_eval_loader(digits.train, config, processor, accelerator, LoopArguments())))
    assert batch["pixel_values"].shape == (40, channels, 8, 8)


def test_central_crop():
    """The processor that goes with a checkpoint resizes the shorter side and takes the centre."""
    processor = make_image_processor(CONFIG, ImageArguments(crop_pct=0.8))
    assert processor.size["shortest_edge"] == 10
    pixels = np.random.default_rng(0).integers(0, 255, (10, 12, 3), dtype=np.uint8)  # so that nothing is resized
    found = processor(Image.fromarray(pixels), return_tensors="pt")["pixel_values"][0]
    expected = torch.from_numpy(pixels[1:9, 2:10].copy()).permute(2, 0, 1) / 255 * 2 - 1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_mean_and_deviation():
    arguments = ImageArguments(image_mean=[0.1, 0.2, 0.3], image_std=[2.0])
    processor = make_image_processor(CONFIG, arguments)
    image = Image.new("RGB", (8, 8), (255, 0, 51))
    pixels = processor(image, return_tensors="pt")["pixel_values"][0, :, 0, 0]
    torch.testing.assert_close(pixels, torch.tensor([(1 - 0.1) / 2, -0.2 / 2, (0.2 - 0.3) / 2]))


@pytest.mark.parametrize("name", ["image_mean", "image_std"])
def test_mean_and_deviation_that_do_not_fit_the_channels(name):
    with pytest.raises(ValueError, match=f"^{name}: 2 values for 3 channels; give one, or one a channel"):
        make_image_processor(CONFIG, ImageArguments(**{name: [0.1, 0.2]}))


def test_training_images_are_normalized_as_the_processor_says(digits):
    plain = training_images(digits, augmentation=False)[(0, 0, 3)][0]
    other = training_images(digits, augmentation=False, image_mean=[0.1, 0.2, 0.3], image_std=[2.0])[(0, 0, 3)][0]
    pixels = plain * 0.5 + 0.5
    torch.testing.assert_close(other, (pixels - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / 2)


def test_rectangular_images(digits):
    config = SparseViTConfig(**{**CONFIG.to_dict(), "image_size": [8, 12]})
    assert (image_size(config), image_size(CONFIG)) == ((8, 12), (8, 8))
    assert training_images(digits, config=config)[(0, 0, 0)][0].shape == (3, 8, 12)
    processor = make_image_processor(config, ImageArguments())
    assert processor(Image.new("RGB", (9, 9)), return_tensors="pt")["pixel_values"].shape == (1, 3, 8, 12)


def test_the_processor_of_a_checkpoint(tmp_path, caplog):
    ViTImageProcessor(size={"height": 8, "width": 8}, image_mean=[0.1] * 3).save_pretrained(tmp_path / "own")
    assert list(load_image_processor(str(tmp_path / "own"), CONFIG).image_mean) == [0.1] * 3
    assert not caplog.records
    CONFIG.save_pretrained(tmp_path / "bare")
    processor = load_image_processor(str(tmp_path / "bare"), CONFIG)
    assert processor.to_dict() == PROCESSOR.to_dict()
    assert f"{tmp_path}/bare has no image processor" in caplog.text


@pytest.mark.parametrize("content", ["", '{"size": {"height": 8', "[1, 2]", '{"image_processor_type": "Nothing"}'])
def test_a_broken_processor_is_not_taken_for_a_missing_one(tmp_path, content):
    CONFIG.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(ValueError, match=r"^model_name_or_path: .* in its preprocessor_config.json \(") as error:
        load_image_processor(str(tmp_path), CONFIG)
    assert "\n" not in str(error.value)

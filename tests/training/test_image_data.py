# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import itertools

import datasets
import numpy as np
import pytest
import torch
from accelerate import Accelerator
from PIL import Image
from sklearn.datasets import load_digits

from sparsight import SparseViTConfig
from sparsight.training.arguments import LoopArguments, UsageError
from sparsight.training.image_data import (
    EpochBatches,
    ImageArguments,
    TrainingImages,
    decode_image,
    load_images,
    make_eval_loader,
    make_image_processor,
    make_train_loader,
)


CONFIG = SparseViTConfig(
    hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, image_size=8, patch_size=4
)


@pytest.fixture
def folder(tmp_path):
    """An image folder with two classes and a test split."""
    pixels = np.random.default_rng(0)
    for split, number in (("train", 6), ("test", 3)):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for index in range(number):
                image = Image.fromarray(pixels.integers(0, 255, (10, 12, 3), dtype=np.uint8))
                image.save(tmp_path / split / name / f"{index}.png")
    return tmp_path


def test_digits():
    data = load_images(ImageArguments())
    assert (len(data.train), len(data.eval), data.eval_split) == (1437, 360, "test")
    assert data.class_names == list("0123456789")
    counts = np.bincount(data.eval["label"])
    assert counts.min() >= 34  # stratified: about 36 of each
    # The two splits are a partition of scikit-learn's digits.
    decoded = sorted(
        (np.asarray(decode_image(row["image"], "L")).tobytes(), row["label"])
        for row in itertools.chain(data.train, data.eval)
    )
    digits = load_digits()
    pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)
    assert decoded == sorted((image.tobytes(), int(label)) for image, label in zip(pixels, digits.target, strict=True))


def test_image_folder(folder):
    data = load_images(ImageArguments(dataset=str(folder)))
    assert (len(data.train), len(data.eval), data.class_names) == (12, 6, ["cat", "dog"])
    assert decode_image(data.train[0]["image"], "RGB").size == (12, 10)
    limited = load_images(ImageArguments(dataset=str(folder), max_train_samples=4, max_eval_samples=2))
    assert (len(limited.train), len(limited.eval)) == (4, 2)


def test_a_tenth_is_held_out_where_there_is_no_other_split(folder):
    for path in (folder / "test").rglob("*.png"):
        path.unlink()
    for name in ("cat", "dog"):
        (folder / "test" / name).rmdir()
        for index in range(6, 12):
            Image.new("RGB", (8, 8)).save(folder / "train" / name / f"{index}.png")
    (folder / "test").rmdir()
    data = load_images(ImageArguments(dataset=str(folder)))
    assert (len(data.train), len(data.eval)) == (21, 3)
    assert data.eval_split == "a tenth of train"


def test_hub_data_set_with_other_columns(tmp_path, monkeypatch):
    columns = {"picture": datasets.Image(), "kind": datasets.Value("string"), "id": datasets.Value("int64")}
    rows = {"picture": [Image.new("RGB", (4, 4))] * 6, "kind": ["b", "a"] * 3, "id": list(range(6))}
    split = datasets.Dataset.from_dict(rows, features=datasets.Features(columns))
    loaded = datasets.DatasetDict(train=split, validation=split)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: loaded)
    with pytest.raises(UsageError, match=r"--label_column: the data set has no label column; .*picture, kind, id"):
        load_images(ImageArguments(dataset="org/things"))
    data = load_images(ImageArguments(dataset="org/things", label_column="kind"))
    assert data.class_names == ["a", "b"]
    assert data.train["label"] == [1, 0] * 3
    with pytest.raises(UsageError, match=r"--image_column: there is no column 'image'; .*picture, kind, id"):
        load_images(ImageArguments(dataset="org/things", image_column="image", label_column="kind"))
    with pytest.raises(UsageError, match=r"--train_split: .* 'training'; it has train, validation"):
        load_images(ImageArguments(dataset="org/things", train_split="training"))
    with pytest.raises(UsageError, match=r"--eval_split: .* 'test'; it has train, validation"):
        load_images(ImageArguments(dataset="org/things", eval_split="test", label_column="kind"))


@pytest.mark.parametrize("name", ["./missing", "/missing/folder", "some/deep/folder"])
def test_missing_folder(name):
    with pytest.raises(UsageError, match=f"--dataset: there is no folder {name}"):
        load_images(ImageArguments(dataset=name))


def test_data_set_the_hub_does_not_give():
    with pytest.raises(UsageError, match=r"--dataset: 'org/nothing' is neither 'digits', a folder here, nor") as error:
        load_images(ImageArguments(dataset="org/nothing"))
    assert "\n" not in str(error.value)


def test_empty_folder(tmp_path):
    with pytest.raises(UsageError, match=r"--dataset: no images in .* lay it out as train/<class>/<image>"):
        load_images(ImageArguments(dataset=str(tmp_path)))


def test_folder_without_classes(tmp_path):
    for index in range(3):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{index}.png")
    with pytest.raises(UsageError, match=r"--label_column: the data set has no label column; .* image"):
        load_images(ImageArguments(dataset=str(tmp_path)))


@pytest.mark.parametrize("content", [b"", b"not an image"])
def test_unreadable_image_is_found_before_training(folder, content):
    bad = folder / "train" / "dog" / "2.png"
    bad.write_bytes(content)
    with pytest.raises(UsageError, match=r"--dataset: cannot read .*/train/dog/2.png .*remove or replace"):
        load_images(ImageArguments(dataset=str(folder)))


def test_truncated_image_is_named_when_it_is_decoded(folder):
    bad = folder / "train" / "dog" / "2.jpg"
    Image.effect_noise((64, 64), 80).save(bad, quality=95)
    bad.write_bytes(bad.read_bytes()[:-900])
    with pytest.raises(UsageError, match=r"--dataset: cannot read .*/train/dog/2.jpg"):
        decode_image({"bytes": None, "path": str(bad)}, "RGB")


# --- order and augmentation ------------------------------------------------------------------------------------------


def take(loader, number: int) -> list[dict[str, torch.Tensor]]:
    return list(itertools.islice(loader, number))


@pytest.fixture(scope="module")
def digits():
    return load_images(ImageArguments(max_train_samples=40)).train


def keys(images, first_step: int, number: int, **loop) -> list[tuple[int, int, int]]:
    batches = EpochBatches(images, LoopArguments(batch_size=8, **loop))
    batches.first_step = first_step
    return list(itertools.chain.from_iterable(itertools.islice(batches, number)))


def test_each_epoch_is_a_permutation_and_epochs_differ(digits):
    drawn = keys(digits, 0, 10)
    first, second = drawn[:40], drawn[40:]
    assert [key[:2] for key in drawn] == [(epoch, position) for epoch in (0, 1) for position in range(40)]
    assert sorted(key[2] for key in first) == sorted(key[2] for key in second) == list(range(40))
    assert [key[2] for key in first] != [key[2] for key in second]
    assert drawn != keys(digits, 0, 10, seed=1)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("first_step", [1, 4, 5, 7])
def test_order_continues_from_any_step(digits, first_step, accumulation):
    whole = keys(digits, 0, 10 * accumulation, gradient_accumulation_steps=accumulation)
    rest = keys(digits, first_step, (10 - first_step) * accumulation, gradient_accumulation_steps=accumulation)
    assert rest == whole[first_step * 8 :]


def test_incomplete_steps_are_dropped(digits):
    batches = EpochBatches(digits.select(range(39)), LoopArguments(batch_size=8))
    assert batches.steps_per_epoch == 4
    drawn = list(itertools.chain.from_iterable(itertools.islice(batches, 4)))
    assert len({key[2] for key in drawn}) == 32


def test_repeated_augmentation(digits):
    batches = EpochBatches(digits, LoopArguments(batch_size=8), repeats=3)
    drawn = list(itertools.chain.from_iterable(itertools.islice(batches, 5)))
    counts = np.bincount([key[2] for key in drawn])
    assert sorted(counts[counts > 0])[-13:] == [3] * 13
    images = TrainingImages(digits, CONFIG, make_image_processor(CONFIG, ImageArguments()), ImageArguments(), seed=0)
    versions = [images[key][0] for key in drawn if key[2] == drawn[0][2]]
    assert len(versions) == 3
    assert not torch.equal(versions[0], versions[1])


def test_augmentation_depends_on_seed_epoch_and_position_alone(digits):
    images = TrainingImages(digits, CONFIG, make_image_processor(CONFIG, ImageArguments()), ImageArguments(), seed=3)
    image = images[(1, 5, 7)][0]
    torch.manual_seed(99)
    np.random.seed(99)
    torch.testing.assert_close(images[(1, 5, 7)][0], image, rtol=0, atol=0)
    assert not torch.equal(images[(2, 5, 7)][0], image)
    assert not torch.equal(images[(1, 6, 7)][0], image)
    other = TrainingImages(digits, CONFIG, make_image_processor(CONFIG, ImageArguments()), ImageArguments(), seed=4)
    assert not torch.equal(other[(1, 5, 7)][0], image)


def test_batches_are_the_same_for_any_number_of_workers(digits):
    images = TrainingImages(
        digits, CONFIG, make_image_processor(CONFIG, ImageArguments()), ImageArguments(auto_augment="rand-m9"), seed=0
    )
    batches = [
        take(make_train_loader(images, Accelerator(), LoopArguments(batch_size=8, num_workers=workers)), 7)
        for workers in (0, 2)
    ]
    torch.testing.assert_close(batches[0], batches[1], rtol=0, atol=0)


def test_batch_size_must_fit(digits):
    images = TrainingImages(digits, CONFIG, make_image_processor(CONFIG, ImageArguments()), ImageArguments(), seed=0)
    with pytest.raises(UsageError, match=r"--batch_size: 64 is more than the 40 training images"):
        make_train_loader(images, Accelerator(), LoopArguments(batch_size=64))


def test_without_augmentation_training_sees_what_evaluation_sees(digits):
    processor = make_image_processor(CONFIG, ImageArguments())
    images = TrainingImages(digits, CONFIG, processor, ImageArguments(augmentation=False), seed=0)
    batch = next(iter(make_eval_loader(digits, CONFIG, processor, Accelerator(), LoopArguments())))
    for index in range(5):
        torch.testing.assert_close(images[(0, 0, index)][0], batch["pixel_values"][index], atol=1e-6, rtol=0)


def test_eval_loader_gives_every_image_once(digits):
    loader = make_eval_loader(
        digits,
        CONFIG,
        make_image_processor(CONFIG, ImageArguments()),
        Accelerator(),
        LoopArguments(eval_batch_size=16),
    )
    labels = torch.cat([batch["labels"] for batch in loader])
    assert labels.tolist() == digits["label"][:]


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_follow_the_config(digits, channels):
    config = SparseViTConfig(**{**CONFIG.to_dict(), "num_channels": channels})
    processor = make_image_processor(config, ImageArguments())
    images = TrainingImages(digits, config, processor, ImageArguments(), seed=0)
    assert images[(0, 0, 0)][0].shape == (channels, 8, 8)
    batch = next(iter(make_eval_loader(digits, config, processor, Accelerator(), LoopArguments())))
    assert batch["pixel_values"].shape == (40, channels, 8, 8)


def test_central_crop(folder):
    """The processor that goes with a checkpoint resizes the shorter side and takes the centre."""
    processor = make_image_processor(CONFIG, ImageArguments(crop_pct=0.8))
    assert processor.size["shortest_edge"] == 10
    image = Image.open(folder / "train" / "cat" / "0.png")  # 12×10 pixels, so nothing is resized
    pixels = processor(image, return_tensors="pt")["pixel_values"][0]
    expected = torch.from_numpy(np.asarray(image)[1:9, 2:10].copy()).permute(2, 0, 1) / 255 * 2 - 1
    torch.testing.assert_close(pixels, expected, atol=1e-5, rtol=0)


def test_mean_and_deviation(digits):
    arguments = ImageArguments(image_mean=[0.1, 0.2, 0.3], image_std=[2.0])
    processor = make_image_processor(CONFIG, arguments)
    image = Image.new("RGB", (8, 8), (255, 0, 51))
    pixels = processor(image, return_tensors="pt")["pixel_values"][0, :, 0, 0]
    torch.testing.assert_close(pixels, torch.tensor([(1 - 0.1) / 2, -0.2 / 2, (0.2 - 0.3) / 2]))
    with pytest.raises(UsageError, match="--image_mean: 2 values for 3 channels"):
        make_image_processor(CONFIG, ImageArguments(image_mean=[0.1, 0.2]))

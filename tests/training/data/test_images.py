# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import io
import itertools

import datasets
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from sparsight.training.data.images import ImageSource, decode_image, load_images, open_image


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
    data = load_images(ImageSource())
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
    data = load_images(ImageSource(dataset=str(folder)))
    assert (len(data.train), len(data.eval), data.class_names) == (12, 6, ["cat", "dog"])
    assert decode_image(data.train[0]["image"], "RGB").size == (12, 10)
    limited = load_images(ImageSource(dataset=str(folder), max_train_samples=4, max_eval_samples=2))
    assert (len(limited.train), len(limited.eval)) == (4, 2)


def test_a_tenth_is_held_out_where_there_is_no_other_split(folder):
    for path in (folder / "test").rglob("*.png"):
        path.unlink()
    for name in ("cat", "dog"):
        (folder / "test" / name).rmdir()
        for index in range(6, 12):
            Image.new("RGB", (8, 8)).save(folder / "train" / name / f"{index}.png")
    (folder / "test").rmdir()
    data = load_images(ImageSource(dataset=str(folder)))
    assert (len(data.train), len(data.eval)) == (21, 3)
    assert data.eval_split == "a tenth of train"


def test_hub_data_set_with_other_columns(tmp_path, monkeypatch):
    columns = {"picture": datasets.Image(), "kind": datasets.Value("string"), "id": datasets.Value("int64")}
    rows = {"picture": [Image.new("RGB", (4, 4))] * 6, "kind": ["b", "a"] * 3, "id": list(range(6))}
    split = datasets.Dataset.from_dict(rows, features=datasets.Features(columns))
    loaded = datasets.DatasetDict(train=split, validation=split)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: loaded)
    with pytest.raises(ValueError, match=r"^label_column: the data set has no label column; .*picture, kind, id"):
        load_images(ImageSource(dataset="org/things"))
    data = load_images(ImageSource(dataset="org/things", label_column="kind"))
    assert data.class_names == ["a", "b"]
    assert data.train["label"] == [1, 0] * 3
    with pytest.raises(ValueError, match=r"^image_column: there is no column 'image'; .*picture, kind, id"):
        load_images(ImageSource(dataset="org/things", image_column="image", label_column="kind"))
    with pytest.raises(ValueError, match=r"^train_split: .* 'training'; it has train, validation"):
        load_images(ImageSource(dataset="org/things", train_split="training"))
    with pytest.raises(ValueError, match=r"^eval_split: .* 'test'; it has train, validation"):
        load_images(ImageSource(dataset="org/things", eval_split="test", label_column="kind"))


@pytest.mark.parametrize("name", ["./missing", "/missing/folder", "some/deep/folder"])
def test_missing_folder(name):
    with pytest.raises(ValueError, match=f"^dataset: there is no folder {name}"):
        load_images(ImageSource(dataset=name))


def test_data_set_the_hub_does_not_give():
    with pytest.raises(ValueError, match=r"^dataset: 'org/nothing' is neither 'digits', a folder here, nor") as error:
        load_images(ImageSource(dataset="org/nothing"))
    assert "\n" not in str(error.value)


def test_empty_folder(tmp_path):
    with pytest.raises(ValueError, match=r"^dataset: no images in .* lay it out as train/<class>/<image>"):
        load_images(ImageSource(dataset=str(tmp_path)))


def test_folder_without_classes(tmp_path):
    for index in range(3):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{index}.png")
    with pytest.raises(ValueError, match=r"^label_column: the data set has no label column; .* image"):
        load_images(ImageSource(dataset=str(tmp_path)))


@pytest.mark.parametrize("content", [b"", b"not an image"])
def test_unreadable_image_is_found_before_training(folder, content):
    bad = folder / "train" / "dog" / "2.png"
    bad.write_bytes(content)
    with pytest.raises(ValueError, match=r"^dataset: cannot read .*/train/dog/2.png .*remove or replace"):
        load_images(ImageSource(dataset=str(folder)))


def test_truncated_image_is_named_when_it_is_decoded(folder):
    bad = folder / "train" / "dog" / "2.jpg"
    Image.effect_noise((64, 64), 80).save(bad, quality=95)
    bad.write_bytes(bad.read_bytes()[:-900])
    with pytest.raises(ValueError, match=r"^dataset: cannot read .*/train/dog/2.jpg"):
        decode_image({"bytes": None, "path": str(bad)}, "RGB")


def labelled(class_names: list[str], **columns: list[Image.Image]) -> datasets.Dataset:
    features = {name: datasets.Image() for name in columns} | {"label": datasets.ClassLabel(names=class_names)}
    number = len(next(iter(columns.values())))
    return datasets.Dataset.from_dict({**columns, "label": [0] * number}, features=datasets.Features(features))


def test_splits_of_other_classes(monkeypatch):
    images = [Image.new("RGB", (4, 4))] * 2
    splits = datasets.DatasetDict(
        train=labelled(["cat", "dog"], image=images), test=labelled(["dog", "cat"], image=images)
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: splits)
    with pytest.raises(ValueError, match=r"^dataset: test and train have other classes; make them the same"):
        load_images(ImageSource(dataset="org/things"))


def test_several_columns_of_a_kind(monkeypatch):
    images, masks = [Image.new("RGB", (4, 4), "red")] * 2, [Image.new("L", (4, 4))] * 2
    split = labelled(["cat", "dog"], image=images, mask=masks)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: datasets.DatasetDict(train=split, test=split))
    with pytest.raises(ValueError, match=r"^image_column: the data set has several image columns; .*: image, mask, l"):
        load_images(ImageSource(dataset="org/things"))
    data = load_images(ImageSource(dataset="org/things", image_column="image"))
    assert data.train.column_names == ["image", "label"]
    assert decode_image(data.train[0]["image"], "RGB").getpixel((0, 0)) == (255, 0, 0)


def test_a_file_is_no_folder_of_images(folder):
    with pytest.raises(ValueError, match=r"^dataset: no images in .*0.png .* lay it out as train/<class>/<image>"):
        load_images(ImageSource(dataset=str(folder / "train" / "cat" / "0.png")))


def test_images_of_a_data_set_come_as_bytes():
    encoded = io.BytesIO()
    Image.new("RGB", (5, 4), (10, 20, 30)).save(encoded, format="png")
    row = {"bytes": encoded.getvalue(), "path": None}
    assert open_image(row).size == (5, 4)
    assert decode_image(row, "RGB").getpixel((0, 0)) == (10, 20, 30)
    assert decode_image(row, "L").mode == "L"
    with pytest.raises(ValueError, match=r"^dataset: cannot read an image of the data set \("):
        decode_image({"bytes": row["bytes"][:40], "path": None}, "RGB")


def test_photos_are_decoded_upright():
    photo = Image.new("RGB", (6, 4))
    photo.putpixel((5, 0), (255, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90°, clockwise
    encoded = io.BytesIO()
    photo.save(encoded, format="png", exif=exif)
    found = decode_image({"bytes": encoded.getvalue(), "path": None}, "RGB")
    assert (found.size, found.getpixel((3, 5))) == ((4, 6), (255, 0, 0))


def test_pixels_without_a_defined_range_are_found_before_training(folder):
    deep = folder / "train" / "cat" / "deep.tif"
    Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32)).save(deep)
    with pytest.raises(ValueError, match=r"^dataset: cannot read .*/cat/deep.tif \(pixels of mode F, 32 bits each"):
        load_images(ImageSource(dataset=str(folder)))

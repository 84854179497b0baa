# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from PIL import Image

from sparsight.training.data.images import ImageSource, load_images


def make(folder: Path, number: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(number):
        Image.new("RGB", (4, 4)).save(folder / f"{index}.png")


def paths(images) -> set[str]:
    return {row["image"]["path"] for row in images}


@pytest.mark.parametrize("name", ["train", "test tube", "dev", "eval", "training-shoes", "my_validation"])
def test_the_name_of_a_class_makes_no_split(tmp_path, name):
    for split, number in (("train", 4), ("test", 3)):
        make(tmp_path / split / name, number)
        make(tmp_path / split / "other", number)
    data = load_images(ImageSource(dataset=str(tmp_path)))
    assert (len(data.train), len(data.eval), data.eval_split) == (8, 6, "test")
    assert data.class_names == sorted([name, "other"])
    assert all("/train/" in path for path in paths(data.train))
    assert all(path.startswith(f"{tmp_path}/test/") for path in paths(data.eval))
    for row in data.train:
        assert Path(row["image"]["path"]).parent.name == data.class_names[row["label"]]


@pytest.mark.parametrize("name", ["train", "test tube", "dev"])
def test_without_split_folders_the_first_level_are_the_classes(tmp_path, name):
    for folder in (name, "car", "plane/deeper"):
        make(tmp_path / folder, 20)
    data = load_images(ImageSource(dataset=str(tmp_path)))
    assert data.class_names == sorted([name, "car", "plane"])
    assert (len(data.train), len(data.eval), data.eval_split) == (54, 6, "a tenth of train")
    assert not paths(data.train) & paths(data.eval)


@pytest.mark.parametrize(
    ("train", "evaluation", "split"),
    [("training", "dev", "validation"), ("Train", "val", "validation"), ("train", "evaluation", "test")],
)
def test_names_of_splits(tmp_path, train, evaluation, split):
    for name, number in ((train, 4), (evaluation, 2)):
        make(tmp_path / name / "cat", number)
        make(tmp_path / name / "dog", number)
    data = load_images(ImageSource(dataset=str(tmp_path)))
    assert (len(data.train), len(data.eval), data.eval_split) == (8, 4, split)


def test_what_is_no_split_or_has_no_class(tmp_path):
    make(tmp_path / "train" / "cat")
    make(tmp_path / "train" / "dog")
    make(tmp_path / "extra")
    with pytest.raises(ValueError, match=r"^dataset: .* has the splits train, and beside them extra; take out"):
        load_images(ImageSource(dataset=str(tmp_path)))
    (tmp_path / "extra").rename(tmp_path / "test")
    with pytest.raises(ValueError, match=r"^dataset: .*/test/0.png is in no folder of a class; lay it out as"):
        load_images(ImageSource(dataset=str(tmp_path)))


def test_a_metadata_file_gives_the_labels(tmp_path):
    for split in ("train", "test"):
        make(tmp_path / split, 4)
        rows = [f"{index}.png,{'ab'[index % 2]}" for index in range(4)]
        (tmp_path / split / "metadata.csv").write_text("\n".join(["file_name,label", *rows]))
    data = load_images(ImageSource(dataset=str(tmp_path)))
    assert (len(data.train), len(data.eval), data.class_names) == (4, 4, ["a", "b"])

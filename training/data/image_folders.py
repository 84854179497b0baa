# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""From a folder of image files to splits and classes, by the names of its folders."""

from pathlib import Path

import datasets

from sparsight.analysis.data import image_paths
from sparsight.configuration.messages import single_line


_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SPLIT_OF_FOLDER = {name: split for split, names in _SPLITS.items() for name in names}
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


def load_image_folder(name: str) -> datasets.DatasetDict:
    """The images of `<split>/<class>/<image>`, or of `<class>/<image>`, with columns `image` and `label`.

    Folders of the first level alone can be splits, and only by their whole name; what a class is called does not
    matter, nor how deep its images lie. `datasets` looks for splits in the whole path, and would take images of a
    class "test tube" for training and testing both. Where the images have a metadata file, it reads that.

    Raises:
        ValueError: if there are no images, or it is not clear what their class is.
    """
    root = Path(name)
    paths = sorted(image_paths(root), key=str)
    parts = [path.relative_to(root).parts for path in paths]
    first_level = {path[0] for path in parts if len(path) > 1}
    splits = _find_splits(name, first_level, {path[0] for path in parts if len(path) == 2})
    places = [root, *(root / folder for folder in splits)]
    has_metadata = any((place / file).exists() for place in places for file in _METADATA)
    if has_metadata or not first_level:
        return _load_as_datasets_does(name, splits)

    depth = 1 if splits else 0
    for path, levels in zip(paths, parts, strict=True):
        if len(levels) < depth + 2:
            raise ValueError(f"dataset: {path} is in no folder of a class; lay it out as train/<class>/<image>")
    class_names = sorted({levels[depth] for levels in parts})
    rows: dict[str, dict[str, list]] = {}
    for path, levels in zip(paths, parts, strict=True):
        columns = rows.setdefault(splits.get(levels[0], "train"), {"image": [], "label": []})
        columns["image"].append(str(path))
        columns["label"].append(levels[depth])
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=class_names)})
    return datasets.DatasetDict(
        {split: datasets.Dataset.from_dict(rows[split], features=features) for split in _SPLITS if split in rows}
    )


def _find_splits(name: str, first_level: set[str], with_images: set[str]) -> dict[str, str]:
    """The split of each folder of the first level; none where they are classes.

    Args:
        with_images: folders of the first level in which images lie directly.
    """
    splits = {folder: _SPLIT_OF_FOLDER[folder.lower()] for folder in first_level if folder.lower() in _SPLIT_OF_FOLDER}
    others = sorted(first_level - splits.keys())
    if not splits or not others:
        return splits
    if splits.keys() <= with_images:  # classes that happen to be called so
        return {}
    raise ValueError(
        f"dataset: {name} has the splits {', '.join(sorted(splits))}, and beside them {', '.join(others[:5])}; "
        "take out what is no split"
    )


def _load_as_datasets_does(name: str, splits: dict[str, str]) -> datasets.DatasetDict:
    patterns: dict[str, list[str]] = {}
    for folder, split in sorted(splits.items()):
        patterns.setdefault(split, []).append(f"{folder}/**")
    try:
        return datasets.load_dataset("imagefolder", data_dir=name, data_files=patterns or None)
    except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
        raise ValueError(
            f"dataset: no images in {name} ({single_line(error)}); lay it out as train/<class>/<image>"
        ) from error

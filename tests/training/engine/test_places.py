# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import pytest

from sparsight.training.engine.places import is_here


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder" / "inner" / "deep").mkdir(parents=True)
    (tmp_path / "texts.txt").touch()
    return tmp_path


def ask(name: str, **kwargs) -> bool:
    return is_here("dataset", name, "folder", "one, or a data set of the Hub", **kwargs)


def test_what_lies_here(place):
    here = ["folder", "./folder", "folder/inner", "folder/inner/deep", ".", "texts.txt", str(place), f"{place}/folder"]
    assert all(map(ask, here))


def test_names_on_the_hub(place):
    for name in ("digits", "org/name", "org/folder", "name-of.version", "folders"):
        assert not ask(name)
    assert not ask("org/name", endings=(".txt", ".parquet"))
    assert not ask("missing.txt")


PATHS = ["./missing", "../missing", "/missing", "/missing/folder", "~/missing", "a/b/c", "folder/inner/x", ".hidden"]


@pytest.mark.parametrize("name", PATHS)
def test_paths_that_are_not_here(place, name):
    with pytest.raises(ValueError, match=r"^dataset: ") as error:
        ask(name)
    assert str(error.value) == f"dataset: there is no folder {name}; give one, or a data set of the Hub"


def test_names_that_can_only_be_files(place):
    with pytest.raises(ValueError, match=r"^data: there is no file missing.txt; give another$"):
        is_here("data", "missing.txt", "file", "another", (".txt", ".parquet"))
    with pytest.raises(ValueError, match=r"^data: there is no file org/missing.parquet; "):
        is_here("data", "org/missing.parquet", "file", "another", (".txt", ".parquet"))

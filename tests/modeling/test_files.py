# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest

from helpers import snapshot
from sparsight.modeling.files import recover, write_json, written_beside


def fill(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "weights").write_text(text)


def test_a_file_takes_its_place_when_the_block_ends(tmp_path):
    target = tmp_path / "new" / "folder" / "figure.png"
    for text in ("first", "second"):
        with written_beside(target) as new:
            assert (new.parent, new.suffix) == (target.parent, ".png")  # writers go by the ending
            new.write_text(text)
            assert target.exists() == (text == "second")
        assert snapshot(tmp_path) == {"new/folder/figure.png": text.encode()}


def test_a_folder_takes_its_place_when_the_block_ends(tmp_path):
    target = tmp_path / "model"
    with written_beside(target) as new:
        fill(new, "first")
    (target / "notes").write_text("of the first")
    with written_beside(str(target)) as new:
        fill(new, "second")
        assert (target / "weights").read_text() == "first"
    assert snapshot(tmp_path) == {"model/weights": b"second"}


@pytest.mark.parametrize("write", [fill, Path.write_text])
def test_a_block_that_raises_leaves_the_old(tmp_path, write):
    target = tmp_path / "target"
    for old in ({}, {"target": b"old"}, {"target/weights": b"old"}):
        for name, content in old.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
        with pytest.raises(KeyboardInterrupt), written_beside(target) as new:  # noqa: PT012
            write(new, "half")
            raise KeyboardInterrupt
        assert snapshot(tmp_path) == old
        if target.is_file():
            target.unlink()


def test_a_block_that_writes_nothing_leaves_the_old(tmp_path):
    fill(tmp_path / "model", "old")
    for name in ("model", "none"):
        with pytest.raises(FileNotFoundError), written_beside(tmp_path / name):
            pass
    assert snapshot(tmp_path) == {"model/weights": b"old"}


def test_the_old_folder_comes_back_where_the_new_cannot_take_its_place(tmp_path, monkeypatch):
    target, rename = tmp_path / "model", Path.rename
    fill(target, "old")

    def rename_all_but_new(self, to):
        if (self / "weights").read_text() == "new":
            raise OSError("no permission")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", rename_all_but_new)
    with pytest.raises(OSError, match="no permission"), written_beside(target) as new:
        fill(new, "new")
    assert snapshot(tmp_path) == {"model/weights": b"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.fixture
def killed(tmp_path, monkeypatch) -> Path:
    """A folder whose replacement was killed between the two renamings."""
    target, rename = tmp_path / "model", Path.rename
    fill(target, "old")

    class Killed(BaseException):
        pass

    def die_at_the_second(self, to):
        if to == target:
            raise Killed
        return rename(self, to)

    with monkeypatch.context() as patch, pytest.raises(Killed), written_beside(target) as new:  # noqa: PT012
        fill(new, "new")
        patch.setattr(Path, "rename", die_at_the_second)
    assert not target.exists()
    return target


def test_recover_after_a_kill_between_the_renamings(tmp_path, killed):
    recover(killed)
    assert snapshot(tmp_path) == {"model/weights": b"old"}
    recover(killed)  # nothing to do
    assert snapshot(tmp_path) == {"model/weights": b"old"}


def test_writing_recovers_first(tmp_path, killed):
    with pytest.raises(ZeroDivisionError), written_beside(killed):
        raise ZeroDivisionError
    assert snapshot(tmp_path) == {"model/weights": b"old"}
    with written_beside(killed) as new:
        fill(new, "new")
    assert snapshot(tmp_path) == {"model/weights": b"new"}


def test_remains_of_a_kill_are_no_part_of_the_new(tmp_path):
    target = tmp_path / "model"
    with written_beside(target) as new:
        pass_by = new
        fill(new, "first")
    fill(pass_by, "half")
    (pass_by / "more").write_text("half")
    with written_beside(target) as new:
        fill(new, "second")
    assert snapshot(tmp_path) == {"model/weights": b"second"}


def test_folders_of_the_user_beside_it_are_left_alone(tmp_path):
    for name in ("model.old", "model.tmp"):
        fill(tmp_path / name, "mine")
    recover(tmp_path / "model")
    for text in ("first", "second"):
        with written_beside(tmp_path / "model") as new:
            fill(new, text)
    assert snapshot(tmp_path) == {
        "model/weights": b"second", "model.old/weights": b"mine", "model.tmp/weights": b"mine",
    }  # fmt: skip


def test_a_link_to_a_folder_is_replaced_and_what_it_shows_is_left_alone(tmp_path):
    fill(tmp_path / "elsewhere", "mine")
    (tmp_path / "model").symlink_to(tmp_path / "elsewhere")
    with written_beside(tmp_path / "model") as new:
        fill(new, "new")
    assert snapshot(tmp_path) == {"model/weights": b"new", "elsewhere/weights": b"mine"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "model"]


def test_the_folder_that_one_is_in(tmp_path, monkeypatch):
    fill(tmp_path / "model", "old")
    monkeypatch.chdir(tmp_path / "model")
    with written_beside(".") as new:
        fill(new, "new")
    monkeypatch.chdir(tmp_path)
    assert snapshot(tmp_path) == {"model/weights": b"new"}


def test_json_is_whole_or_not_there(tmp_path):
    path = tmp_path / "results.json"
    write_json(path, {"accuracy": 0.5, "layers": [1, 2]})
    assert json.loads(path.read_text()) == {"accuracy": 0.5, "layers": [1, 2]}
    assert path.read_text().endswith("}\n")
    before = snapshot(tmp_path)
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_json(path, {"accuracy": 0.75, "model": object()})
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_json(tmp_path / "other.json", {"model": object()})
    assert snapshot(tmp_path) == before

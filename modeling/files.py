# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Files and folders that are whole or not there: written beside their place, and renamed into it."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def written_beside(target: str | Path) -> Iterator[Path]:
    """A path beside `target` to write a file or a folder to, which takes its place when the block ends well.

    Where the block raises, what it wrote is removed and `target` stays as it was. A kill leaves the old `target`, the
    new one, or, between the two renamings of a folder, what [`recover`] puts back.

    Args:
        target: the file or folder to be written. Missing parents are made.
    """
    target = Path(os.path.abspath(target))  # "." has no name, and cannot be renamed
    new, old = temporary_path(target), _sibling(target, "old")
    recover(target)
    _remove(new)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield new
        if not target.is_dir():
            new.replace(target)
            return
        _remove(old)
        target.rename(old)
        try:
            new.rename(target)
        except OSError:
            old.rename(target)
            raise
        _remove(old)
    finally:
        _remove(new)


def recover(target: str | Path) -> None:
    """Put back the folder `target` where [`written_beside`] was killed between its two renamings."""
    target = Path(target)
    old = _sibling(target, "old")
    if old.exists() and not target.exists():
        with contextlib.suppress(FileNotFoundError):  # another process was first
            old.rename(target)


def write_json(path: str | Path, values: Mapping[str, Any]) -> None:
    """Write `values` as indented JSON, whole or not at all."""
    with written_beside(path) as new:
        new.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def temporary_path(target: str | Path) -> Path:
    """Where [`written_beside`] has `target` written first; its ending stays, as writers of figures go by it."""
    return _sibling(target, "tmp")


def _sibling(target: str | Path, kind: str) -> Path:
    # Hidden, so that it is no folder of the user's, such as `model.old`.
    target = Path(os.path.abspath(target))
    return target.with_name(f".{target.stem}.{kind}{target.suffix}")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

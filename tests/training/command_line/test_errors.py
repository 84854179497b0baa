# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import sys
from dataclasses import dataclass

import pytest
from torch.utils.data import DataLoader, Dataset

from sparsight.training.command_line.arguments import Settings, argument
from sparsight.training.command_line.errors import UsageError, describe, one_line_errors
from sparsight.training.data.images import decode_image
from sparsight.training.engine.loop import NonFiniteLoss
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.run_folder import begin_run


NAMES = ("size", "model", "learning_rate", "dataset")


@dataclass
class First:
    size: int = argument("A number.", 1)


@dataclass
class Second:
    dataset: str = argument("A name.", "")


# --- which errors are the user's -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UsageError("--width: unknown argument"), "--width: unknown argument"),
        (ValueError("size: 0 is too small; give more"), "--size: 0 is too small; give more"),
        (ValueError("\nsize: 0 is\n  too small\n"), "--size: 0 is too small"),
        (ValueError("model.hidden_sise: no such field"), "--model.hidden_sise: no such field"),
        (NonFiniteLoss("learning_rate: the loss is not finite"), "--learning_rate: the loss is not finite"),
        (RuntimeError("dataset: gone"), "--dataset: gone"),
    ],
)
def test_what_begins_with_an_argument_is_a_line_with_its_flag(error, line):
    assert describe(error, NAMES) == line


@pytest.mark.parametrize(
    "error",
    [
        ValueError("width: is no argument of this script"),
        ValueError("the size: comes later"),
        ValueError("size"),
        ValueError("size:"),
        ValueError("size:3"),
        ValueError(""),
        ValueError("model.a.b: is no field"),
        KeyError("size: 3"),
        OSError("a text alone"),
        OSError(5, "no file is named"),
        AssertionError(),
    ],
)
def test_others_are_not(error):
    assert describe(error, NAMES) is None


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        (tmp_path / "missing.txt").read_text()
    assert describe(error.value, NAMES) == (
        f"cannot use {tmp_path}/missing.txt (No such file or directory); give another place or see to this one"
    )
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as error:
        (tmp_path / "file" / "run").mkdir()
    assert describe(error.value, NAMES).startswith(f"cannot use {tmp_path}/file/run (Not a directory); ")


class Broken(Dataset):
    """Fails in the worker as the data sets do: with an error that comes from another one, or with one of its own."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 1

    def __getitem__(self, index):
        if self.path is None:
            raise ValueError("too many values to unpack")
        return decode_image({"bytes": None, "path": self.path}, "RGB")


def error_of_worker(path: str | None) -> Exception:
    try:
        next(iter(DataLoader(Broken(path), num_workers=1, multiprocessing_context="fork")))
    except ValueError as error:
        return error.with_traceback(None)  # which would hold the worker, and torch waits for it then
    pytest.fail("the worker has not failed")


def test_errors_of_a_worker_lose_the_traceback_that_torch_puts_before_them(tmp_path):
    path = tmp_path / "dog.png"
    path.write_text("no image")
    error = error_of_worker(str(path))
    assert str(error).startswith("Caught ValueError in DataLoader worker process 0.\nOriginal Traceback")
    line = describe(error, NAMES)
    assert line.startswith(f"--dataset: cannot read {path} (cannot identify image file")
    assert line.endswith("; remove or replace it")
    assert "Traceback" not in line
    assert describe(error_of_worker(None), NAMES) is None


# --- what the user sees of them --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("size: 0 is too small"), "script.py: error: --size: 0 is too small"),
        (ValueError("dataset: gone"), "script.py: error: --dataset: gone"),
        (UsageError("--recipe: no recipe"), "script.py: error: --recipe: no recipe"),
    ],
)
def test_one_line_and_exit_code_2(error, line, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/script.py", "--size", "0"])
    with pytest.raises(SystemExit) as exit_info, one_line_errors(First, Second):
        raise error
    assert exit_info.value.code == 2
    assert capsys.readouterr() == ("", f"{line}\n")


def test_an_output_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").touch()
    settings = Settings(LoopArguments(output_dir=str(tmp_path / "file" / "run")))
    with pytest.raises(SystemExit) as exit_info, one_line_errors(LoopArguments):
        begin_run(settings, ())
    assert exit_info.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"error: cannot use {tmp_path}/file" in line


def unforeseen():
    raise ValueError("not enough values to unpack")


def test_an_unforeseen_error_passes_with_its_traceback(capsys):
    with pytest.raises(ValueError, match="not enough values") as error, one_line_errors(First, Second):
        unforeseen()
    assert error.traceback[-1].name == "unforeseen"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(0), ValueError("dataset: not of this script")])
def test_what_is_no_error_of_these_arguments_passes(error, capsys):
    with pytest.raises(type(error)) as passed, one_line_errors(First):
        raise error
    assert passed.value is error
    assert capsys.readouterr() == ("", "")


def test_without_an_error_nothing_happens(capsys):
    with one_line_errors(First):
        done = True
    assert done
    assert capsys.readouterr() == ("", "")

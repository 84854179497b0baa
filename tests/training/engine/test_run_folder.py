# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helpers import snapshot
from sparsight.training.command_line.arguments import Settings, argument
from sparsight.training.engine.checkpoints import STATE_FILE
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.run_folder import ARGUMENTS_FILE, begin_run, check_run_folder


@dataclass
class Data:
    dataset: str = argument("Which.", "digits")
    scale: list[float] = argument("Numbers.", [0.1, 1.0])


def settings(folder: Path, **values: Any) -> Settings:
    data = {name: values.pop(name) for name in ("dataset", "scale") if name in values}
    return Settings(Data(**data), LoopArguments(output_dir=str(folder), **values))


def add_checkpoints(folder: Path, *steps: int) -> None:
    for step in steps:
        (folder / f"checkpoint-{step}").mkdir(parents=True)
        (folder / f"checkpoint-{step}" / STATE_FILE).write_text("state")


@pytest.fixture
def earlier(tmp_path):
    """What a run left."""
    folder = tmp_path / "run"
    begin_run(settings(folder), ())
    add_checkpoints(folder, 9, 10)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    (folder / "results.json").write_text("{}")
    (folder / "mine.txt").write_text("of the user")
    return folder


@pytest.fixture(autouse=True)
def _checking_only_reads(request, tmp_path):
    before = snapshot(request.getfixturevalue("earlier")) if "earlier" in request.fixturenames else None
    yield
    if before is not None and "begin" not in request.function.__name__:
        assert snapshot(tmp_path / "run") == before


# --- starting --------------------------------------------------------------------------------------------------------


def test_a_fresh_folder(tmp_path):
    assert check_run_folder(settings(tmp_path / "new" / "run")) is None
    assert check_run_folder(settings(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something(earlier):
    with pytest.raises(ValueError, match=r"^output_dir: ") as error:
        check_run_folder(settings(earlier))
    assert str(error.value) == (
        f"output_dir: {earlier} holds another run; give another one, --overwrite to replace it, or "
        "--resume_from_checkpoint latest to continue it"
    )
    assert check_run_folder(settings(earlier, overwrite=True)) is None


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_no_folder(tmp_path, overwrite):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(ValueError, match=r"^output_dir: .*run is a file; give a folder$"):
        check_run_folder(settings(tmp_path / "run", overwrite=overwrite))


# --- resuming --------------------------------------------------------------------------------------------------------


def test_latest_is_the_newest_checkpoint(earlier):
    assert check_run_folder(settings(earlier, resume_from_checkpoint="latest")) == earlier / "checkpoint-10"


def test_latest_of_nothing_starts_from_the_beginning(tmp_path):
    assert check_run_folder(settings(tmp_path / "run", resume_from_checkpoint="latest")) is None
    begin_run(settings(tmp_path / "run"), ())
    assert check_run_folder(settings(tmp_path / "run", resume_from_checkpoint="latest")) is None


def test_a_named_checkpoint(earlier, tmp_path):
    for folder in (earlier, tmp_path / "other"):
        named = str(earlier / "checkpoint-9")
        assert check_run_folder(settings(folder, resume_from_checkpoint=named)) == earlier / "checkpoint-9"


@pytest.mark.parametrize("name", ["checkpoint-11", "model", ""])
def test_a_named_checkpoint_that_is_none(earlier, name):
    with pytest.raises(ValueError, match=r"^resume_from_checkpoint: ") as error:
        check_run_folder(settings(earlier, resume_from_checkpoint=str(earlier / name)))
    message = f"resume_from_checkpoint: {earlier / name} is none; give a checkpoint-<step> folder"
    assert str(error.value) == message


@pytest.mark.parametrize(("output", "resume_from"), [("run", "latest"), ("run", "named"), ("new", "named")])
@pytest.mark.parametrize(
    ("name", "value", "was"),
    [("learning_rate", 0.5, 1e-3), ("seed", 1, 0), ("dataset", "other", "digits"), ("scale", [0.1], [0.1, 1.0])],
)
def test_another_run_is_refused(earlier, output, resume_from, name, value, was):
    resume_from = "latest" if resume_from == "latest" else str(earlier / "checkpoint-9")
    with pytest.raises(ValueError, match=rf"^{name}: ") as error:
        check_run_folder(settings(earlier.with_name(output), resume_from_checkpoint=resume_from, **{name: value}))
    expected = f"{name}: the run in {earlier} has {was!r}, not {value!r}; give the same to resume it"
    assert str(error.value) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_epochs", 99.0), ("max_steps", 7), ("num_workers", 2), ("report_to", "tensorboard"), ("no_code", True)],
)
def test_what_does_not_change_a_step_may_be_changed(earlier, name, value):
    resumed = settings(earlier, resume_from_checkpoint="latest", **{name: value})
    assert check_run_folder(resumed) == earlier / "checkpoint-10"


def test_arguments_that_are_new_or_gone_are_no_difference(tmp_path):
    folder = tmp_path / "run"
    begin_run(settings(folder), ())
    add_checkpoints(folder, 3)
    written = json.loads((folder / ARGUMENTS_FILE).read_text())
    del written["scale"]
    (folder / ARGUMENTS_FILE).write_text(json.dumps({**written, "former": 3}))
    resumed = settings(folder, resume_from_checkpoint="latest", scale=[0.7])
    assert check_run_folder(resumed) == folder / "checkpoint-3"


# --- beginning -------------------------------------------------------------------------------------------------------


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_begin_records_the_settings(tmp_path):
    mine = settings(tmp_path / "new" / "run", dataset="a folder", batch_size=7)
    begin_run(mine, ("model",))
    assert json.loads((tmp_path / "new" / "run" / ARGUMENTS_FILE).read_text()) == mine.values()
    assert names(tmp_path / "new" / "run") == [ARGUMENTS_FILE]


def test_begin_anew_removes_what_runs_write_alone(earlier):
    begin_run(settings(earlier, overwrite=True, seed=5), ("best", "model", "results.json"))
    assert names(earlier) == [ARGUMENTS_FILE, "mine.txt"]
    assert json.loads((earlier / ARGUMENTS_FILE).read_text())["seed"] == 5


def test_begin_of_a_resumed_run_removes_nothing(earlier):
    before = snapshot(earlier)
    resumed = settings(earlier, resume_from_checkpoint="latest", num_epochs=99.0)
    begin_run(resumed, ("best", "model", "results.json"))
    after = snapshot(earlier)
    assert json.loads(after.pop(ARGUMENTS_FILE)) == resumed.values()
    assert after == {name: content for name, content in before.items() if name != ARGUMENTS_FILE}

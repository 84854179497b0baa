# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The output folder of a run: whether a run may use it, and what an earlier one left there."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from sparsight.modeling.files import write_json
from sparsight.training.command_line.arguments import Settings
from sparsight.training.engine.checkpoints import STATE_FILE, find_checkpoints


ARGUMENTS_FILE, RESULTS_FILE = "arguments.json", "results.json"


def check_run_folder(settings: Settings) -> Path | None:
    """Whether a run with these settings may use its `output_dir`; reads only.

    Returns:
        The checkpoint to resume from, None to start from the beginning.

    Raises:
        ValueError: if the folder holds another run, or the checkpoint to resume from is missing or of another run.
    """
    values = settings.values()
    output_dir, resume_from = Path(values["output_dir"]), values["resume_from_checkpoint"]
    if resume_from is None:
        if output_dir.exists() and not output_dir.is_dir():
            raise ValueError(f"output_dir: {output_dir} is a file; give a folder")
        if output_dir.is_dir() and any(output_dir.iterdir()) and not values["overwrite"]:
            raise ValueError(
                f"output_dir: {output_dir} holds another run; give another one, --overwrite to replace it, "
                "or --resume_from_checkpoint latest to continue it"
            )
        return None
    if resume_from == "latest":
        run_dir, checkpoint = output_dir, next(reversed(find_checkpoints(output_dir)), None)
    else:
        checkpoint = Path(resume_from)
        run_dir = checkpoint.parent
        if not (checkpoint / STATE_FILE).is_file():
            raise ValueError(f"resume_from_checkpoint: {resume_from} is none; give a checkpoint-<step> folder")
    if (run_dir / ARGUMENTS_FILE).is_file():
        earlier = json.loads((run_dir / ARGUMENTS_FILE).read_text(encoding="utf-8"))
        free = settings.names("free_on_resume")
        for name, value in values.items():
            if name not in free and name in earlier and earlier[name] != value:
                raise ValueError(
                    f"{name}: the run in {run_dir} has {earlier[name]!r}, not {value!r}; give the same to resume it"
                )
    return checkpoint


def begin_run(settings: Settings, artifacts: Iterable[str]) -> None:
    """Record the run's settings; where it starts anew, remove what an earlier run left, `artifacts` by name."""
    values = settings.values()
    output_dir = Path(values["output_dir"])
    if values["resume_from_checkpoint"] is None:
        for path in [*find_checkpoints(output_dir), *(output_dir / name for name in artifacts)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    write_json(output_dir / ARGUMENTS_FILE, values)

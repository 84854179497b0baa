# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The output folder of a run: what may be written there, and checkpoints that a kill cannot break."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_model, save_model
from torch import nn

from sparsight.training.arguments import UsageError


ARGUMENTS_FILE = "arguments.json"
# Arguments that a resumed run may change: they alter where it ends or what is shown, not what a step does.
_FREE_ON_RESUME = (
    "output_dir",
    "overwrite",
    "resume_from_checkpoint",
    "num_epochs",
    "max_steps",
    "eval_batch_size",
    "num_workers",
    "logging_steps",
    "eval_epochs",
    "keep_checkpoints",
    "report_to",
    "push_to_hub",
    "hub_model_id",
    "hub_private",
    "hub_revision",
    "hub_strategy",
    "no_code",
    "command",
)


# ---------------------------------------------------------------------------------------------------------------------
# Written beside, and renamed into place
# ---------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def written_folder(target: Path) -> Iterator[Path]:
    """A folder to write into that takes the place of `target` when the block ends well, and is removed otherwise."""
    new, old = target.with_name(f"{target.name}.tmp"), target.with_name(f"{target.name}.old")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)
        new.rename(target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def recover_folder(target: Path) -> None:
    """Undo a [`written_folder`] that was killed between its two renamings."""
    old = target.with_name(f"{target.name}.old")
    if old.exists() and not target.exists():
        with contextlib.suppress(FileNotFoundError):  # another process was first
            old.rename(target)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write `values` beside `path` and rename them into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints
# ---------------------------------------------------------------------------------------------------------------------


def find_checkpoints(output_dir: Path) -> list[Path]:
    """Complete checkpoints in a run's folder, oldest first."""
    found = [path for path in output_dir.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def save_checkpoint(path: Path, accelerator: Accelerator, model: nn.Module, **states: Any) -> None:
    """Write the model's weights and `states`, plain containers of tensors and numbers."""
    with written_folder(path) as folder:
        save_model(model, str(folder / "weights.safetensors"))
        scaler = accelerator.scaler
        torch.save({**states, "scaler": scaler.state_dict() if scaler else None}, folder / "training_state.pt")


def load_checkpoint(path: Path, accelerator: Accelerator, model: nn.Module) -> dict[str, Any]:
    """Load the weights into `model`, and return the states.

    Raises:
        UsageError: if it is no checkpoint of this model.
    """
    try:
        load_model(model, path / "weights.safetensors")
        states = torch.load(path / "training_state.pt", map_location="cpu", weights_only=True)
    except (OSError, RuntimeError) as error:
        message = str(error).splitlines()[0]
        raise UsageError(f"--resume_from_checkpoint: {path} is no checkpoint of this run ({message})") from error
    if accelerator.scaler and states["scaler"]:
        accelerator.scaler.load_state_dict(states["scaler"])
    return states


# ---------------------------------------------------------------------------------------------------------------------
# Runs
# ---------------------------------------------------------------------------------------------------------------------


def check_run_folder(output_dir: Path, arguments: dict[str, Any]) -> Path | None:
    """Whether a run with these `arguments` may use the folder; reads only.

    Returns:
        The checkpoint to resume from, None to start from the beginning.

    Raises:
        UsageError: if the folder holds another run, or the checkpoint to resume from is missing or of another run.
    """
    resume_from = arguments["resume_from_checkpoint"]
    if resume_from is None:
        if output_dir.is_dir() and any(output_dir.iterdir()) and not arguments["overwrite"]:
            raise UsageError(
                f"--output_dir: {output_dir} holds another run; give another one, --overwrite to replace it, "
                "or --resume_from_checkpoint latest to continue it"
            )
        if output_dir.exists() and not output_dir.is_dir():
            raise UsageError(f"--output_dir: {output_dir} is a file; give a folder")
        return None
    if resume_from == "latest":
        checkpoints = find_checkpoints(output_dir)
        checkpoint = checkpoints[-1] if checkpoints else None
        run_dir = output_dir
    else:
        checkpoint = Path(resume_from)
        run_dir = checkpoint.parent
        if not (checkpoint / "training_state.pt").is_file():
            raise UsageError(f"--resume_from_checkpoint: {resume_from} is none; give a checkpoint-<step> folder")
    if (run_dir / ARGUMENTS_FILE).is_file():
        earlier = json.loads((run_dir / ARGUMENTS_FILE).read_text(encoding="utf-8"))
        for name, value in arguments.items():
            if name not in _FREE_ON_RESUME and name in earlier and earlier[name] != value:
                raise UsageError(
                    f"--{name}: the run in {run_dir} has {earlier[name]!r}, not {value!r}; give the same to resume it"
                )
    return checkpoint


def begin_run(output_dir: Path, arguments: dict[str, Any], artifacts: tuple[str, ...]) -> None:
    """Record the run's arguments; where it starts anew, remove what an earlier run left, `artifacts` by name."""
    if arguments["resume_from_checkpoint"] is None:
        for path in [*find_checkpoints(output_dir), *(output_dir / name for name in ("best", *artifacts))]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    write_json(output_dir / ARGUMENTS_FILE, arguments)

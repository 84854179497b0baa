# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training, from which it continues as if never stopped and which a kill cannot break."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_model, save_model
from torch import nn

from sparsight.configuration.messages import single_line
from sparsight.modeling.files import written_beside


WEIGHTS_FILE, STATE_FILE = "weights.safetensors", "training_state.pt"


def checkpoint_path(output_dir: Path, step: int) -> Path:
    """Where the checkpoint after an optimizer step lies."""
    return output_dir / f"checkpoint-{step}"


def find_checkpoints(output_dir: Path) -> list[Path]:
    """Complete checkpoints in a training's folder, oldest first."""
    found = [path for path in output_dir.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def save_checkpoint(path: Path, accelerator: Accelerator, model: nn.Module, states: Mapping[str, Any]) -> None:
    """Write the model's weights, and `states`, plain containers of tensors and numbers."""
    with written_beside(path) as folder:
        folder.mkdir()
        save_model(model, str(folder / WEIGHTS_FILE))
        scaler = accelerator.scaler
        torch.save({**states, "scaler": scaler.state_dict() if scaler else None}, folder / STATE_FILE)


def load_checkpoint(path: Path, accelerator: Accelerator, model: nn.Module) -> dict[str, Any]:
    """Load the weights into `model`, and return the states.

    Raises:
        ValueError: if it is no checkpoint of this model.
    """
    try:
        load_model(model, path / WEIGHTS_FILE)
        states = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True)
    except Exception as error:  # the readers of broken files raise many types
        message = single_line(next(iter(str(error).splitlines()), type(error).__name__))
        raise ValueError(
            f"resume_from_checkpoint: {path} is no checkpoint of this run ({message}); give another one"
        ) from error
    if accelerator.scaler and states["scaler"]:
        accelerator.scaler.load_state_dict(states["scaler"])
    return states

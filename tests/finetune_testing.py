# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What the tests of finetune_sparsity.py have in common: the job of each task in small."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from script_testing import SCRIPTS, Runs, Script


COLUMNS = ("before", "lora", "method")


@dataclass(frozen=True)
class Job:
    """A vanilla model that trains in a second, and its finetuning.

    Attributes:
        script: trains such models, and says how they are loaded and measured.
        vanilla_fields: turn the recipe of `script` into that of the vanilla model.
        vanilla_length: how long it is trained.
        finetuning: what the recipe of the finetuning has besides.
        num_steps: of vanilla, LoRA and method together.
        sparse_fields: config fields of the merged model.
        norm, zeroth_bias: ends of the names of their modules.
        targets: ends of the names of all matrices of attention and MLP; there are `num_matrices`.
        labels: of the layers.
    """

    script: Script
    vanilla_fields: dict[str, Any]
    vanilla_length: dict[str, Any]
    finetuning: dict[str, Any]
    num_steps: int
    sparse_fields: dict[str, Any]
    norm: str
    zeroth_bias: str
    targets: tuple[str, ...]
    num_matrices: int
    labels: tuple[str, ...]


JOBS = {
    "image": Job(
        script=replace(SCRIPTS["images"], module="finetune_sparsity"),
        vanilla_fields={"hidden_act": "relu", "zeroth_bias": False},
        vanilla_length={"num_epochs": 3},
        finetuning={"num_epochs": 3},
        num_steps=12 + 12 + 12,
        sparse_fields={"hidden_act": "jsrelu", "zeroth_bias": True},
        norm="layernorm_after",
        zeroth_bias="mlp.zeroth_bias",
        targets=(*(f"attention.{matrix}_proj" for matrix in "qkvo"), "mlp.fc1", "mlp.fc2"),
        num_matrices=2 * 6,
        labels=("layer 1", "layer 2"),
    ),
    "t5": Job(
        script=replace(SCRIPTS["t5"], module="finetune_sparsity"),
        vanilla_fields={"feed_forward_proj": "relu", "zeroth_bias": False},
        vanilla_length={"max_steps": 16},
        finetuning={"task": "t5", "mixing_steps": 4},
        num_steps=16 + 12 + 12,
        sparse_fields={"feed_forward_proj": "jsrelu", "zeroth_bias": True},
        norm="layer_norm",
        zeroth_bias="DenseReluDense.zeroth_bias",
        targets=(
            *(f"{attention}.{matrix}" for attention in ("SelfAttention", "EncDecAttention") for matrix in "qkvo"),
            *("DenseReluDense.wi", "DenseReluDense.wo"),
        ),
        num_matrices=2 * 6 + 2 * 10,
        labels=("encoder 1", "encoder 2", "decoder 1", "decoder 2"),
    ),
}


class Finetunings(Runs):
    """Runs of a job in subfolders of a folder."""

    def __init__(self, job: Job, folder: Path):
        self.job = job
        super().__init__(job.script, folder)
        vanilla_recipe = self.recipe.with_suffix(".vanilla.yaml")
        vanilla = yaml.safe_load(job.script.recipe)
        finetuning = {name: value for name, value in vanilla.items() if name not in ("model", "model_type")}
        vanilla["model"] |= job.vanilla_fields
        vanilla_recipe.write_text(yaml.safe_dump({**vanilla, **job.vanilla_length}))
        finetuning |= {**job.finetuning, "lora_rank": 4, "vanilla_recipe": str(vanilla_recipe)}
        self.recipe.write_text(yaml.safe_dump(finetuning))

    def vanilla_of(self, name: str) -> Path:
        """The checkpoint that the run `name` has trained."""
        return self.folder / name / "vanilla" / "model"

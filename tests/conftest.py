# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import os
import tempfile


# Before anything imports huggingface_hub: no test may reach for a network, or leave something in the user's cache.
_CACHE = tempfile.TemporaryDirectory(prefix="sparsight-tests-")
os.environ["HF_HOME"] = _CACHE.name
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

from sparsight import (
    SparseT5Config,
    SparseT5ForConditionalGeneration,
    SparseViTConfig,
    SparseViTForImageClassification,
)


ROOT = Path(__file__).parents[1]
TINY_VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 8,
    "patch_size": 2,
    "num_labels": 10,
}


TINY_T5 = {
    "vocab_size": 96,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}


@pytest.fixture(autouse=True)
def _deterministic():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def tiny_vit() -> dict:
    """Config fields of a ViT that is quick to run: 8×8 images, 17 tokens."""
    return dict(TINY_VIT)


def randomize(model: torch.nn.Module, std: float = 0.2, seed: int = 0) -> torch.nn.Module:
    """Draw every parameter, so that no zero or one hides a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    return model.eval()


@pytest.fixture
def sparse_vit(tiny_vit) -> SparseViTForImageClassification:
    """A Sparse ViT with random parameters, zeroth biases among them."""
    return randomize(SparseViTForImageClassification(SparseViTConfig(**tiny_vit)))


@pytest.fixture
def tiny_t5() -> dict:
    """Config fields of a T5 that is quick to run."""
    return dict(TINY_T5)


@pytest.fixture
def sparse_t5(tiny_t5) -> SparseT5ForConditionalGeneration:
    """A Sparse T5 with random parameters, zeroth biases among them."""
    return randomize(SparseT5ForConditionalGeneration(SparseT5Config(**tiny_t5)))


@pytest.fixture
def vanilla_vit(tiny_vit) -> ViTForImageClassification:
    """transformers' own ViT with random parameters."""
    return randomize(ViTForImageClassification(ViTConfig(**tiny_vit)))


@pytest.fixture
def pixel_values() -> torch.Tensor:
    return torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def run_python(*args: str, cwd: Path = ROOT, timeout: float = 240, **env: str) -> subprocess.CompletedProcess:
    """Run this interpreter with `args`, away from any network."""
    return subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


TINY_RECIPE = """
model_type: sparse_vit
dataset: digits
model:
  hidden_size: 16
  num_hidden_layers: 2
  num_attention_heads: 2
  intermediate_size: 32
  image_size: 8
  patch_size: 4
batch_size: 32
eval_batch_size: 64
learning_rate: 3.0e-3
crop_scale: [0.6, 1.0]
horizontal_flip: 0.0
max_train_samples: 128
max_eval_samples: 100
"""


@pytest.fixture
def tiny_recipe(tmp_path_factory) -> str:
    """A recipe that trains a Sparse ViT on a few digits: 4 optimizer steps an epoch of a few milliseconds each."""
    path = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    path.write_text(TINY_RECIPE)
    return str(path)


TINY_T5_RECIPE = """
model_type: sparse_t5
dataset: stdlib
vocab_size: 300
input_length: 24
max_train_samples: 4
max_eval_samples: 2
model:
  d_model: 16
  d_kv: 8
  d_ff: 32
  num_layers: 2
  num_heads: 2
  num_zeroth_bias_positions: 24
  num_decoder_zeroth_bias_positions: 16
batch_size: 16
eval_batch_size: 64
max_steps: 12
eval_epochs: 0.25
learning_rate: 1.0e-2
lr_scheduler: inverse_sqrt
warmup_steps: 2
"""


@pytest.fixture
def tiny_t5_recipe(tmp_path_factory) -> str:
    """A recipe that trains a Sparse T5 on a few texts, in steps of a few milliseconds."""
    path = tmp_path_factory.mktemp("recipe") / "tiny_t5.yaml"
    path.write_text(TINY_T5_RECIPE)
    return str(path)


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What tests of several folders share."""

import os
import subprocess
import sys
from pathlib import Path

import torch


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
TINY_T5_RECIPE = """
model_type: sparse_t5
dataset: stdlib
vocab_size: 300
input_length: 24
max_train_samples: 4
max_eval_samples: 1
model:
  d_model: 16
  d_kv: 8
  d_ff: 32
  num_layers: 2
  num_heads: 2
  num_zeroth_bias_positions: 24
  num_decoder_zeroth_bias_positions: 16
batch_size: 16
eval_batch_size: 5
max_steps: 12
eval_epochs: 0.25
learning_rate: 1.0e-2
lr_scheduler: inverse_sqrt
warmup_steps: 2
"""


def randomize(model: torch.nn.Module, std: float = 0.2, seed: int = 0) -> torch.nn.Module:
    """Draw every parameter, so that no zero or one hides a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    return model.eval()


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


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

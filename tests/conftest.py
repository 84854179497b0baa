# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import os
import tempfile


# Before anything imports huggingface_hub: no test may reach for a network, or leave something in the user's cache.
_CACHE = tempfile.TemporaryDirectory(prefix="sparsight-tests-")
os.environ["HF_HOME"] = _CACHE.name
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings
from transformers import ViTConfig, ViTForImageClassification

from crate_testing import GOLDEN, GoldenCrate
from helpers import TINY_RECIPE, TINY_T5, TINY_VIT, randomize
from sparsight import (
    SparseT5Config,
    SparseT5ForConditionalGeneration,
    SparseViTConfig,
    SparseViTForImageClassification,
)


# The same examples in every run, and no deadline that a busy machine could miss.
settings.register_profile("sparsight", derandomize=True, deadline=None)
settings.load_profile("sparsight")


@pytest.fixture(autouse=True)
def _deterministic():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def tiny_vit() -> dict:
    """Config fields of a ViT that is quick to run: 8×8 images, 17 tokens."""
    return dict(TINY_VIT)


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


@pytest.fixture
def tiny_recipe(tmp_path_factory) -> str:
    """A recipe that trains a Sparse ViT on a few digits: 4 optimizer steps an epoch of a few milliseconds each."""
    path = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    path.write_text(TINY_RECIPE)
    return str(path)


@pytest.fixture(params=sorted(path.stem for path in GOLDEN.glob("*.json")))
def golden_crate(request) -> GoldenCrate:
    """Each of the files with numbers of the authors' code."""
    return GoldenCrate.load(request.param)

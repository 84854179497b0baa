# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The adapter of the method holds all that the method changed, whichever way it is loaded."""

import pytest
import torch
from peft import AutoPeftModel, PeftModel
from transformers import ViTConfig, ViTForImageClassification

from helpers import TINY_VIT, randomize
from hub_testing import run_code
from sparsight import SparseViTForImageClassification
from sparsight.training.jobs.sparsity_finetuning import SPARSE_FORMS, FinetuneArguments, Finetuning


@pytest.fixture
def job(tmp_path) -> Finetuning:
    return Finetuning(FinetuneArguments(lora_rank=2), SPARSE_FORMS["image"], str(tmp_path / "vit"))


@pytest.fixture
def finetuned(tmp_path, job):
    """A vanilla checkpoint, an adapter of it in which everything trainable has moved, images and the logits."""
    randomize(ViTForImageClassification(ViTConfig(**TINY_VIT, hidden_act="relu"))).save_pretrained(tmp_path / "vit")
    model, _ = job.make_sparse(num_steps=3)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.eval().save_pretrained(tmp_path / "adapter")
    pixel_values = torch.randn(2, 3, 8, 8, generator=generator)
    with torch.no_grad():
        return tmp_path, pixel_values, model(pixel_values).logits


def test_on_its_base_model(finetuned, job):
    folder, pixel_values, logits = finetuned
    base = SparseViTForImageClassification.from_pretrained(folder / "vit", **job.base_fields())
    model = PeftModel.from_pretrained(base, folder / "adapter").eval()
    torch.testing.assert_close(model(pixel_values).logits, logits, rtol=0, atol=0)


def test_by_auto_peft_model(finetuned, job):
    """PEFT imports a package of others only on demand, and loads the base with the fields it is given."""
    folder, pixel_values, logits = finetuned
    allowed = {"import_allowlist": ["sparsight"]}
    model = AutoPeftModel.from_pretrained(str(folder / "adapter"), **allowed, **job.base_fields()).eval()
    torch.testing.assert_close(model(pixel_values).logits, logits, rtol=0, atol=0)


def test_without_sparsight(finetuned, job):
    """On a base model that was saved with its code."""
    folder, pixel_values, logits = finetuned
    base = SparseViTForImageClassification.from_pretrained(folder / "vit", **job.base_fields())
    base.save_pretrained(folder / "base")
    torch.save((pixel_values, logits), folder / "expected.pt")
    code = """
from pathlib import Path
import torch
from peft import PeftModel
from transformers import AutoModelForImageClassification
folder = Path(sys.argv[1])
pixel_values, logits = torch.load(folder / "expected.pt")
base = AutoModelForImageClassification.from_pretrained(folder / "base", trust_remote_code=True)
model = PeftModel.from_pretrained(base, folder / "adapter").eval()
assert torch.equal(model(pixel_values).logits, logits)
"""
    done = run_code(code, folder, HF_HOME=str(folder / "home"))
    assert done.returncode == 0, done.stderr[-3000:]

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The adapter of the recipe holds all that the recipe changed, whichever way it is loaded."""

import pytest
import torch
from peft import AutoPeftModel, PeftModel
from transformers import ViTConfig, ViTForImageClassification

from helpers import TINY_VIT, randomize
from hub_testing import run_code
from sparsight import SparseViTForImageClassification
from sparsight.training.finetune_sparsity import FinetuneArguments, base_fields, make_sparse
from sparsight.training.finetune_tasks import TASKS


TASK, ARGUMENTS = TASKS["image"], FinetuneArguments(lora_rank=2)


@pytest.fixture
def finetuned(tmp_path):
    """A vanilla checkpoint, an adapter of it in which everything trainable has moved, images and the logits."""
    randomize(ViTForImageClassification(ViTConfig(**TINY_VIT, hidden_act="relu"))).save_pretrained(tmp_path / "vit")
    model, _ = make_sparse(TASK, str(tmp_path / "vit"), ARGUMENTS, num_steps=3)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.eval().save_pretrained(tmp_path / "adapter")
    pixel_values = torch.randn(2, 3, 8, 8, generator=generator)
    with torch.no_grad():
        return tmp_path, pixel_values, model(pixel_values).logits


def test_on_its_base_model(finetuned):
    folder, pixel_values, logits = finetuned
    base = SparseViTForImageClassification.from_pretrained(
        folder / "vit", **base_fields(TASK, str(folder / "vit"), ARGUMENTS)
    )
    model = PeftModel.from_pretrained(base, folder / "adapter").eval()
    torch.testing.assert_close(model(pixel_values).logits, logits, rtol=0, atol=0)


def test_by_auto_peft_model(finetuned):
    """PEFT imports a package of others only on demand, and loads the base with the fields it is given."""
    folder, pixel_values, logits = finetuned
    fields = base_fields(TASK, str(folder / "vit"), ARGUMENTS)
    model = AutoPeftModel.from_pretrained(str(folder / "adapter"), import_allowlist=["sparsight"], **fields).eval()
    torch.testing.assert_close(model(pixel_values).logits, logits, rtol=0, atol=0)


def test_without_sparsight(finetuned):
    """On a base model that was saved with its code."""
    folder, pixel_values, logits = finetuned
    base = SparseViTForImageClassification.from_pretrained(
        folder / "vit", **base_fields(TASK, str(folder / "vit"), ARGUMENTS)
    )
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

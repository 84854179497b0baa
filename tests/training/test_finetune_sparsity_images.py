# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What is particular to finetuning an image classifier: the checkpoints that it takes, and those it refuses."""

import pytest
from transformers import DeiTConfig, DeiTForImageClassification, ViTConfig, ViTForImageClassification

from finetune_testing import JOBS, Finetunings
from script_testing import error_line


def small(**fields) -> dict:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return {**sizes, "image_size": 8, "patch_size": 4, **fields}


@pytest.fixture
def runs(tmp_path) -> Finetunings:
    return Finetunings(JOBS["image"], tmp_path)


def test_a_vit_of_transformers_with_gelu(runs):
    # And no image processor beside it.
    ViTForImageClassification(ViTConfig(**small(num_labels=10))).save_pretrained(runs.folder / "vit")
    results = runs("out", "--model_name_or_path", runs.folder / "vit", "--max_steps", "3")
    assert results["before"]["nonzero_share"] > 0.99  # GELU
    assert results["lora"]["nonzero_share"] > 0.99
    assert results["lora"]["training_nonzero_share"] is None  # its derivatives would cost a second pass
    assert results["method"]["nonzero_share"] < 0.9
    assert results["method"]["training_nonzero_share"] < 0.9


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: ViTForImageClassification(ViTConfig(**small(num_labels=7))), "--dataset: it has 10 classes, but"),
        (
            lambda: DeiTForImageClassification(DeiTConfig(**small())),
            "is a deit; the method is for vit and sparse_vit",
        ),
    ],
    ids=["class count", "family"],
)
def test_checkpoint_that_does_not_fit(model, message, runs, capsys):
    model().save_pretrained(runs.folder / "model")
    runs.refuse("out", "--model_name_or_path", runs.folder / "model")
    assert message in error_line(capsys)
    assert not (runs.folder / "out").exists()

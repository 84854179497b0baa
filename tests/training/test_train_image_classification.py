# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What is particular to train_image_classification.py: checkpoints with another head, CRATE, and unreadable images."""

from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from transformers import AutoConfig, AutoModelForImageClassification, PreTrainedModel

from script_testing import error_line
from sparsight import CrateForImageClassification


pytestmark = pytest.mark.parametrize("runs", ["images"], indirect=True)


def small_checkpoint(model_type: str, folder: Path, num_labels: int) -> PreTrainedModel:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    sizes |= {} if model_type == "crate" else {"intermediate_size": 16}
    config = AutoConfig.for_model(model_type, num_labels=num_labels, **sizes)
    model = AutoModelForImageClassification.from_config(config)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("model_type", ["vit", "sparse_vit", "crate"])
@pytest.mark.parametrize("num_labels", [3, 10])
def test_transfer_starts_from_the_checkpoint_with_a_new_head(runs, model_type, num_labels):
    checkpoint = small_checkpoint(model_type, runs.folder / "checkpoint", num_labels)
    recipe = yaml.safe_load(runs.script.recipe)
    del recipe["model"], recipe["model_type"]
    runs.recipe.write_text(yaml.safe_dump(recipe))
    # The step is too small to move anything.
    runs("run", "--model_name_or_path", runs.folder / "checkpoint", "--max_steps", "1", "--learning_rate", "1e-12")
    transferred = runs.script.load(runs.folder / "run" / "model")
    assert type(transferred) is type(checkpoint)
    assert transferred.config.id2label == {index: str(index) for index in range(10)}
    for name, parameter in transferred.named_parameters():
        before = checkpoint.get_parameter(name)
        if name.startswith("classifier"):
            assert parameter.shape[0] == 10
            assert parameter.shape != before.shape or not torch.allclose(parameter, before, atol=1e-3)
        else:
            torch.testing.assert_close(parameter, before, rtol=0, atol=1e-6)


def test_crate(runs):
    """By the recipe of the family, since none is named."""
    options = ["--model_type", "crate", "--model.num_hidden_layers", "2", "--model.patch_size", "4"]
    options += ["--max_train_samples", "512", "--max_eval_samples", "100", "--no_augmentation"]
    options += ["--batch_size", "32", "--num_epochs", "5", "--eval_epochs", "5"]
    results = runs.script.main([*options, "--output_dir", runs.folder / "run"])
    assert results["accuracy"] > 0.5
    model = runs.script.load(runs.folder / "run" / "model")
    assert type(model) is CrateForImageClassification
    batch = runs.script.make_batch(model, runs.folder / "run" / "model")
    with torch.no_grad():
        codes = model(batch["pixel_values"], output_hidden_states=True).hidden_states[1:]
    # The sparsity of CRATE is that of the codes after ISTA.
    assert results["nonzero_share_per_layer"] == [(code != 0).double().mean().item() for code in codes]


def test_unreadable_image_writes_nothing(runs, capsys):
    for name in ("cat", "dog"):
        (folder := runs.folder / "data" / "train" / name).mkdir(parents=True)
        for index in range(20):
            Image.new("RGB", (8, 8)).save(folder / f"{index}.png")
    bad = runs.folder / "data" / "train" / "dog" / "7.png"
    bad.write_bytes(b"no image")
    runs.refuse("run", "--dataset", runs.folder / "data")
    assert f"--dataset: cannot read {bad}" in error_line(capsys)
    assert not (runs.folder / "run").exists()

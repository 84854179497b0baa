# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What is particular to finetuning a T5: how the task is recognised, T5s of transformers, streams, and generation."""

import pytest
import torch
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration, ViTConfig

from finetune_testing import JOBS, Finetunings
from script_testing import STREAM, error_line
from sparsight.training.data.tokenization import train_tokenizer
from sparsight.training.finetune_sparsity import choose_task


FEW = ("--max_steps", "3", "--no_baseline")


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([f"The number {i} is followed by {i + 1}, a name." for i in range(300)], 300)


@pytest.fixture
def runs(tmp_path) -> Finetunings:
    return Finetunings(JOBS["t5"], tmp_path)


@pytest.fixture
def save_t5(runs, tokenizer):
    """Saves a T5 of transformers with an activation, and returns the arguments that name it."""

    def save(activation: str) -> tuple:
        sizes = {"vocab_size": 300, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
        config = T5Config(**sizes, decoder_start_token_id=0, feed_forward_proj=activation)
        T5ForConditionalGeneration(config).save_pretrained(runs.folder / "t5")
        tokenizer.save_pretrained(runs.folder / "t5")
        return "--model_name_or_path", runs.folder / "t5"

    return save


@pytest.mark.parametrize("activation", ["relu", "gated-gelu"])
def test_a_t5_of_transformers(runs, save_t5, activation):
    results = runs("out", *save_t5(activation), *FEW)
    gated = activation == "gated-gelu"
    assert (results["before"]["nonzero_share"] > 0.99) == gated
    assert results["method"]["nonzero_share"] < 0.9
    merged = runs.script.load(runs.folder / "out" / "merged")
    assert merged.config.feed_forward_proj == ("gated-jsrelu" if gated else "jsrelu")


def test_the_merged_model_fills_a_masked_span(runs, save_t5):
    """After training on a stream; by `generate`: transformers 5 has no pipeline for text to text."""
    packing = ("--packing", "within_batch", "--packing_batch_size", "2")
    runs("out", *save_t5("relu"), *FEW, *STREAM, *packing)
    folder = runs.folder / "out" / "merged"
    model, tokenizer = runs.script.load(folder), AutoTokenizer.from_pretrained(folder)
    assert model.lm_head.weight is model.shared.weight
    inputs = tokenizer(["The <extra_id_0> is a name.", "A name <extra_id_0>."], return_tensors="pt", padding=True)
    filled = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert (filled[:, 0] == tokenizer.pad_token_id).all()
    assert filled.shape == (2, 9)
    assert torch.equal(filled, model.generate(**inputs, max_new_tokens=8, do_sample=False, use_cache=False))


def test_task_is_recognised(runs, tmp_path):
    """From the checkpoint, from a recipe, from the command line, which goes first; images where nothing is said."""
    T5Config().save_pretrained(tmp_path / "t5")
    ViTConfig().save_pretrained(tmp_path / "vit")
    t5, recipe = str(tmp_path / "t5"), str(runs.recipe)
    assert choose_task(["--model_name_or_path", t5]) == "t5"
    assert choose_task([f"--model_name_or_path={t5}"]) == "t5"
    assert choose_task(["--model_name_or_path", str(tmp_path / "vit")]) == "image"
    assert choose_task(["--model_name_or_path", t5, "--task", "image"]) == "image"
    assert choose_task(["--recipe", recipe]) == "t5"
    assert choose_task(["--recipe", recipe, "--task", "image"]) == "image"
    assert choose_task(["--model_name_or_path", "./nowhere"]) == "image"
    assert choose_task([]) == "image"


def test_a_t5_where_images_are_asked_for(runs, save_t5, capsys):
    runs.recipe.write_text("dataset: digits\n")
    runs.refuse("out", "--task", "image", *save_t5("relu"))
    assert "--model_name_or_path: cannot load" in error_line(capsys)
    assert not (runs.folder / "out").exists()

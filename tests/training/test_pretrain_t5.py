# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What is particular to pretrain_t5.py: tokenizers, text files, and tied embeddings."""

import pytest
import yaml
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration, T5Tokenizer

from helpers import snapshot
from script_testing import error_line


pytestmark = pytest.mark.parametrize("runs", ["t5"], indirect=True)


def test_the_tokenizer_lies_beside_the_model(runs):
    runs("run", "--max_steps", "2")
    tokenizer = AutoTokenizer.from_pretrained(runs.folder / "run" / "model")
    assert type(tokenizer) is T5Tokenizer
    assert len(tokenizer) == 300
    model = runs.script.load(runs.folder / "run" / "model")
    assert model.lm_head.weight is model.shared.weight
    files = snapshot(runs.folder / "run")
    assert files["best/tokenizer.json"] == files["model/tokenizer.json"]


def test_text_files_and_a_named_tokenizer(runs):
    runs("first", "--max_steps", "2")
    text = runs.folder / "text.txt"
    text.write_text("\n\n".join(f"The number {i} is followed by {i + 1}." for i in range(900)))
    named = ("--dataset", text, "--tokenizer_name", runs.folder / "first" / "model")
    runs("second", *named, "--max_train_samples", "0", "--max_eval_samples", "0")
    first, second = (AutoTokenizer.from_pretrained(runs.folder / name / "model") for name in ("first", "second"))
    assert second.get_vocab() == first.get_vocab()


def test_goes_on_from_a_checkpoint(runs):
    first = runs("first", "--max_steps", "8")
    recipe = yaml.safe_load(runs.script.recipe)
    runs.recipe.write_text(yaml.safe_dump({name: value for name, value in recipe.items() if name != "model"}))
    options = ("--model_name_or_path", runs.folder / "first" / "model", "--learning_rate", "1e-6", "--max_steps", "2")
    assert runs("second", *options)["loss"] == pytest.approx(first["loss"], abs=1e-2)


def test_model_without_a_tokenizer(runs, tiny_t5, capsys):
    T5ForConditionalGeneration(T5Config(**tiny_t5)).save_pretrained(runs.folder / "t5")
    runs.recipe.write_text("dataset: stdlib\ninput_length: 24\n")
    runs.refuse("run", "--model_name_or_path", runs.folder / "t5")
    assert f"--model_name_or_path: {runs.folder / 't5'} has no tokenizer" in error_line(capsys)
    assert not (runs.folder / "run").exists()

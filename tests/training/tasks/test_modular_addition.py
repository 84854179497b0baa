# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, LlamaForCausalLM, PreTrainedModel

from helpers import randomize
from script_testing import starting_from
from sparsight.training import train
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.tasks.modular_addition import AdditionArguments, ModularAddition


SIZES = {
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2},
    "llama": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 32,
    },
}


def make_task(modulus: int = 7, train_share: float = 0.7, **loop) -> ModularAddition:
    return ModularAddition(AdditionArguments(modulus, train_share), LoopArguments(**loop))


def make_model(task: ModularAddition, model_type: str = "gpt2") -> PreTrainedModel:
    return randomize(task.make_model(starting_from(model_type, **SIZES[model_type]))[0], std=0.5)


def rows(pairs) -> list[tuple[int, ...]]:
    return [(*tokens.tolist(), target.item()) for tokens, target in pairs]


# --- data ------------------------------------------------------------------------------------------------------------


@given(st.integers(3, 12), st.floats(0.1, 0.9), st.integers(0, 99))
def test_every_pair_is_trained_on_or_held_out(modulus, share, seed):
    data = make_task(modulus, share, seed=seed).data
    expected = []
    for a in range(modulus):
        for b in range(modulus):
            total = a + b
            while total >= modulus:
                total -= modulus
            expected.append((a, b, modulus, total))
    assert sorted(rows(data.train) + rows(data.eval)) == expected
    assert len(data.train) == round(share * modulus**2)
    assert data.eval_split == "the held-out pairs"


def test_the_seed_splits():
    splits = [rows(make_task(seed=seed).data.train) for seed in (0, 0, 1)]
    assert splits[0] == splits[1]
    assert set(splits[0]) != set(splits[2])
    assert splits[0] != sorted(splits[0])


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_neither_side_is_empty(share):
    with pytest.raises(ValueError, match=rf"^train_share: {share} of 9 pairs is (0|9); leave some to either side"):
        make_task(3, share)


def test_loaders(accelerator):
    task = make_task(batch_size=8)
    task.prepare(make_model(task), None, accelerator)
    per_epoch = len(task.data.train) // 8
    batches = list(itertools.islice(task.train_loader, 2 * per_epoch))
    epochs = [
        [row for batch in part for row in rows(zip(batch["input_ids"], batch["labels"], strict=True))]
        for part in (batches[:per_epoch], batches[per_epoch:])
    ]
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch) == per_epoch * 8
        assert set(epoch) <= set(rows(task.data.train))
    assert epochs[0] != epochs[1]
    held_out = [row for b in task.eval_loader for row in rows(zip(b["input_ids"], b["labels"], strict=True))]
    assert held_out == rows(task.data.eval)


# --- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "model_class"), [("gpt2", GPT2LMHeadModel), ("llama", LlamaForCausalLM)])
def test_model(family, model_class, tmp_path):
    task = make_task()
    model, processor = task.make_model(starting_from(family, **SIZES[family]))
    assert type(model) is model_class
    assert processor is None
    config = model.config
    assert (config.vocab_size, config.max_position_embeddings) == (8, 3)
    assert config.bos_token_id is config.eos_token_id is None
    assert model(torch.tensor([[1, 2, 7]])).logits.shape == (1, 3, 8)
    # And from a checkpoint, with the fields that the user gives.
    model.save_pretrained(tmp_path)
    loaded, processor = task.make_model(starting_from(checkpoint=tmp_path, use_cache=False))
    assert type(loaded) is model_class
    assert loaded.config.use_cache is False
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_models_that_do_not_fit(tmp_path):
    make_model(make_task(7)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=rf"^modulus: 11 needs 12 tokens, and {tmp_path} has 8$"):
        make_task(11).make_model(starting_from(checkpoint=tmp_path))
    with pytest.raises(ValueError, match=r"^modulus: 11 needs 12 tokens, and the model has 5$"):
        make_task(11).make_model(starting_from("gpt2", **SIZES["gpt2"], vocab_size=5))
    with pytest.raises(ValueError, match=r"^model_type: unknown 'gpt'; did you mean gpt2\?"):
        make_task().make_model(starting_from("gpt"))
    with pytest.raises(ValueError, match=r"^model.n_emb: gpt2 has no such field; did you mean n_embd"):
        make_task().make_model(starting_from("gpt2", **SIZES["gpt2"], n_emb=3))


# --- loss and evaluation ---------------------------------------------------------------------------------------------


def log_probabilities(model: PreTrainedModel, row: tuple[int, ...]) -> list[float]:
    """Of every sum, from a row of its own."""
    with torch.no_grad():
        scores = model(torch.tensor([row[:3]])).logits[0, 2].tolist()
    total = math.log(sum(math.exp(score) for score in scores))
    return [score - total for score in scores]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("family", SIZES)
def test_loss_by_hand(family, smoothing):
    task = make_task(label_smoothing=smoothing)
    model = make_model(task, family)
    batch = rows(task.data.train)[:9]
    losses = []
    for row in batch:
        found = log_probabilities(model, row)
        losses.append(-(1 - smoothing) * found[row[3]] - smoothing * sum(found) / len(found))
    tensors = {"input_ids": torch.tensor([r[:3] for r in batch]), "labels": torch.tensor([r[3] for r in batch])}
    loss = task.compute_loss(model, tensors)
    assert loss.item() == pytest.approx(sum(losses) / 9, rel=1e-5)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("family", SIZES)
def test_evaluation_by_hand(family, accelerator):
    """Of the held-out pairs, by batches that do not divide them; smoothing is for training alone."""
    task = make_task(13, batch_size=64, eval_batch_size=8, label_smoothing=0.3)
    model = make_model(task, family)
    task.prepare(model, None, accelerator)
    model.train()
    found = task.evaluate(model)
    assert not model.training
    held_out = rows(task.data.eval)
    by_row = [(log_probabilities(model, row), row[3]) for row in held_out]
    correct = sum(max(range(14), key=scores.__getitem__) == target for scores, target in by_row)
    assert found["num_examples"] == len(held_out) == 169 - round(0.7 * 169)
    assert found["accuracy"] == correct / len(held_out)
    assert found["loss"] == pytest.approx(-sum(scores[target] for scores, target in by_row) / len(held_out), rel=1e-5)


# --- learning --------------------------------------------------------------------------------------------------------


def test_it_generalizes(tmp_path):
    """The recipe with 11 numbers: all that is trained on is known, and most of what is held out, where one in 11 is
    chance."""
    args = ["--recipe", "modular_addition", "--modulus", "11", "--train_share", "0.8", "--batch_size", "97"]
    args += ["--max_steps", "250", "--eval_epochs", "250", "--measure_sparsity", "never"]
    results = train.main([*args, "--output_dir", str(tmp_path / "run")])
    assert (results["num_examples"], results["num_steps"]) == (24, 250)
    assert results["accuracy"] > 0.5
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    tokens, targets = make_task(11, 0.8).data.train.tensors
    with torch.no_grad():
        predictions = model(tokens).logits[:, -1].argmax(-1)
    assert torch.equal(predictions, targets)

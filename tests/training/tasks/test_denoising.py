# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import math
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F

from script_testing import TINY_TEXTS, starting_from
from sparsight import SparseT5Config, SparseT5ForConditionalGeneration
from sparsight.training.data.packing import TextArguments
from sparsight.training.data.texts import Texts
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.tasks.denoising import TextDenoising


def make_task(data: Texts | None = None, loop: dict[str, Any] | None = None, **fields: Any) -> TextDenoising:
    """A task on these texts, or one whose data are not needed."""
    data = data or Texts(None, None, "test")
    return TextDenoising(TextArguments(**{**TINY_TEXTS, **fields}), LoopArguments(**loop or {}), data)


def evaluate(accelerator: Accelerator, model: nn.Module, batches: list, **loop: Any) -> dict[str, Any]:
    task = make_task(loop=loop)
    task.accelerator, task.eval_loader = accelerator, batches
    return task.evaluate(model)


# --- loss and evaluation ---------------------------------------------------------------------------------------------


def make_batch(batch_size: int, length: int, target_length: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "input_ids": torch.randint(2, 90, (batch_size, length), generator=generator),
        "labels": torch.randint(2, 90, (batch_size, target_length), generator=generator),
    }


def test_loss_is_the_models(sparse_t5):
    batch = make_batch(3, 7, 5)
    expected = sparse_t5(**batch).loss
    torch.testing.assert_close(make_task().compute_loss(sparse_t5, batch), expected)
    batch["labels"][1, 3:] = -100
    expected = sparse_t5(**batch).loss
    torch.testing.assert_close(make_task().compute_loss(sparse_t5, batch), expected)
    smoothed = make_task(loop={"label_smoothing": 0.2}).compute_loss(sparse_t5, batch)
    logits = sparse_t5(**batch).logits
    expected = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.2)
    torch.testing.assert_close(smoothed, expected)


def test_evaluation_by_hand(sparse_t5, accelerator):
    batches = [make_batch(3, 7, 5), make_batch(2, 7, 5, seed=1)]
    activations = {"encoder": [[], []], "decoder": [[], []]}
    for side, layers in activations.items():
        for block, seen in zip(getattr(sparse_t5, side).block, layers, strict=True):
            block.layer[-1].DenseReluDense.act.register_forward_hook(
                lambda module, args, output, seen=seen: seen.append(output.gt(0).flatten())
            )
    losses = [sparse_t5(**batch).loss for batch in batches]
    active = {side: [torch.cat(seen) for seen in layers] for side, layers in activations.items()}
    shares = {side: [seen.double().mean().item() for seen in layers] for side, layers in active.items()}
    overall = torch.cat([*active["encoder"], *active["decoder"]]).double().mean().item()
    found = evaluate(accelerator, sparse_t5, batches, label_smoothing=0.2)  # which is for training alone
    assert found["loss"] == pytest.approx((3 * losses[0] + 2 * losses[1]).item() / 5, rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert (found["num_examples"], found["num_target_tokens"]) == (5, 25)
    assert (found["num_encoder_tokens"], found["num_decoder_tokens"]) == (35, 25)
    assert found["encoder_nonzero_share_per_layer"] == pytest.approx(shares["encoder"])
    assert found["decoder_nonzero_share_per_layer"] == pytest.approx(shares["decoder"])
    assert found["nonzero_share"] == pytest.approx(overall)
    assert found["encoder_derivative_nonzero_share_per_layer"] == found["encoder_nonzero_share_per_layer"]
    assert found["decoder_derivative_nonzero_share_per_layer"] == found["decoder_nonzero_share_per_layer"]
    without = evaluate(accelerator, sparse_t5, batches, measure_sparsity="never")
    assert without == {name: found[name] for name in ("loss", "perplexity", "num_examples", "num_target_tokens")}


def test_padding_counts_nowhere(sparse_t5, accelerator):
    """Examples of several lengths in one padded batch, and one at a time."""
    lengths = [(7, 5), (4, 5), (6, 2)]
    examples = [make_batch(1, *pair, seed=index) for index, pair in enumerate(lengths)]
    padded = {
        "input_ids": torch.cat([F.pad(e["input_ids"], (0, 7 - e["input_ids"].shape[1])) for e in examples]),
        "labels": torch.cat([F.pad(e["labels"], (0, 5 - e["labels"].shape[1]), value=-100) for e in examples]),
    }
    padded["attention_mask"] = padded["input_ids"].ne(0).long()
    padded["decoder_attention_mask"] = padded["labels"].ne(-100).long()
    alone = evaluate(accelerator, sparse_t5, examples)
    together = evaluate(accelerator, sparse_t5, [padded])
    assert (together["num_encoder_tokens"], together["num_decoder_tokens"]) == (17, 12)
    for name, value in alone.items():
        assert together[name] == pytest.approx(value, rel=1e-5), name


def test_encoder_and_decoder_of_different_depth(tiny_t5, accelerator):
    model = SparseT5ForConditionalGeneration(SparseT5Config(**tiny_t5, num_decoder_layers=1))
    found = evaluate(accelerator, model, [make_batch(2, 6, 4)])
    assert len(found["encoder_nonzero_share_per_layer"]) == 2
    assert len(found["decoder_nonzero_share_per_layer"]) == 1


def test_evaluation_is_without_dropout(tiny_t5, accelerator):
    model = SparseT5ForConditionalGeneration(SparseT5Config(**tiny_t5, dropout_rate=0.5)).train()
    batches = [make_batch(3, 7, 5)]
    first = evaluate(accelerator, model, batches)
    assert not model.training
    assert evaluate(accelerator, model.train(), batches) == first
    with torch.no_grad():
        assert first["loss"] == pytest.approx(model.eval()(**batches[0]).loss.item(), rel=1e-6)


def test_a_perplexity_beyond_all_floats_is_infinite():
    found = make_task().summarize({"loss": 8000.0, "num_target_tokens": 10.0, "num_examples": 2.0})
    assert (found["loss"], found["perplexity"]) == (800, math.inf)


# --- model and tokenizer ---------------------------------------------------------------------------------------------


SIZES = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}


def test_from_scratch_with_a_tokenizer_of_the_training_texts(texts, tokenizer):
    model, found = make_task(texts).make_model(starting_from("sparse_t5", **SIZES))
    assert type(model) is SparseT5ForConditionalGeneration
    assert found._tokenizer.to_str() == tokenizer._tokenizer.to_str()
    config = model.config
    assert (config.vocab_size, config.d_model) == (len(tokenizer), 16)
    assert (config.pad_token_id, config.eos_token_id, config.decoder_start_token_id) == (0, 1, 0)
    # The vocabulary may be rounded up.
    model, _ = make_task(texts).make_model(starting_from("sparse_t5", **SIZES, vocab_size=512))
    assert model.shared.weight.shape == (512, 16)


def test_a_tokenizer_that_is_named_goes_before_others(texts, tmp_path):
    task = make_task(texts)
    model, own = task.make_model(starting_from("sparse_t5", **SIZES))
    model.save_pretrained(tmp_path / "checkpoint")
    own.save_pretrained(tmp_path / "checkpoint")
    other = make_task(texts, vocab_size=300)
    _, named = other.make_model(starting_from("sparse_t5", **SIZES))
    named.save_pretrained(tmp_path / "tokenizer")
    assert named.get_vocab() != own.get_vocab()

    with_name = make_task(texts, tokenizer_name=str(tmp_path / "tokenizer"))
    model, found = with_name.make_model(starting_from("sparse_t5", **SIZES))
    assert found.get_vocab() == named.get_vocab()
    assert model.config.vocab_size == len(named)
    _, found = with_name.make_model(starting_from(checkpoint=tmp_path / "checkpoint"))
    assert found.get_vocab() == named.get_vocab()
    loaded, found = task.make_model(starting_from(checkpoint=tmp_path / "checkpoint", dropout_rate=0.3))
    assert found.get_vocab() == own.get_vocab()
    assert loaded.config.dropout_rate == 0.3


def test_what_does_not_fit(texts, tokenizer, tmp_path):
    with pytest.raises(
        ValueError, match=rf"^tokenizer_name: the tokenizer has {len(tokenizer)} tokens, and the model 9"
    ):
        make_task(texts).make_model(starting_from("sparse_t5", **SIZES, vocab_size=99))
    model, _ = make_task(texts).make_model(starting_from("sparse_t5", **SIZES))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"^model_name_or_path: .* has no tokenizer; give --tokenizer_name"):
        make_task(texts).make_model(starting_from(checkpoint=tmp_path))
    with pytest.raises(ValueError, match=r"^model_type: unknown 't5'; known are sparse_t5"):
        make_task(texts).make_model(starting_from("t5"))
    with pytest.raises(ValueError, match=r"^model.d_modle: sparse_t5 has no such field; did you mean d_model"):
        make_task(texts).make_model(starting_from("sparse_t5", d_modle=8))


def test_loaders(texts, tokenizer, accelerator, sparse_t5):
    task = make_task(texts, {"batch_size": 8, "eval_batch_size": 16})
    task.prepare(sparse_t5, tokenizer, accelerator)
    batch = next(iter(task.train_loader))
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        "input_ids": (8, 32),
        "labels": (8, task.arguments.lengths.target_length),
    }
    assert {batch["labels"].shape[1] for batch in task.eval_loader} == {task.arguments.lengths.target_length}

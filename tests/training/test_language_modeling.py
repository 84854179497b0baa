# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from accelerate import Accelerator
from torch.nn import functional as F

from sparsight import SparseT5Config, SparseT5ForConditionalGeneration
from sparsight.training.arguments import LoopArguments
from sparsight.training.language_modeling import evaluate_language_model, make_compute_loss


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def make_batch(batch_size: int, length: int, target_length: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "input_ids": torch.randint(2, 90, (batch_size, length), generator=generator),
        "labels": torch.randint(2, 90, (batch_size, target_length), generator=generator),
    }


def test_loss_is_the_models(sparse_t5):
    batch = make_batch(3, 7, 5)
    expected = sparse_t5(**batch).loss
    torch.testing.assert_close(make_compute_loss(LoopArguments())(sparse_t5, batch), expected)
    batch["labels"][1, 3:] = -100
    expected = sparse_t5(**batch).loss
    torch.testing.assert_close(make_compute_loss(LoopArguments())(sparse_t5, batch), expected)
    smoothed = make_compute_loss(LoopArguments(label_smoothing=0.2))(sparse_t5, batch)
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
    found = evaluate_language_model(accelerator, sparse_t5, batches)
    assert found.loss == pytest.approx((3 * losses[0] + 2 * losses[1]).item() / 5, rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    assert (found.num_examples, found.num_target_tokens) == (5, 25)
    assert (found.num_encoder_tokens, found.num_decoder_tokens) == (35, 25)
    assert found.encoder_nonzero_share_per_layer == pytest.approx(shares["encoder"])
    assert found.decoder_nonzero_share_per_layer == pytest.approx(shares["decoder"])
    assert found.nonzero_share == pytest.approx(overall)
    assert found.encoder_derivative_nonzero_share_per_layer == found.encoder_nonzero_share_per_layer
    assert found.decoder_derivative_nonzero_share_per_layer == found.decoder_nonzero_share_per_layer


def test_padding_counts_nowhere(sparse_t5, accelerator):
    """Examples of several lengths in one padded batch, and one at a time."""
    lengths = [(7, 5), (4, 5), (6, 2)]
    examples = [make_batch(1, *pair, seed=index) for index, pair in enumerate(lengths)]
    padded = {
        "input_ids": torch.cat([F.pad(e["input_ids"], (0, 7 - e["input_ids"].shape[1])) for e in examples]),
        "labels": torch.cat([F.pad(e["labels"], (0, 5 - e["labels"].shape[1]), value=-100) for e in examples]),
    }
    padded["attention_mask"] = padded["input_ids"].ne(0).long()
    alone = evaluate_language_model(accelerator, sparse_t5, examples)
    together = evaluate_language_model(accelerator, sparse_t5, [padded])
    assert (together.num_encoder_tokens, together.num_decoder_tokens) == (17, 12)
    for name, value in vars(alone).items():
        assert getattr(together, name) == pytest.approx(value, rel=1e-5), name


def test_encoder_and_decoder_of_different_depth(tiny_t5, accelerator):
    model = SparseT5ForConditionalGeneration(SparseT5Config(**tiny_t5, num_decoder_layers=1))
    found = evaluate_language_model(accelerator, model, [make_batch(2, 6, 4)])
    assert len(found.encoder_nonzero_share_per_layer) == 2
    assert len(found.decoder_nonzero_share_per_layer) == 1

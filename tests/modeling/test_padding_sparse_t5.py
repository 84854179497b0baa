# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Padding changes nothing: a token's zeroth bias is that of its place among the tokens which the mask leaves."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import create_block_mask
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from helpers import randomize
from sparsight import SparseT5Config, SparseT5EncoderModel, SparseT5ForConditionalGeneration, ZerothBias


TEXTS = [[5, 6, 7, 8, 9, 1], [11, 12, 13, 1], [2, 1]]
PROMPTS = [[0, 41, 42, 43], [0, 51], [0, 61, 62]]


def pad(rows: list[list[int]], side: str = "left", more: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows padded to the longest and `more`, and their mask."""
    length = max(map(len, rows)) + more
    padding = [[0] * (length - len(row)) for row in rows]
    pairs = list(zip(rows, padding, strict=True))
    ids = [empty + row if side == "left" else row + empty for row, empty in pairs]
    mask = [
        [0] * len(empty) + [1] * len(row) if side == "left" else [1] * len(row) + [0] * len(empty)
        for row, empty in pairs
    ]
    return torch.tensor(ids), torch.tensor(mask)


@pytest.fixture
def model(tiny_t5) -> SparseT5ForConditionalGeneration:
    """Zeroth biases on the first 6 and 9 positions, so large that they decide the tokens."""
    config = SparseT5Config(
        **tiny_t5, dropout_rate=0.0, num_zeroth_bias_positions=6, num_decoder_zeroth_bias_positions=9
    )
    model = randomize(SparseT5ForConditionalGeneration(config))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, ZerothBias):
                module.weight.mul_(10)
    return model


def positions_in_use(stack, **inputs) -> list[torch.Tensor]:
    """The positions that each zeroth bias of a stack is called with."""
    found = []
    hooks = [
        module.register_forward_pre_hook(lambda module, args: found.append(args[1]))
        for module in stack.modules()
        if isinstance(module, ZerothBias)
    ]
    stack(**inputs)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batch_is_each_text_alone(model, side, attention):
    """Texts and decoder prompts of unequal lengths, padded beyond the positions that have a bias."""
    model.set_attn_implementation(attention)
    input_ids, mask = pad(TEXTS, side, more=2)
    decoder_input_ids, decoder_mask = pad(PROMPTS, side, more=8)
    logits = model(
        input_ids=input_ids, attention_mask=mask, decoder_input_ids=decoder_input_ids,
        decoder_attention_mask=decoder_mask,
    ).logits  # fmt: skip
    for row, (text, prompt) in enumerate(zip(TEXTS, PROMPTS, strict=True)):
        alone = model(input_ids=torch.tensor([text]), decoder_input_ids=torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(logits[row][decoder_mask[row].bool()], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float32])
def test_positions_under_a_mask_with_holes(sparse_t5, dtype):
    mask = torch.tensor([[0, 1, 1, 0, 0, 1, 1, 0], [1, 0, 1, 1, 1, 1, 0, 1], [0] * 8])
    expected = torch.tensor([[sum(row[:column]) for column in range(8)] for row in mask.tolist()])
    input_ids = torch.randint(2, 90, mask.shape)
    for stack in (sparse_t5.encoder, sparse_t5.decoder):
        found = positions_in_use(stack, input_ids=input_ids, attention_mask=mask.to(dtype))
        assert len(found) == 2
        assert all(torch.equal(positions, expected) for positions in found)


def test_without_padding_nothing_changes(sparse_t5):
    """Without a mask the positions are the columns, and a mask of ones makes no difference."""
    input_ids = torch.randint(2, 90, (3, 7))
    for stack in (sparse_t5.encoder, sparse_t5.decoder):
        assert all(torch.equal(found, torch.arange(7)) for found in positions_in_use(stack, input_ids=input_ids))
    encoder = sparse_t5.encoder
    plain = encoder(input_ids).last_hidden_state
    masked = encoder(input_ids, attention_mask=torch.ones_like(input_ids)).last_hidden_state
    torch.testing.assert_close(masked, plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("added", [False, True])
def test_four_dimensional_masks(model, added):
    """As attention takes them: 0 or the lowest number, to be added to the scores, or true and false."""
    input_ids, mask = pad(TEXTS, more=2)
    allowed = mask.bool()[:, None, None].expand(-1, 1, mask.shape[1], -1)
    lowest = torch.finfo(torch.float32).min
    for stack, square in ((model.encoder, allowed), (model.decoder, allowed.tril())):
        square_mask = torch.where(square, 0.0, lowest) if added else square
        expected = positions_in_use(stack, input_ids=input_ids, attention_mask=mask)
        found = positions_in_use(stack, input_ids=input_ids, attention_mask=square_mask)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_mask_of_flex_attention(tiny_t5):
    encoder = SparseT5EncoderModel(SparseT5Config(**tiny_t5)).encoder
    input_ids, mask = pad(TEXTS, more=2)
    attended = mask.bool()
    block_mask = create_block_mask(lambda b, h, q, kv: attended[b, kv], 3, None, 8, 8, device="cpu", BLOCK_SIZE=8)
    expected = encoder._find_token_positions(input_ids, mask, None)
    assert torch.equal(encoder._find_token_positions(input_ids, block_mask, None), expected)


def test_gradients_of_a_padded_batch(model):
    """Those of the texts one by one, with and without gradient checkpointing."""
    labels = torch.tensor([[21, 22, 1], [31, 32, 1], [33, 34, 1]])
    input_ids, mask = pad(TEXTS, more=2)
    inputs = [{"input_ids": input_ids, "attention_mask": mask, "labels": labels}]
    alone = [{"input_ids": torch.tensor([text]), "labels": row[None]} for text, row in zip(TEXTS, labels, strict=True)]

    def gradients(batches):
        model.zero_grad()
        for batch in batches:
            (model(**batch).loss / len(batches)).backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    model.train()
    expected = gradients(alone)
    torch.testing.assert_close(gradients(inputs), expected, rtol=1e-4, atol=1e-5)
    model.gradient_checkpointing_enable()
    torch.testing.assert_close(gradients(inputs), expected, rtol=1e-4, atol=1e-5)


# --- decoding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_padded_prompts_go_on_as_each_alone(model, num_beams, cache):
    how = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "num_beams": num_beams}
    how |= {"use_cache": False} if cache is None else {"cache_implementation": cache}
    input_ids, mask = pad(TEXTS, more=2)
    decoder_input_ids, decoder_mask = pad(PROMPTS, more=2)
    found = model.generate(
        input_ids, attention_mask=mask, decoder_input_ids=decoder_input_ids, decoder_attention_mask=decoder_mask, **how
    )
    for row, (text, prompt) in enumerate(zip(TEXTS, PROMPTS, strict=True)):
        alone = model.generate(torch.tensor([text]), decoder_input_ids=torch.tensor([prompt]), **how)
        assert torch.equal(found[row][decoder_input_ids.shape[1] :], alone[0][len(prompt) :])


@pytest.fixture
def padded_prompts(model):
    """The model's other inputs, decoder tokens of 16 columns with a mask, and their logits in one pass."""
    input_ids, mask = pad(TEXTS)
    decoder_input_ids = torch.randint(2, 90, (3, 16))
    decoder_mask = torch.ones(3, 16, dtype=torch.long)
    decoder_mask[1, :3] = decoder_mask[2, :1] = 0
    encoder_outputs = model.encoder(input_ids=input_ids, attention_mask=mask)
    inputs = {"encoder_outputs": encoder_outputs, "attention_mask": mask}
    full = model(**inputs, decoder_input_ids=decoder_input_ids, decoder_attention_mask=decoder_mask).logits
    return inputs, decoder_input_ids, decoder_mask, full


def assert_close_where_attended(found, expected, mask) -> None:
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("split", [1, 3, 5])
def test_chunks_of_several_tokens(model, padded_prompts, split):
    inputs, decoder_input_ids, decoder_mask, full = padded_prompts
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    found, end = [], 0
    for chunk in decoder_input_ids.split(split, dim=1):
        end += chunk.shape[1]
        mask = decoder_mask[:, :end]
        found.append(model(**inputs, decoder_input_ids=chunk, decoder_attention_mask=mask, cache=cache).logits)
    assert_close_where_attended(torch.cat(found, 1), full, decoder_mask)


@torch.no_grad()
@pytest.mark.parametrize("four_dimensional", [False, True])
def test_compiled_decode_step_is_compiled_once(model, padded_prompts, four_dimensional):
    """In one graph, so that nothing waits for the device: with a mask of all columns, or as `generate` makes it."""
    inputs, decoder_input_ids, decoder_mask, full = padded_prompts
    cache = EncoderDecoderCache(
        StaticCache(config=model.config, max_cache_len=16), StaticCache(config=model.config, max_cache_len=6)
    )

    def mask_of(first, last):
        allowed = decoder_mask.bool()[:, None, None] & torch.ones(16, 16, dtype=torch.bool).tril()[first:last]
        return allowed.contiguous() if four_dimensional else decoder_mask

    inputs["cache"] = cache
    first = model(**inputs, decoder_input_ids=decoder_input_ids[:, :4], decoder_attention_mask=mask_of(0, 4)).logits
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model.forward, fullgraph=True, backend=counter)
    steps = [
        compiled(**inputs, decoder_input_ids=decoder_input_ids[:, i : i + 1], decoder_attention_mask=mask_of(i, i + 1))
        for i in range(4, 16)
    ]
    assert counter.frame_count == 1
    found = torch.cat([first, *(step.logits for step in steps)], 1)
    assert_close_where_attended(found, full, decoder_mask)


@torch.no_grad()
def test_compiled_decode_step_with_a_growing_cache(model, padded_prompts):
    """The second token makes the length a symbol; from then on nothing is compiled again."""
    inputs, decoder_input_ids, decoder_mask, full = padded_prompts
    inputs["cache"] = EncoderDecoderCache(DynamicCache(), DynamicCache())
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model.forward, backend=counter)
    first = model(
        **inputs, decoder_input_ids=decoder_input_ids[:, :4], decoder_attention_mask=decoder_mask[:, :4]
    ).logits
    steps, counts = [], []
    for i in range(4, 16):
        tokens, mask = decoder_input_ids[:, i : i + 1], decoder_mask[:, : i + 1].contiguous()
        steps.append(compiled(**inputs, decoder_input_ids=tokens, decoder_attention_mask=mask).logits)
        counts.append(counter.frame_count)
    assert counts[-1] == counts[2]
    assert_close_where_attended(torch.cat([first, *steps], 1), full, decoder_mask)

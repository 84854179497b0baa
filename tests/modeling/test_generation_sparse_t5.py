# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Decoding with a cache is decoding without one: zeroth biases are drawn at random, so a wrong row shows."""

import logging

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from helpers import randomize
from sparsight import SparseT5Config, SparseT5ForConditionalGeneration


INPUT_IDS = torch.tensor([[5, 6, 7, 8, 9, 1], [11, 12, 13, 1, 0, 0], [2, 14, 1, 0, 0, 0]])
MASK = INPUT_IDS.ne(0).long()
NUM_NEW = 12
# Token 1 would end a sequence.
COMMON = {"attention_mask": MASK, "max_new_tokens": NUM_NEW, "min_new_tokens": NUM_NEW}
MODES = {
    "greedy": {"do_sample": False},
    "beam": {"num_beams": 3, "do_sample": False},
    "sampling": {"do_sample": True, "temperature": 0.8, "top_k": 20},
    "beam sampling": {"num_beams": 2, "do_sample": True},
}
# A prompt for the decoder, one of them padded on the left.
PROMPT = torch.tensor([[0, 41, 42, 43], [0, 51, 52, 53], [0, 0, 0, 61]])
PROMPT_MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 1, 1]])


@pytest.fixture
def model(tiny_t5) -> SparseT5ForConditionalGeneration:
    """Zeroth biases on the first 9 of the decoder's positions, so large that they decide the tokens."""
    config = SparseT5Config(**tiny_t5, num_decoder_zeroth_bias_positions=9)
    model = randomize(SparseT5ForConditionalGeneration(config))
    with torch.no_grad():
        for block in model.decoder.block:
            block.layer[-1].zeroth_bias.weight.mul_(10)
    return model


def generate(model, **kwargs):
    torch.manual_seed(3)
    return model.generate(INPUT_IDS, **COMMON, **kwargs, output_logits=True, return_dict_in_generate=True)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("prompted", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_cached_is_uncached(model, mode, prompted, cache):
    kwargs = {**MODES[mode]}
    if prompted:
        kwargs |= {"decoder_input_ids": PROMPT, "decoder_attention_mask": PROMPT_MASK}
    expected = generate(model, **kwargs, use_cache=False)
    found = generate(model, **kwargs, cache_implementation=cache)
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=0)
    # Generating again starts from position 0 again.
    again = generate(model, **kwargs, cache_implementation=cache)
    assert torch.equal(again.sequences, expected.sequences)
    torch.testing.assert_close(again.logits, expected.logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generated_logits_are_those_of_the_full_pass(model, cache):
    found = generate(model, do_sample=False, cache_implementation=cache)
    full = model(input_ids=INPUT_IDS, attention_mask=MASK, decoder_input_ids=found.sequences[:, :-1]).logits
    torch.testing.assert_close(torch.stack(found.logits, 1), full, atol=1e-5, rtol=0)


def test_the_biases_decide_the_tokens(model):
    """What the other tests rely on: with every token at row 0, or without bias, something else comes out."""
    right = generate(model, do_sample=False).sequences
    biases = [block.layer[-1].zeroth_bias.weight for block in model.decoder.block]
    with torch.no_grad():
        for bias in biases:
            bias.copy_(bias[:1].expand_as(bias).clone())
    at_row_0 = generate(model, do_sample=False).sequences
    with torch.no_grad():
        for bias in biases:
            bias.zero_()
    without = generate(model, do_sample=False).sequences
    assert not torch.equal(right, at_row_0)
    assert not torch.equal(right, without)


@pytest.mark.parametrize("split", [1, 3, 5])
def test_chunks_of_several_tokens(model, split):
    decoder_input_ids = torch.randint(2, 90, (3, 12))
    inputs = {"input_ids": INPUT_IDS, "attention_mask": MASK}
    full = model(**inputs, decoder_input_ids=decoder_input_ids).logits
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    found = [
        model(**inputs, decoder_input_ids=chunk, cache=cache, use_cache=True).logits
        for chunk in decoder_input_ids.split(split, dim=1)
    ]
    torch.testing.assert_close(torch.cat(found, 1), full, atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_cache_that_generate_returns_goes_on(model):
    whole = generate(model, do_sample=False)
    first = model.generate(
        INPUT_IDS, attention_mask=MASK, max_new_tokens=5, min_new_tokens=5, do_sample=False,
        return_dict_in_generate=True,
    )  # fmt: skip
    assert first.cache.get_seq_length() == 5
    rest = whole.sequences[:, 5:-1]
    found = model(input_ids=INPUT_IDS, attention_mask=MASK, decoder_input_ids=rest, cache=first.cache).logits
    torch.testing.assert_close(found, torch.stack(whole.logits[5:], 1), atol=1e-5, rtol=0)


def test_generation_with_gradient_checkpointing(model):
    expected = generate(model, do_sample=False).sequences
    model.gradient_checkpointing_enable()
    assert torch.equal(generate(model, do_sample=False).sequences, expected)
    # In training mode, as within a training loop that forgets to switch; dropout apart.
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    model.train()
    assert torch.equal(generate(model, do_sample=False).sequences, expected)


def static_cache(model, num_tokens: int) -> EncoderDecoderCache:
    return EncoderDecoderCache(
        StaticCache(config=model.config, max_cache_len=num_tokens),
        StaticCache(config=model.config, max_cache_len=INPUT_IDS.shape[1]),
    )


@torch.no_grad()
def test_compiled_decode_step_is_compiled_once(model):
    """Over the positions with a bias and those beyond."""
    decoder_input_ids = torch.randint(2, 90, (3, 16))
    full = model(input_ids=INPUT_IDS, attention_mask=MASK, decoder_input_ids=decoder_input_ids).logits
    encoder_outputs = model.encoder(input_ids=INPUT_IDS, attention_mask=MASK)
    inputs = {"encoder_outputs": encoder_outputs, "attention_mask": MASK, "cache": static_cache(model, 16)}
    first = model(**inputs, decoder_input_ids=decoder_input_ids[:, :2]).logits
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model.forward, fullgraph=True, backend=counter)
    steps = [compiled(**inputs, decoder_input_ids=decoder_input_ids[:, i : i + 1]).logits for i in range(2, 16)]
    assert counter.frame_count == 1
    torch.testing.assert_close(torch.cat([first, *steps], 1), full, atol=1e-5, rtol=0)


@torch.no_grad()
def test_compiled_decode_step_with_a_growing_cache(model):
    """The second token makes the length a symbol; from then on nothing is compiled again."""
    decoder_input_ids = torch.randint(2, 90, (3, 16))
    full = model(input_ids=INPUT_IDS, attention_mask=MASK, decoder_input_ids=decoder_input_ids).logits
    encoder_outputs = model.encoder(input_ids=INPUT_IDS, attention_mask=MASK)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    inputs = {"encoder_outputs": encoder_outputs, "attention_mask": MASK, "cache": cache}
    first = model(**inputs, decoder_input_ids=decoder_input_ids[:, :2]).logits
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model.forward, backend=counter)
    steps, counts = [], []
    for index in range(2, 16):
        steps.append(compiled(**inputs, decoder_input_ids=decoder_input_ids[:, index : index + 1]).logits)
        counts.append(counter.frame_count)
    assert counts[-1] == counts[2]
    torch.testing.assert_close(torch.cat([first, *steps], 1), full, atol=1e-5, rtol=0)


# --- beyond the last position ----------------------------------------------------------------------------------------


@pytest.fixture
def warnings(caplog, monkeypatch):
    from sparsight.modeling import modeling_sparse_t5

    logger = modeling_sparse_t5.logger
    type(logger).warning_once.cache_clear()
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    with caplog.at_level(logging.WARNING):
        yield lambda: [record.message for record in caplog.records if "zeroth bias" in record.message]


def test_no_bias_and_one_warning_beyond_the_last_position(tiny_t5, warnings):
    config = SparseT5Config(**tiny_t5, num_zeroth_bias_positions=6, num_decoder_zeroth_bias_positions=4)
    model = randomize(SparseT5ForConditionalGeneration(config))
    long_config = SparseT5Config(**tiny_t5, num_zeroth_bias_positions=9, num_decoder_zeroth_bias_positions=10)
    padded = SparseT5ForConditionalGeneration(long_config).eval()
    state_dict = model.state_dict()
    for name, value in padded.state_dict().items():
        if "zeroth_bias" in name:
            state_dict[name] = torch.zeros_like(value)
            state_dict[name][: len(model.state_dict()[name])] = model.state_dict()[name]
    padded.load_state_dict(state_dict)
    decoder_input_ids = torch.randint(2, 90, (3, 10))
    model(input_ids=INPUT_IDS, decoder_input_ids=decoder_input_ids[:, :4])
    assert not warnings()
    found = model(input_ids=INPUT_IDS, decoder_input_ids=decoder_input_ids).logits
    model(input_ids=INPUT_IDS, decoder_input_ids=decoder_input_ids)
    assert len(warnings()) == 1
    assert "first 4" in warnings()[0]
    assert "num_decoder_zeroth_bias_positions" in warnings()[0]
    expected = padded(input_ids=INPUT_IDS, decoder_input_ids=decoder_input_ids).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    longer = torch.cat((INPUT_IDS, INPUT_IDS[:, :3]), 1)
    torch.testing.assert_close(
        model.encoder(input_ids=longer).last_hidden_state, padded.encoder(input_ids=longer).last_hidden_state
    )
    assert len(warnings()) == 2
    assert "num_zeroth_bias_positions" in warnings()[1]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_one_warning_while_generating(model, warnings, cache):
    model.generate(INPUT_IDS, max_new_tokens=7, min_new_tokens=7, cache_implementation=cache)
    assert not warnings()
    generate(model, cache_implementation=cache)
    assert len(warnings()) == 1

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import itertools

import datasets
import numpy as np
import pytest

from script_testing import TINY_TEXTS
from sparsight.training.data.packing import StreamBatches, TextArguments, iterate_blocks, make_blocks
from sparsight.training.data.tokenization import find_sentinel_ids
from sparsight.training.engine.loop_arguments import LoopArguments


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_concatenated_texts_are_the_token_stream(texts, tokenizer, size, streaming):
    arguments = TextArguments(**TINY_TEXTS, packing_batch_size=size)
    train = texts.train.to_iterable_dataset() if streaming else texts.train
    blocks = np.concatenate(list(iterate_blocks(train, tokenizer, arguments)))
    stream = [token for row in texts.train for token in tokenizer(row["text"], add_special_tokens=False).input_ids]
    num_tokens = arguments.lengths.num_tokens
    assert blocks.shape == (len(stream) // num_tokens, num_tokens)
    assert blocks.flatten().tolist() == stream[: blocks.size]


def test_packing_within_batches(texts, tokenizer):
    arguments = TextArguments(**TINY_TEXTS, packing="within_batch", packing_batch_size=3)
    found = list(iterate_blocks(texts.train, tokenizer, arguments))
    assert len(found) == 2
    for index, blocks in enumerate(found):
        batch = texts.train.select(range(index * 3, min(index * 3 + 3, 4)))
        alone = TextArguments(**TINY_TEXTS)
        np.testing.assert_array_equal(blocks, make_blocks(batch, tokenizer, alone))


def test_too_little_text(tokenizer):
    with pytest.raises(ValueError, match=r"^input_length: the texts have fewer tokens"):
        make_blocks(datasets.Dataset.from_dict({"text": ["short"]}), tokenizer, TextArguments())


def test_special_tokens_and_what_is_no_text(tokenizer):
    """No token of an example is a sentinel or an end of sequence before corruption."""
    rows = datasets.Dataset.from_dict({"text": ["Some </s> more <extra_id_0> and <pad> text."] * 40})
    blocks = make_blocks(rows, tokenizer, TextArguments(**TINY_TEXTS))
    assert not np.isin(blocks, [tokenizer.pad_token_id, tokenizer.eos_token_id, *find_sentinel_ids(tokenizer)]).any()
    for value in (None, 3):
        rows = datasets.Dataset.from_dict({"text": [value, value]})
        with pytest.raises(ValueError, match=r"^text_column: a row of 'text' is no text, but "):
            make_blocks(rows, tokenizer, TextArguments(**TINY_TEXTS))


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def stream(texts, tokenizer):
    """From arguments to batches of a stream."""

    def make(number: int, first_step: int = 0, packing_batch_size: int = 1000, **loop) -> list:
        arguments = TextArguments(
            **TINY_TEXTS, streaming=True, shuffle_buffer=5, packing_batch_size=packing_batch_size
        )
        loop = LoopArguments(batch_size=8, max_steps=10, **loop)
        batches = StreamBatches(texts.train.to_iterable_dataset(), tokenizer, arguments, loop)
        assert batches.steps_per_epoch == 10  # all steps are one epoch
        batches.first_step = first_step
        return list(itertools.islice(batches, number))

    return make


def epochs_of(batches: list) -> list[list[tuple[int, int, np.ndarray]]]:
    keys = itertools.chain.from_iterable(batches)
    return [list(epoch) for _, epoch in itertools.groupby(keys, key=lambda key: key[0])]


@pytest.mark.parametrize("size", [2, 1000])
def test_every_pass_over_a_stream_has_all_texts_in_another_order(stream, texts, tokenizer, size):
    token_ids = [tokenizer(row["text"], add_special_tokens=False).input_ids for row in texts.train]
    orders = {
        order: [token for index in order for token in token_ids[index]]
        for order in itertools.permutations(range(len(token_ids)))
    }
    first, second, third, _ = epochs_of(stream(150, packing_batch_size=size))[:4]
    seen = []
    for number, epoch in enumerate((first, second, third)):
        assert [key[:2] for key in epoch] == [(number, position) for position in range(len(epoch))]
        tokens = np.concatenate([key[2] for key in epoch]).tolist()
        # All that is missing at the end is less than an example.
        seen += [
            order
            for order, expected in orders.items()
            if 0 <= len(expected) - len(tokens) < len(epoch[0][2]) and expected[: len(tokens)] == tokens
        ]
    assert len(seen) == 3
    assert len(set(seen)) > 1


def test_a_stream_continues_from_any_step(stream):
    whole = stream(60, gradient_accumulation_steps=2)
    assert {len(batch) for batch in whole} == {4}
    for first_step in (1, 12, 27):
        rest = stream(60 - 2 * first_step, first_step, gradient_accumulation_steps=2)
        assert [[key[:2] for key in batch] for batch in rest] == [
            [key[:2] for key in batch] for batch in whole[2 * first_step :]
        ]
        for batch, expected in zip(rest, whole[2 * first_step :], strict=True):
            np.testing.assert_array_equal([key[2] for key in batch], [key[2] for key in expected])


def test_another_seed_another_order(stream):
    one, other = (np.concatenate([key[2] for key in stream(5, seed=seed)[0]]) for seed in (0, 1))
    assert (one != other).any()


def test_a_stream_without_an_example(tokenizer):
    texts = datasets.Dataset.from_dict({"text": ["One.", "Two."]}).to_iterable_dataset()
    batches = StreamBatches(texts, tokenizer, TextArguments(**TINY_TEXTS), LoopArguments(max_steps=1))
    with pytest.raises(ValueError, match=r"^input_length: the stream has fewer tokens than one example; shorten it"):
        next(iter(batches))

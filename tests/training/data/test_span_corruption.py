# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import collections

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparsight.training.data.span_corruption import SpanCorruption, SpanLengths


EOS = 1
SENTINELS = list(range(999, 899, -1))  # as T5 has them: the first is the highest

input_lengths = st.integers(3, 120)
densities = st.floats(0.02, 0.6)
span_lengths = st.floats(1, 8)


def corrupt(lengths: SpanLengths, batch_size: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tokens = np.random.default_rng(seed).integers(2, 900, (batch_size, lengths.num_tokens), dtype=np.int32)
    inputs, targets = SpanCorruption(lengths, SENTINELS, EOS)(tokens, [(seed, row) for row in range(batch_size)])
    return tokens, inputs, targets


def split_at_sentinels(row: np.ndarray) -> list[list[int]]:
    """The tokens before the first sentinel, and those behind each; sentinels have to come in order."""
    parts = [[]]
    for token in row.tolist():
        if token >= 900:
            assert token == SENTINELS[len(parts) - 1]
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


@settings(deadline=None, max_examples=100)
@given(input_lengths, densities, span_lengths, st.integers(0, 2**31))
def test_target_and_inputs_reconstruct_the_text(input_length, density, span_length, seed):
    lengths = SpanLengths.for_inputs(input_length, density, span_length)
    tokens, inputs, targets = corrupt(lengths, seed=seed)
    assert inputs.shape == (3, lengths.input_length)
    assert targets.shape == (3, lengths.target_length)
    for text, given_row, target in zip(tokens, inputs, targets, strict=True):
        assert given_row[-1] == target[-1] == EOS
        kept, noise = split_at_sentinels(given_row[:-1]), split_at_sentinels(target[:-1])
        assert len(kept) == len(noise) == lengths.num_spans + 1
        assert noise[0] == []  # targets begin with a sentinel
        assert kept[-1] == []  # the last span of noise ends the text
        assert all(noise[1:])
        assert all(kept[:-1])
        text_again = [token for pair in zip(kept, [*noise[1:], []], strict=True) for part in pair for token in part]
        assert text_again == text.tolist()
        assert sum(map(len, noise)) == lengths.num_noise_tokens


@settings(deadline=None, max_examples=100)
@given(input_lengths, densities, span_lengths)
@example(4, 0.5, 1.0)
def test_lengths(input_length, density, span_length):
    lengths = SpanLengths.for_inputs(input_length, density, span_length)
    assert input_length - 1 <= lengths.input_length <= input_length
    if density < 0.4:
        assert lengths.input_length == input_length
    assert SpanLengths.of(lengths.num_tokens + 1, density, span_length).input_length > input_length
    assert abs(lengths.num_noise_tokens - density * lengths.num_tokens) <= 1
    assert 1 <= lengths.num_spans <= lengths.num_noise_tokens


def test_the_lengths_of_t5():
    lengths = SpanLengths.for_inputs(512, 0.15, 3.0)
    assert (lengths.num_tokens, lengths.input_length, lengths.target_length) == (568, 512, 114)
    assert (lengths.num_noise_tokens, lengths.num_spans) == (85, 28)


def test_too_short():
    with pytest.raises(ValueError, match="at least 3"):
        SpanLengths.for_inputs(2, 0.15, 3.0)


def test_too_few_sentinels():
    with pytest.raises(ValueError, match="28 spans"):
        SpanCorruption(SpanLengths.for_inputs(512, 0.15, 3.0), SENTINELS[:27], EOS)


def test_share_and_mean_span():
    lengths = SpanLengths.for_inputs(512, 0.15, 3.0)
    _, _, targets = corrupt(lengths, batch_size=50)
    noise = [len(part) for row in targets for part in split_at_sentinels(row[:-1])[1:]]
    assert sum(noise) / (50 * 568) == pytest.approx(0.15, abs=1e-3)
    assert np.mean(noise) == pytest.approx(3.0, abs=0.05)
    assert min(noise) == 1
    assert max(noise) > 8


def test_all_segmentations_are_equally_likely():
    """7 tokens, 3 of them noise in 2 spans: 3 ways for the 4 that are kept, 2 for the noise."""
    lengths = SpanLengths(num_tokens=7, num_noise_tokens=3, num_spans=2)
    corruption = SpanCorruption(lengths, SENTINELS, EOS)
    tokens = np.tile(np.arange(2, 9), (6000, 1))
    inputs, _ = corruption(tokens, [(7, row) for row in range(6000)])
    counts = collections.Counter(map(tuple, inputs.tolist()))
    assert len(counts) == 6
    assert all(abs(count - 1000) < 150 for count in counts.values())


def test_a_text_depends_on_its_own_seed_alone():
    lengths = SpanLengths.for_inputs(64, 0.15, 3.0)
    corruption = SpanCorruption(lengths, SENTINELS, EOS)
    tokens = np.random.default_rng(0).integers(2, 900, (8, lengths.num_tokens))
    seeds = [(5, row) for row in range(8)]
    inputs, targets = corruption(tokens, seeds)
    for rows in (slice(0, 3), slice(3, 4), slice(4, 8)):
        part_inputs, part_targets = corruption(tokens[rows], seeds[rows])
        np.testing.assert_array_equal(part_inputs, inputs[rows])
        np.testing.assert_array_equal(part_targets, targets[rows])
    other, _ = corruption(tokens, [(6, row) for row in range(8)])
    assert (other != inputs).any(axis=1).all()

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Span corruption, the pretraining task of T5 (Raffel et al., arXiv 1910.10683, section 3.1.4), a batch at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SpanLengths:
    """How a text of so many tokens splits; every text of that length splits alike.

    Attributes:
        num_tokens: tokens of the text.
        num_noise_tokens: tokens that are masked.
        num_spans: spans that they come in.
    """

    num_tokens: int
    num_noise_tokens: int
    num_spans: int

    @classmethod
    def of(cls, num_tokens: int, noise_density: float, mean_span_length: float) -> "SpanLengths":
        """The lengths for a text, as T5 rounds them: at least one token is masked, and at least one is not."""
        num_noise_tokens = min(max(round(num_tokens * noise_density), 1), num_tokens - 1)
        num_spans = max(round(num_noise_tokens / mean_span_length), 1)
        return cls(num_tokens, num_noise_tokens, min(num_spans, num_noise_tokens, num_tokens - num_noise_tokens))

    @classmethod
    def for_inputs(cls, input_length: int, noise_density: float, mean_span_length: float) -> "SpanLengths":
        """The lengths for the longest text whose corrupted inputs have at most `input_length` tokens.

        512 tokens, at 15 % in spans of 3, hold a text of 568 tokens, with targets of 114. Inputs fill their length,
        except that with half of the tokens masked in spans of one, another token may bring a sentinel along.

        Raises:
            ValueError: if `input_length` is less than 3, a token, a sentinel and the end of sequence.
        """
        if input_length < 3:
            raise ValueError(f"`input_length` must be at least 3, got {input_length}")
        lengths = cls.of(2, noise_density, mean_span_length)
        while (longer := cls.of(lengths.num_tokens + 1, noise_density, mean_span_length)).input_length <= input_length:
            lengths = longer
        return lengths

    @property
    def input_length(self) -> int:
        """Tokens that are not masked, a sentinel for each span, and the end of sequence."""
        return self.num_tokens - self.num_noise_tokens + self.num_spans + 1

    @property
    def target_length(self) -> int:
        """Masked tokens, a sentinel before each span, and the end of sequence."""
        return self.num_noise_tokens + self.num_spans + 1


class SpanCorruption:
    """Texts to inputs and targets: spans of noise alternate with the rest, from the rest to noise.

    In the inputs, the i-th sentinel stands for the i-th span of noise; in the targets, it stands before it. Both end
    with the end of sequence.

    Args:
        lengths: of the texts.
        sentinel_ids: in the order in which they are used.
        eos_token_id: end of sequence.

    Raises:
        ValueError: if there are fewer sentinels than spans.
    """

    def __init__(self, lengths: SpanLengths, sentinel_ids: Sequence[int], eos_token_id: int):
        if len(sentinel_ids) < lengths.num_spans:
            raise ValueError(f"{lengths.num_spans} spans need as many sentinels, got {len(sentinel_ids)}")
        self.lengths = lengths
        self.sentinel_ids = np.asarray(sentinel_ids[: lengths.num_spans], dtype=np.int64)
        self.eos_token_id = eos_token_id
        self.num_kept_tokens = lengths.num_tokens - lengths.num_noise_tokens

    def __call__(self, tokens: np.ndarray, seeds: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Corrupt a batch of texts.

        Args:
            tokens: `(batch, num_tokens)`.
            seeds: non-negative integers for each text, on which alone its spans depend.

        Returns:
            inputs `(batch, input_length)` and targets `(batch, target_length)`.
        """
        starts, span = self._draw_spans(seeds)
        is_noise = span % 2 == 1
        sentinels = self.sentinel_ids[span // 2]
        return (
            self._take(tokens, sentinels, starts & is_noise, ~is_noise),
            self._take(tokens, sentinels, starts & ~is_noise, is_noise),
        )

    def _draw_spans(self, seeds: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Where spans start, and the number of the span each token is in; both `(batch, num_tokens)`."""
        num_noise_gaps, num_kept_gaps = self.lengths.num_noise_tokens - 1, self.num_kept_tokens - 1
        draws = np.stack([np.random.default_rng(seed).random(num_noise_gaps + num_kept_gaps) for seed in seeds])
        kept = self._segment(draws[:, num_noise_gaps:])
        noise = self._segment(draws[:, :num_noise_gaps])
        ends = np.stack((kept, noise), axis=2).reshape(len(seeds), -1).cumsum(axis=1)
        starts = np.zeros((len(seeds), self.lengths.num_tokens), dtype=bool)
        np.put_along_axis(starts, ends[:, :-1], True, axis=1)
        span = starts.cumsum(axis=1)
        starts[:, 0] = True
        return starts, span

    def _segment(self, draws: np.ndarray) -> np.ndarray:
        """Lengths of `num_spans` segments, all compositions being equally likely: the smallest draws are the cuts."""
        num_cuts = self.lengths.num_spans - 1
        cuts = np.argpartition(draws, num_cuts - 1, axis=1)[:, :num_cuts] if num_cuts else draws[:, :0].astype(int)
        cuts = np.sort(cuts + 1, axis=1)
        return np.diff(cuts, axis=1, prepend=0, append=draws.shape[1] + 1)

    def _take(self, tokens: np.ndarray, sentinels: np.ndarray, at: np.ndarray, rest: np.ndarray) -> np.ndarray:
        """The tokens of `rest`, with a sentinel for each span that starts `at`, and the end of sequence."""
        taken = np.where(at, sentinels, tokens)[at | rest].reshape(len(tokens), -1)
        return np.pad(taken, ((0, 0), (0, 1)), constant_values=self.eos_token_id)

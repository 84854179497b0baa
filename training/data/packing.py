# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""From texts to examples of equal length: tokenized, and packed as T5 does it."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import datasets
import numpy as np
from accelerate.utils import tqdm
from torch.utils.data import Sampler
from transformers import PreTrainedTokenizerBase

from sparsight.training.command_line.arguments import argument
from sparsight.training.data.span_corruption import SpanLengths
from sparsight.training.data.texts import TextSource, check_texts
from sparsight.training.data.tokenization import NUM_SENTINELS, TextEncoder
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.seeding import derive_seed


@dataclass
class TextArguments(TextSource):
    """Texts, tokenizer and span corruption."""

    tokenizer_name: str | None = argument(
        "Tokenizer with sentinels <extra_id_0>, ..., a folder or on the Hub. Default: that of the checkpoint to start "
        "from, else one is trained on the data."
    )
    vocab_size: int = argument(
        "Vocabulary of the tokenizer that is trained, with its 100 sentinels.", 2048, at_least=NUM_SENTINELS + 100
    )
    input_length: int = argument("Encoder tokens of an example, after corruption.", 512, at_least=3)
    noise_density: float = argument("Share of the tokens that are masked.", 0.15, above=0, below=1)
    mean_span_length: float = argument("Mean number of tokens in a masked span.", 3.0, at_least=1)
    packing: Literal["concatenate", "within_batch"] = argument(
        "Concatenate all texts and split them into examples, or do so within each --packing_batch_size texts, whose "
        "remainder is dropped.",
        "concatenate",
    )
    packing_batch_size: int = argument("Texts to tokenize, and with within_batch to pack, together.", 1000, at_least=1)

    @property
    def lengths(self) -> SpanLengths:
        """How an example splits into inputs and targets."""
        return SpanLengths.for_inputs(self.input_length, self.noise_density, self.mean_span_length)


def iterate_blocks(
    texts: datasets.Dataset | datasets.IterableDataset, tokenizer: PreTrainedTokenizerBase, arguments: TextArguments
) -> Iterator[np.ndarray]:
    """Texts to examples: tokenized, packed, and cut to `(examples, num_tokens)` a batch of texts.

    Nothing stands between two texts, as in T5's own preprocessing: the end of sequence ends an example.

    Raises:
        ValueError: if a row is no text.
    """
    num_tokens = arguments.lengths.num_tokens
    remainder = np.empty(0, dtype=np.int32)
    encode = TextEncoder(tokenizer)
    for rows in texts.iter(arguments.packing_batch_size):
        check_texts(rows["text"], arguments)
        tokens = np.fromiter(itertools.chain(remainder, *encode(rows["text"])), dtype=np.int32)
        whole = len(tokens) // num_tokens * num_tokens
        yield tokens[:whole].reshape(-1, num_tokens)
        if arguments.packing == "concatenate":
            remainder = tokens[whole:]


def make_blocks(texts: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, arguments: TextArguments) -> np.ndarray:
    """All examples of the texts before corruption, `(examples, num_tokens)`.

    Raises:
        ValueError: if there is not enough text for one.
    """
    blocks = iterate_blocks(texts, tokenizer, arguments)
    blocks = np.concatenate(list(tqdm(blocks, desc="tokenizing", unit="batch", leave=False, delay=2)))
    if not len(blocks):
        raise ValueError(
            f"input_length: the texts have fewer tokens than one example, {arguments.lengths.num_tokens}; "
            "shorten it or give more text"
        )
    return blocks


class StreamBatches(Sampler):
    """Endless micro-batches of (epoch, position, tokens) from a stream, from any optimizer step on.

    The main process reads, tokenizes and packs; the workers corrupt. So the order is the same for any number of them.
    """

    drop_last = True

    def __init__(
        self,
        texts: datasets.IterableDataset,
        tokenizer: PreTrainedTokenizerBase,
        arguments: TextArguments,
        loop: LoopArguments,
    ):
        self.texts = texts
        self.tokenizer = tokenizer
        self.arguments = arguments
        self.batch_size = loop.micro_batch_size
        self.micro_batches_per_step = loop.gradient_accumulation_steps
        self.steps_per_epoch = loop.max_steps
        self.seed = loop.seed
        self.first_step = 0

    def _examples(self) -> Iterator[tuple[int, int, np.ndarray]]:
        for epoch in itertools.count():
            texts = self.texts.shuffle(derive_seed(self.seed, epoch), buffer_size=self.arguments.shuffle_buffer)
            blocks = itertools.chain.from_iterable(iterate_blocks(texts, self.tokenizer, self.arguments))
            position = -1
            for position, tokens in enumerate(blocks):
                yield epoch, position, tokens
            if position < 0:
                raise ValueError("input_length: the stream has fewer tokens than one example; shorten it")

    def __iter__(self) -> Iterator[list[tuple[int, int, np.ndarray]]]:
        first = self.first_step * self.micro_batches_per_step * self.batch_size
        examples = itertools.islice(self._examples(), first, None)
        while True:
            yield list(itertools.islice(examples, self.batch_size))

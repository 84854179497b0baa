# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Texts to batches: tokenized, packed, and corrupted as T5 does it."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import tqdm
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from sparsight.training.arguments import LoopArguments, UsageError, require, single_line
from sparsight.training.batches import EpochBatches, make_training_loader
from sparsight.training.seeding import derive_seed
from sparsight.training.span_corruption import SpanCorruption
from sparsight.training.text_data import TextArguments, Texts
from sparsight.training.tokenizer_training import find_sentinel_ids, train_tokenizer


# A Unigram tokenizer's vocabulary settles long before, and its trainer holds the text several times over.
_MAX_TOKENIZER_CHARACTERS = 50_000_000


# ---------------------------------------------------------------------------------------------------------------------
# Tokens
# ---------------------------------------------------------------------------------------------------------------------


def load_tokenizer(name: str, flag: str = "tokenizer_name") -> PreTrainedTokenizerBase:
    """A tokenizer with sentinels, from a folder or the Hub.

    Raises:
        UsageError: naming `flag`, if there is none.
    """
    if not Path(name).is_dir() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise UsageError(f"--{flag}: there is no folder {name}; give one with a tokenizer, or one of the Hub")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"--{flag}: cannot load a tokenizer from {name} ({single_line(error)})") from error
    num_sentinels = len(find_sentinel_ids(tokenizer))
    require(num_sentinels > 0, flag, f"{name} has no sentinels <extra_id_0>, ...; give a T5 tokenizer")
    # For a T5 without tokenizer files, transformers makes up one of special tokens and the space.
    require(len(tokenizer) > num_sentinels + 4, flag, f"{name} has no tokenizer; give --tokenizer_name")
    return tokenizer


def make_tokenizer(arguments: TextArguments, texts: Texts) -> PreTrainedTokenizerBase:
    """The tokenizer that the arguments name, else one trained on the training texts; it goes into the checkpoint.

    Raises:
        UsageError: if there is no such tokenizer.
    """
    if arguments.tokenizer_name is not None:
        return load_tokenizer(arguments.tokenizer_name)
    return train_tokenizer(_first_texts(texts.train, _MAX_TOKENIZER_CHARACTERS), arguments.vocab_size)


def _first_texts(texts: Iterable[dict[str, str]], num_characters: int) -> Iterator[str]:
    for row in texts:
        num_characters -= len(row["text"])
        if num_characters < 0:
            return
        yield row["text"]


def iterate_blocks(
    texts: datasets.Dataset | datasets.IterableDataset, tokenizer: PreTrainedTokenizerBase, arguments: TextArguments
) -> Iterator[np.ndarray]:
    """Texts to examples: tokenized, packed, and cut to `(examples, num_tokens)` a batch of texts.

    Nothing stands between two texts, as in T5's own preprocessing: the end of sequence ends an example.
    """
    num_tokens = arguments.lengths.num_tokens
    remainder = np.empty(0, dtype=np.int32)
    for rows in texts.iter(arguments.packing_batch_size):
        token_ids = tokenizer(rows["text"], add_special_tokens=False, verbose=False)["input_ids"]
        tokens = np.fromiter(itertools.chain(remainder, *token_ids), dtype=np.int32)
        whole = len(tokens) // num_tokens * num_tokens
        yield tokens[:whole].reshape(-1, num_tokens)
        if arguments.packing == "concatenate":
            remainder = tokens[whole:]


def make_blocks(texts: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, arguments: TextArguments) -> np.ndarray:
    """All examples of the texts before corruption, `(examples, num_tokens)`.

    Raises:
        UsageError: if there is not enough text for one.
    """
    blocks = iterate_blocks(texts, tokenizer, arguments)
    blocks = np.concatenate(list(tqdm(blocks, desc="tokenizing", unit="batch", leave=False, delay=2)))
    if not len(blocks):
        raise UsageError(
            f"--input_length: the texts have fewer tokens than one example, {arguments.lengths.num_tokens}; "
            "shorten it or give more text"
        )
    return blocks


# ---------------------------------------------------------------------------------------------------------------------
# Batches
# ---------------------------------------------------------------------------------------------------------------------


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
        self.batch_size = loop.batch_size // loop.gradient_accumulation_steps
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
                raise UsageError("--input_length: the stream has fewer tokens than one example; shorten it")

    def __iter__(self) -> Iterator[list[tuple[int, int, np.ndarray]]]:
        first = self.first_step * self.micro_batches_per_step * self.batch_size
        examples = itertools.islice(self._examples(), first, None)
        while True:
            yield list(itertools.islice(examples, self.batch_size))


class CorruptedText(Dataset):
    """Corrupted examples by (epoch, position in the epoch, index or tokens).

    The spans of an example are a function of the seed, the epoch and its position alone. So they are the same for any
    number of workers and processes, and after resuming.

    Args:
        blocks: examples before corruption, `(examples, num_tokens)`; None where the keys bring the tokens.
        corruption: what is done to them.
        seed: of the spans.
    """

    def __init__(self, blocks: np.ndarray | None, corruption: SpanCorruption, seed: int):
        self.blocks = blocks
        self.corruption = corruption
        self.seed = seed

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitems__(self, keys: Sequence[tuple[int, int, Any]]) -> dict[str, torch.Tensor]:
        epochs, positions, examples = zip(*keys, strict=True)
        tokens = np.stack(examples) if self.blocks is None else self.blocks[list(examples)]
        seeds = [(self.seed, *key) for key in zip(epochs, positions, strict=True)]
        inputs, targets = self.corruption(tokens, seeds)
        return {"input_ids": torch.from_numpy(inputs), "labels": torch.from_numpy(targets)}


def _as_it_is(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return batch


def make_corruption(arguments: TextArguments, tokenizer: PreTrainedTokenizerBase) -> SpanCorruption:
    """
    Raises:
        UsageError: if the tokenizer has too few sentinels.
    """
    try:
        return SpanCorruption(arguments.lengths, find_sentinel_ids(tokenizer), tokenizer.eos_token_id)
    except ValueError as error:
        raise UsageError(f"--input_length: {error}; shorten it or mask less") from error


def make_train_loader(
    texts: Texts,
    tokenizer: PreTrainedTokenizerBase,
    arguments: TextArguments,
    accelerator: Accelerator,
    loop: LoopArguments,
) -> DataLoader:
    """Batches `{"input_ids": (batch, input_length), "labels": (batch, target_length)}`, split over the processes.

    Raises:
        UsageError: if the batch size does not fit the data or the processes, or a stream has no number of steps.
    """
    corruption = make_corruption(arguments, tokenizer)
    if arguments.streaming:
        require(loop.max_steps > 0, "max_steps", "a stream has no epochs; say how many steps to train")
        blocks, sampler = None, StreamBatches(texts.train, tokenizer, arguments, loop)
    else:
        blocks = make_blocks(texts.train, tokenizer, arguments)
        require(
            len(blocks) >= loop.batch_size,
            "batch_size",
            f"{loop.batch_size} is more than the {len(blocks)} training examples; lower it",
        )
        sampler = EpochBatches(blocks, loop)
    return make_training_loader(CorruptedText(blocks, corruption, loop.seed), sampler, _as_it_is, accelerator, loop)


def make_eval_loader(
    texts: Texts,
    tokenizer: PreTrainedTokenizerBase,
    arguments: TextArguments,
    accelerator: Accelerator,
    loop: LoopArguments,
) -> DataLoader:
    """Every evaluation example once, with the same spans in every run: whole batches go to the processes in turn."""
    blocks = make_blocks(texts.eval, tokenizer, arguments)
    loader = DataLoader(
        CorruptedText(blocks, make_corruption(arguments, tokenizer), seed=0),
        sampler=[(0, index, index) for index in range(len(blocks))],
        batch_size=loop.eval_batch_size,
        collate_fn=_as_it_is,
        num_workers=loop.num_workers,
        pin_memory=accelerator.device.type == "cuda",
    )
    return prepare_data_loader(loader, accelerator.device, put_on_device=True, even_batches=False, non_blocking=True)

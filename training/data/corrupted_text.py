# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""From packed examples to batches of corrupted ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerBase

from sparsight.training.data.packing import StreamBatches, TextArguments, make_blocks
from sparsight.training.data.span_corruption import SpanCorruption
from sparsight.training.data.texts import Texts
from sparsight.training.data.tokenization import find_sentinel_ids
from sparsight.training.engine.batches import EpochBatches, make_evaluation_loader, make_training_loader
from sparsight.training.engine.loop_arguments import LoopArguments


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
    """The span corruption that the arguments describe, with the tokenizer's sentinels.

    Raises:
        ValueError: if the tokenizer has too few sentinels.
    """
    try:
        return SpanCorruption(arguments.lengths, find_sentinel_ids(tokenizer), tokenizer.eos_token_id)
    except ValueError as error:
        raise ValueError(f"input_length: {error}; shorten it or mask less") from error


def make_train_loader(
    texts: Texts,
    tokenizer: PreTrainedTokenizerBase,
    arguments: TextArguments,
    accelerator: Accelerator,
    loop: LoopArguments,
) -> DataLoader:
    """Endless batches `{"input_ids": (batch, input_length), "labels": (batch, target_length)}`.

    Raises:
        ValueError: if the batch size does not fit the data or the processes, or a stream has no number of steps.
    """
    corruption = make_corruption(arguments, tokenizer)
    if arguments.streaming:
        if not loop.max_steps:
            raise ValueError("max_steps: a stream has no epochs; say how many steps to train")
        blocks, sampler = None, StreamBatches(texts.train, tokenizer, arguments, loop)
    else:
        blocks = make_blocks(texts.train, tokenizer, arguments)
        sampler = EpochBatches(blocks, loop)
    return make_training_loader(CorruptedText(blocks, corruption, loop.seed), sampler, _as_it_is, accelerator, loop)


def make_eval_loader(
    texts: Texts,
    tokenizer: PreTrainedTokenizerBase,
    arguments: TextArguments,
    accelerator: Accelerator,
    loop: LoopArguments,
) -> DataLoader:
    """Batches as in training, of every evaluation example once, with the same spans in every run."""
    blocks = make_blocks(texts.eval, tokenizer, arguments)
    examples = CorruptedText(blocks, make_corruption(arguments, tokenizer), seed=0)
    keys = [(0, index, index) for index in range(len(blocks))]
    return make_evaluation_loader(examples, _as_it_is, accelerator, loop, keys)

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""A tokenizer as T5 has it, trained on the data at hand."""

import json
from collections.abc import Iterable

from tokenizers.trainers import UnigramTrainer
from transformers import PreTrainedTokenizerBase, T5Tokenizer


NUM_SENTINELS = 100
_SPECIAL_TOKENS = ["<pad>", "</s>", "<unk>"]


def sentinel_token(index: int) -> str:
    """The name of the sentinel that stands for the span `index`."""
    return f"<extra_id_{index}>"


def find_sentinel_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of the sentinels, `<extra_id_0>` first."""
    vocabulary, ids = tokenizer.get_vocab(), []
    while (token := sentinel_token(len(ids))) in vocabulary:
        ids.append(vocabulary[token])
    return ids


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> T5Tokenizer:
    """A Unigram tokenizer in T5's layout: padding, end of sequence, unknown, pieces, sentinels from last to first.

    The same texts give the same tokenizer.

    Args:
        texts: to train on.
        vocab_size: of the whole vocabulary at most; 103 of it are special tokens.
    """
    tokenizer = T5Tokenizer(extra_ids=0)._tokenizer
    trainer = UnigramTrainer(
        vocab_size=vocab_size - NUM_SENTINELS,
        special_tokens=_SPECIAL_TOKENS,
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    pieces = json.loads(tokenizer.to_str())["model"]["vocab"][len(_SPECIAL_TOKENS) :]
    # Characters that fell out of its vocabulary get from the trainer the lowest score and, in an order that changes
    # from run to run, a multiple of 0.0001. The last digits of the other scores change too.
    lowest = min(score for _, score in pieces)
    margin = 1.5e-4 * sum(len(piece) == 1 for piece, _ in pieces)
    pieces = [
        (piece, round(lowest if len(piece) == 1 and score < lowest + margin else score, 6)) for piece, score in pieces
    ]
    pieces.sort(key=lambda entry: (-entry[1], entry[0]))
    sentinels = [(sentinel_token(index), 0.0) for index in reversed(range(NUM_SENTINELS))]
    special = [(token, 0.0) for token in _SPECIAL_TOKENS]
    return T5Tokenizer(vocab=[*special, *pieces, *sentinels], extra_ids=NUM_SENTINELS)

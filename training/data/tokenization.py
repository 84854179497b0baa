# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers with sentinels, as T5 has them: loaded, or trained on the data at hand."""

import json
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import Tokenizer
from tokenizers.trainers import UnigramTrainer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, T5Tokenizer

from sparsight.configuration.messages import single_line
from sparsight.training.engine.places import is_here


NUM_SENTINELS = 100
# A Unigram tokenizer's vocabulary settles long before, and its trainer holds the text several times over.
MAX_CHARACTERS = 50_000_000
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
    sentinels = [(sentinel_token(index), 0.0) for index in reversed(range(NUM_SENTINELS))]
    special = [(token, 0.0) for token in _SPECIAL_TOKENS]
    # A text may hold the name of a special token so often that it becomes a piece, too.
    names = {name for name, _ in [*special, *sentinels]}
    pieces = json.loads(tokenizer.to_str())["model"]["vocab"][len(_SPECIAL_TOKENS) :]
    pieces = [entry for entry in pieces if entry[0] not in names]
    # Characters that fell out of its vocabulary get from the trainer the lowest score and, in an order that changes
    # from run to run, a multiple of 0.0001. The last digits of the other scores change too.
    lowest = min(score for _, score in pieces)
    margin = 1.5e-4 * sum(len(piece) == 1 for piece, _ in pieces)
    pieces = [
        (piece, round(lowest if len(piece) == 1 and score < lowest + margin else score, 6)) for piece, score in pieces
    ]
    pieces.sort(key=lambda entry: (-entry[1], entry[0]))
    return T5Tokenizer(vocab=[*special, *pieces, *sentinels], extra_ids=NUM_SENTINELS)


def train_tokenizer_on_rows(rows: Iterable[dict[str, str]], vocab_size: int) -> T5Tokenizer:
    """[`train_tokenizer`] on the first rows of a data set with a column `text`, up to [`MAX_CHARACTERS`]."""
    return train_tokenizer(_first_texts(rows, MAX_CHARACTERS), vocab_size)


def _first_texts(rows: Iterable[dict[str, str]], num_characters: int) -> Iterator[str]:
    for row in rows:
        num_characters -= len(row["text"])
        if num_characters < 0:
            return
        yield row["text"]


class TextEncoder:
    """Texts to token ids, in which no special token can come about: `</s>` in a text is four characters.

    The ids are otherwise those of the tokenizer. Its own `split_special_tokens` is not enough, since the vocabulary of
    a Unigram model has the special tokens among its pieces.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.encoder: Tokenizer | None = None
        if tokenizer.is_fast:
            control = {*tokenizer.all_special_tokens, *tokenizer.convert_ids_to_tokens(find_sentinel_ids(tokenizer))}
            self.encoder = _without_special_tokens(tokenizer.backend_tokenizer, control)

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, with nothing before or after them."""
        if self.encoder is None:  # SentencePiece itself takes nothing in a text for a control token
            encoded = self.tokenizer(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)
            return encoded["input_ids"]
        return [encoding.ids for encoding in self.encoder.encode_batch_fast(texts, add_special_tokens=False)]


def _without_special_tokens(tokenizer: Tokenizer, special: set[str]) -> Tokenizer:
    state = json.loads(tokenizer.to_str())
    special = special | {entry["content"] for entry in state["added_tokens"] if entry["special"]}
    state |= {"truncation": None, "padding": None, "post_processor": None}
    state["added_tokens"] = [entry for entry in state["added_tokens"] if entry["content"] not in special]
    model = state["model"]
    # Under another name the pieces keep their ids and scores. U+FFFF is no character, so no text has it.
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):
        model["vocab"] = [[_hide(piece) if piece in special else piece, score] for piece, score in vocabulary]
    else:
        special = special - {model.get("unk_token")}
        model["vocab"] = {_hide(piece) if piece in special else piece: index for piece, index in vocabulary.items()}
    return Tokenizer.from_str(json.dumps(state))


def _hide(piece: str) -> str:
    return f"\uffff{piece}\uffff"


def load_tokenizer(name: str, argument: str = "tokenizer_name") -> PreTrainedTokenizerBase:
    """A tokenizer with sentinels, from a folder or the Hub.

    Args:
        name: what the user gave.
        argument: by which.

    Raises:
        ValueError: if there is none.
    """
    is_here(argument, name, "folder", "one with a tokenizer, or one of the Hub")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{argument}: cannot load a tokenizer from {name} ({single_line(error)})") from error
    num_sentinels = len(find_sentinel_ids(tokenizer))
    if not num_sentinels:
        raise ValueError(f"{argument}: {name} has no sentinels <extra_id_0>, ...; give a T5 tokenizer")
    # For a T5 without tokenizer files, transformers makes up one of special tokens and the space.
    if len(tokenizer) <= num_sentinels + 4:
        raise ValueError(f"{argument}: {name} has no tokenizer; give --tokenizer_name")
    return tokenizer

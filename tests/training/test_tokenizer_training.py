# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
from pydoc_data.topics import topics

import pytest
from transformers import AutoTokenizer, T5Tokenizer

from sparsight.training.tokenizer_training import find_sentinel_ids, train_tokenizer


TEXTS = [topics[name] for name in sorted(topics)][:20]


@pytest.fixture(scope="module")
def tokenizer() -> T5Tokenizer:
    return train_tokenizer(TEXTS, 600)


def test_layout_is_t5s(tokenizer):
    assert len(tokenizer) == 600
    assert tokenizer.convert_tokens_to_ids(["<pad>", "</s>", "<unk>"]) == [0, 1, 2]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert find_sentinel_ids(tokenizer) == list(range(599, 499, -1))


def test_encodes_and_decodes(tokenizer):
    text = "An identifier occurring as an atom is a name."
    ids = tokenizer(text).input_ids
    assert ids[-1] == 1
    assert 2 not in ids
    assert len(ids) < len(text)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    masked = tokenizer("An <extra_id_0> occurring as <extra_id_1> is a name.").input_ids
    assert [token for token in masked if token >= 500] == [599, 598]


def test_round_trip(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded) is T5Tokenizer
    assert loaded(TEXTS).input_ids == tokenizer(TEXTS).input_ids
    assert find_sentinel_ids(loaded) == find_sentinel_ids(tokenizer)


@pytest.mark.parametrize("vocab_size", [600, 2048])
def test_same_texts_same_tokenizer(vocab_size):
    """The trainer's own scores differ from run to run: of characters it dropped, and in the last digits."""
    texts = [topics[name] for name in sorted(topics)]
    assert len({train_tokenizer(texts, vocab_size)._tokenizer.to_str() for _ in range(3)}) == 1


def test_sentinels_end_with_the_first_that_is_missing(tokenizer):
    some = T5Tokenizer(extra_ids=5)
    assert len(find_sentinel_ids(some)) == 5
    assert find_sentinel_ids(T5Tokenizer(extra_ids=0)) == []

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import json
from pydoc_data.topics import topics

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, T5Config, T5Tokenizer

from sparsight.training.data import tokenization
from sparsight.training.data.tokenization import (
    TextEncoder,
    find_sentinel_ids,
    load_tokenizer,
    train_tokenizer,
    train_tokenizer_on_rows,
)


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
    texts = [topics[name] for name in sorted(topics)][::3]
    assert len({train_tokenizer(texts, vocab_size)._tokenizer.to_str() for _ in range(3)}) == 1


def test_sentinels_end_with_the_first_that_is_missing():
    assert len(find_sentinel_ids(T5Tokenizer(extra_ids=5))) == 5
    assert find_sentinel_ids(T5Tokenizer(extra_ids=0)) == []


def test_tokenizer_is_trained_on_the_rows_up_to_a_number_of_characters(monkeypatch):
    rows = [{"text": text} for text in TEXTS]
    assert train_tokenizer_on_rows(rows, 600)._tokenizer.to_str() == train_tokenizer(TEXTS, 600)._tokenizer.to_str()
    monkeypatch.setattr(tokenization, "MAX_CHARACTERS", sum(map(len, TEXTS[:7])))
    few = train_tokenizer(TEXTS[:7], 600)
    assert train_tokenizer_on_rows(iter(rows), 600)._tokenizer.to_str() == few._tokenizer.to_str()
    monkeypatch.setattr(tokenization, "MAX_CHARACTERS", tokenization.MAX_CHARACTERS - 1)
    assert train_tokenizer_on_rows(rows, 600)._tokenizer.to_str() != few._tokenizer.to_str()


def test_named_tokenizer(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "own")
    assert load_tokenizer(str(tmp_path / "own")).get_vocab() == tokenizer.get_vocab()
    with pytest.raises(ValueError, match=r"^tokenizer_name: there is no folder \./nowhere; give one with a tokenizer"):
        load_tokenizer("./nowhere")
    with pytest.raises(ValueError, match=r"^model_name_or_path: there is no folder \./nowhere"):
        load_tokenizer("./nowhere", "model_name_or_path")
    with pytest.raises(ValueError, match=r"^tokenizer_name: cannot load a tokenizer from nobody/nothing \(") as error:
        load_tokenizer("nobody/nothing")
    assert "\n" not in str(error.value)
    T5Tokenizer(extra_ids=0).save_pretrained(tmp_path / "bare")
    with pytest.raises(ValueError, match=r"^tokenizer_name: .*bare has no sentinels <extra_id_0>, ...; give a T5"):
        load_tokenizer(str(tmp_path / "bare"))


def test_a_checkpoint_without_a_tokenizer(tmp_path):
    """transformers makes up one for it."""
    T5Config().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"^model_name_or_path: .* has no tokenizer; give --tokenizer_name"):
        load_tokenizer(str(tmp_path), "model_name_or_path")


CONTROL = ["</s>", "<pad>", "<unk>", "<extra_id_0>", "<extra_id_99>"]


@pytest.mark.parametrize("reloaded", [False, True])
def test_ordinary_texts_get_the_ids_of_the_tokenizer(tokenizer, tmp_path, reloaded):
    if reloaded:
        tokenizer.save_pretrained(tmp_path)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    texts = [topics[name] for name in sorted(topics)] + ["", " ", "\n\n", "naïve 中文 \x00 ﬁne", "a < b > c / s"]
    assert TextEncoder(tokenizer)(texts) == tokenizer(texts, add_special_tokens=False).input_ids


def test_names_of_special_tokens_are_text(tokenizer):
    encode = TextEncoder(tokenizer)
    special = set(tokenizer.convert_tokens_to_ids(CONTROL)) - {tokenizer.unk_token_id}
    for text in [*CONTROL, *(f"Some {name} more" for name in CONTROL), *(f"x{name}y" for name in CONTROL)]:
        assert special & set(tokenizer(text, add_special_tokens=False).input_ids) or "<unk>" in text
        (ids,) = encode([text])
        assert not special & set(ids)
        # The characters that it knows are there, one by one or in pieces.
        known = "".join(c for c in text if c == " " or c in tokenizer.get_vocab())
        assert tokenizer.decode([i for i in ids if i != tokenizer.unk_token_id]).strip() == known.strip()
    ordinary = ["No such name.", "No such name."]
    assert encode(["No such name.", "</s>", "No such name."])[::2] == encode(ordinary)


def test_names_of_special_tokens_are_text_for_other_tokenizers():
    letters = {"<unk>": 0, "</s>": 1, "<extra_id_0>": 2, **{c: 3 + i for i, c in enumerate("</s>xtra_id0e")}}
    backend = Tokenizer(models.BPE(vocab=letters, merges=[], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        eos_token="</s>",
        extra_special_tokens=["<extra_id_0>"],
    )
    assert tokenizer("</s> ax", add_special_tokens=False).input_ids == [1, letters["a"], letters["x"]]
    ids = TextEncoder(tokenizer)(["</s> ax", "<extra_id_0>", "q"])
    assert ids == [[letters[c] for c in "</s>ax"], [letters[c] for c in "<extra_id_0>"], [0]]


def test_names_of_special_tokens_become_no_pieces():
    tokenizer = train_tokenizer(["</s> <extra_id_7> <pad> so it goes"] * 500, 200)
    pieces = [piece for piece, _ in json.loads(tokenizer._tokenizer.to_str())["model"]["vocab"]]
    assert len(set(pieces)) == len(pieces) == len(tokenizer)
    assert len(find_sentinel_ids(tokenizer)) == 100

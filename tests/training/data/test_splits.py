# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsight.training.data.splits import SourceArguments, choose_splits, limit, load_from_hub


# --- which split -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "fields", "expected"),
    [
        (["train", "validation", "test"], {}, ("train", "validation")),
        (["test", "valid", "train"], {}, ("train", "valid")),
        (["train", "test", "val"], {}, ("train", "val")),
        (["train", "test"], {}, ("train", "test")),
        (["train", "dev"], {}, ("train", None)),
        (["train"], {}, ("train", None)),
        (["train", "validation", "test"], {"eval_split": "test"}, ("train", "test")),
        (["train", "dev"], {"eval_split": "dev"}, ("train", "dev")),
        (["train", "extra", "test"], {"train_split": "extra"}, ("extra", "test")),
        # What is trained on is not what is evaluated on, unless it is asked for.
        (["train", "validation", "test"], {"train_split": "validation"}, ("validation", "test")),
        (["train", "test"], {"train_split": "test"}, ("test", None)),
        (["train", "test"], {"train_split": "test", "eval_split": "test"}, ("test", "test")),
    ],
)
def test_splits_by_name_or_by_custom(names, fields, expected):
    splits = {name: f"examples of {name}" for name in names}
    train, evaluation, eval_split = choose_splits(splits, SourceArguments(**fields))
    assert train == f"examples of {expected[0]}"
    assert eval_split == expected[1]
    assert evaluation == (None if eval_split is None else f"examples of {eval_split}")


@pytest.mark.parametrize("flag", ["train_split", "eval_split"])
def test_a_split_that_is_not_there(flag):
    arguments = SourceArguments(dataset="org/things", **{flag: "dev"})
    with pytest.raises(ValueError, match=f"^{flag}: org/things has no split 'dev'; it has train, test$"):
        choose_splits({"train": 1, "test": 2}, arguments)


# --- how many --------------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(0, 12), st.integers(0, 12), st.booleans())
def test_the_first_so_many_of_each(size, num_train, num_eval, streaming):
    examples = datasets.Dataset.from_dict({"number": list(range(size))})
    if streaming:
        examples = examples.to_iterable_dataset()
    arguments = SourceArguments(max_train_samples=num_train, max_eval_samples=num_eval)
    for found, number in zip(limit(examples, examples, arguments), (num_train, num_eval), strict=True):
        assert type(found) is type(examples)
        assert [row["number"] for row in found] == list(range(size))[: number or size]


# --- from the Hub ----------------------------------------------------------------------------------------------------


def test_what_the_hub_is_asked_for(monkeypatch):
    seen = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: seen.append((args, kwargs)) or "splits")
    arguments = SourceArguments(dataset="org/things", dataset_config="en")
    assert load_from_hub(arguments, "digits", "folder", streaming=True) == "splits"
    assert seen == [(("org/things", "en"), {"streaming": True})]


@pytest.mark.parametrize("error", [ConnectionError, KeyError, RuntimeError])
def test_whatever_the_loader_of_a_data_set_raises_names_the_data_set(monkeypatch, error):
    def fail(*args, **kwargs):
        raise error("no\nsuch thing")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(ValueError, match=r"^dataset: ") as raised:
        load_from_hub(SourceArguments(dataset="org/things"), "digits", "folder")
    message = str(raised.value)
    assert message.startswith(
        "dataset: 'org/things' is neither 'digits', a folder here, nor a data set that the Hub gave ("
    )
    assert "such thing" in message
    assert "\n" not in message
    assert isinstance(raised.value.__cause__, error)

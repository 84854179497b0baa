# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from accelerate import PartialState
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset

from sparsight.training.engine.batches import EpochBatches, find_order, make_evaluation_loader, make_training_loader
from sparsight.training.engine.loop_arguments import LoopArguments


class Keys(Dataset):
    """Examples that are their own keys."""

    def __len__(self):
        return 40

    def __getitem__(self, key):
        return key


def order(examples, repeats: int = 1, **loop) -> EpochBatches:
    return EpochBatches(examples, LoopArguments(**{"batch_size": 8, **loop}), repeats)


def keys(number: int, first_step: int = 0, **loop) -> list[tuple[int, int, int]]:
    """Of the first so many micro-batches of 40 examples."""
    batches = order(range(40), **loop)
    batches.first_step = first_step
    return list(itertools.chain.from_iterable(itertools.islice(batches, number)))


# --- the order -------------------------------------------------------------------------------------------------------


def test_each_epoch_is_a_permutation_and_epochs_differ():
    drawn = keys(10)
    first, second = drawn[:40], drawn[40:]
    assert [key[:2] for key in drawn] == [(epoch, position) for epoch in (0, 1) for position in range(40)]
    assert sorted(key[2] for key in first) == sorted(key[2] for key in second) == list(range(40))
    assert [key[2] for key in first] != [key[2] for key in second]
    assert drawn != keys(10, seed=1)
    assert drawn == keys(10)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("first_step", [1, 4, 5, 7])
def test_order_continues_from_any_step(first_step, accumulation):
    whole = keys(10 * accumulation, gradient_accumulation_steps=accumulation)
    rest = keys((10 - first_step) * accumulation, first_step, gradient_accumulation_steps=accumulation)
    assert rest == whole[first_step * 8 :]


def test_accumulation_splits_the_same_steps():
    assert keys(20, gradient_accumulation_steps=2) == keys(10)


@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 3), st.integers(0, 12), st.integers(1, 4))
def test_order_of_any_size(num_examples, batch_size, accumulation, first_step, repeats):
    """Continued from any step, and whole steps only."""
    if num_examples < batch_size * accumulation:
        return
    loop = {"batch_size": batch_size * accumulation, "gradient_accumulation_steps": accumulation}
    whole, rest = order(range(num_examples), repeats, **loop), order(range(num_examples), repeats, **loop)
    rest.first_step = first_step
    number = 3 * accumulation * whole.steps_per_epoch
    batches = list(itertools.islice(whole, number + first_step * accumulation))
    assert {len(batch) for batch in batches} == {batch_size}
    assert list(itertools.islice(rest, number)) == batches[first_step * accumulation :]
    for epoch, part in itertools.groupby(itertools.chain.from_iterable(batches[:number]), key=lambda key: key[0]):
        part = list(part)
        assert [position for _, position, _ in part] == list(range(whole.steps_per_epoch * loop["batch_size"]))
        assert max(Counter(index for *_, index in part).values()) <= repeats
        assert epoch < 3


def test_incomplete_steps_are_dropped():
    batches = order(range(39))
    assert batches.steps_per_epoch == 4
    drawn = list(itertools.chain.from_iterable(itertools.islice(batches, 4)))
    assert len({key[2] for key in drawn}) == 32
    assert next(iter(itertools.islice(batches, 4, None)))[0][:2] == (1, 0)


def test_repeated_augmentation():
    drawn = list(itertools.chain.from_iterable(itertools.islice(order(range(40), repeats=3), 5)))
    counts = Counter(index for *_, index in drawn)
    assert sorted(counts.values())[-13:] == [3] * 13
    assert sum(counts.values()) == 40


# --- the loaders -----------------------------------------------------------------------------------------------------


def as_lists(batches, number: int) -> list[list[tuple[int, int, int]]]:
    return [list(batch) for batch in itertools.islice(batches, number)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_training_loader_begins_where_its_order_does(accelerator, num_workers):
    loop = LoopArguments(batch_size=8, num_workers=num_workers)
    loader = make_training_loader(Keys(), EpochBatches(Keys(), loop), list, accelerator, loop)
    assert find_order(loader).steps_per_epoch == 5
    find_order(loader).first_step = 3
    assert [key for batch in as_lists(loader, 7) for key in batch] == keys(7, first_step=3)


def test_order_is_found_under_the_shard_of_several_processes(accelerator):
    batches = order(range(40))
    loop = LoopArguments(batch_size=8)
    assert find_order(make_training_loader(Keys(), batches, list, accelerator, loop)) is batches
    assert find_order(SimpleNamespace(batch_sampler=batches)) is batches
    assert find_order(SimpleNamespace(batch_sampler=SimpleNamespace(batch_sampler=batches))) is batches


@pytest.mark.parametrize(
    ("batch_size", "accumulation", "num_processes", "message"),
    [
        (41, 1, 1, "batch_size: 41 is more than the 40 training examples; lower it"),
        (8, 1, 3, "batch_size: a micro-batch of 8 does not divide over 3 processes; give a multiple"),
        (12, 4, 2, "batch_size: a micro-batch of 3 does not divide over 2 processes; give a multiple"),
    ],
)
def test_batch_size_must_fit(batch_size, accumulation, num_processes, message):
    loop = LoopArguments(batch_size=batch_size, gradient_accumulation_steps=accumulation)
    processes = SimpleNamespace(num_processes=num_processes, device=torch.device("cpu"))
    with pytest.raises(ValueError, match=r"^batch_size: ") as error:
        make_training_loader(Keys(), EpochBatches(Keys(), loop), list, processes, loop)
    assert str(error.value) == message


@pytest.mark.parametrize("num_workers", [0, 2])
def test_evaluation_loader_gives_every_example_once_and_in_order(accelerator, num_workers):
    loop = LoopArguments(eval_batch_size=16, num_workers=num_workers)
    loader = make_evaluation_loader(Keys(), list, accelerator, loop)
    for _ in range(2):
        assert list(loader) == [list(range(16)), list(range(16, 32)), list(range(32, 40))]
    pairs = [(0, index) for index in (5, 3, 9)]
    assert list(make_evaluation_loader(Keys(), list, accelerator, loop, pairs)) == [pairs]


# --- the parts of two processes, one after the other -----------------------------------------------------------------


@pytest.fixture
def as_process(accelerator, monkeypatch):
    """Makes this process the one with a number, of two."""

    def be(index: int) -> None:
        monkeypatch.setitem(PartialState._shared_state, "num_processes", 2)
        monkeypatch.setitem(PartialState._shared_state, "process_index", index)

    return be


def test_processes_share_every_training_batch(accelerator, as_process):
    parts = []
    for index in range(2):
        as_process(index)
        loop = LoopArguments(batch_size=8)
        loader = make_training_loader(Keys(), EpochBatches(Keys(), loop), list, accelerator, loop)
        find_order(loader).first_step = 3
        parts.append(as_lists(loader, 7))
    assert {len(batch) for part in parts for batch in part} == {4}
    assert [key for halves in zip(*parts, strict=True) for half in halves for key in half] == keys(7, first_step=3)


def test_processes_share_the_evaluation_examples_and_repeat_none(accelerator, as_process):
    """40 examples in batches of 15: two whole ones in turns, and the rest."""
    parts = []
    for index in range(2):
        as_process(index)
        parts.append(list(make_evaluation_loader(Keys(), list, accelerator, LoopArguments(eval_batch_size=15))))
    assert parts == [[list(range(15)), list(range(30, 40))], [list(range(15, 30))]]

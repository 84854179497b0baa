# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import itertools

import numpy as np
import pytest
import torch

from script_testing import TINY_TEXTS
from sparsight.training.data.corrupted_text import CorruptedText, make_corruption, make_eval_loader, make_train_loader
from sparsight.training.data.packing import TextArguments, make_blocks
from sparsight.training.data.texts import load_texts
from sparsight.training.data.tokenization import find_sentinel_ids
from sparsight.training.engine.batches import find_order
from sparsight.training.engine.loop_arguments import LoopArguments


STREAM = {**TINY_TEXTS, "streaming": True, "shuffle_buffer": 5}


def train_batches(accelerator, tokenizer, number, first_step=0, num_workers=0, fields=TINY_TEXTS, **loop):
    arguments = TextArguments(**fields)
    loop = LoopArguments(**{"batch_size": 8, "num_workers": num_workers, "max_steps": 10, **loop})
    loader = make_train_loader(load_texts(arguments), tokenizer, arguments, accelerator, loop)
    find_order(loader).first_step = first_step
    return list(itertools.islice(loader, number))


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, two in zip(found, expected, strict=True):
        assert one.keys() == two.keys() == {"input_ids", "labels"}
        assert all(torch.equal(one[name], two[name]) for name in one)


def test_batches(accelerator, tokenizer):
    lengths = TextArguments(**TINY_TEXTS).lengths
    for batch in train_batches(accelerator, tokenizer, 5):
        assert batch["input_ids"].shape == (8, 32)
        assert batch["labels"].shape == (8, lengths.target_length)
        assert batch["input_ids"].dtype == batch["labels"].dtype == torch.long
        assert (batch["labels"][:, 0] == find_sentinel_ids(tokenizer)[0]).all()
        assert (batch["labels"][:, -1] == 1).all()


@pytest.mark.parametrize("fields", [TINY_TEXTS, STREAM], ids=["blocks", "stream"])
def test_same_for_any_number_of_workers(accelerator, tokenizer, fields):
    expected = train_batches(accelerator, tokenizer, 12, fields=fields)
    for num_workers in (1, 3):
        assert_same(train_batches(accelerator, tokenizer, 12, num_workers=num_workers, fields=fields), expected)
    other = train_batches(accelerator, tokenizer, 12, seed=1, fields=fields)
    assert not any(torch.equal(a["input_ids"], b["input_ids"]) for a, b in zip(other, expected, strict=True))


@pytest.mark.parametrize("fields", [TINY_TEXTS, STREAM], ids=["blocks", "stream"])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_continues_from_any_step(accelerator, texts, tokenizer, fields, accumulation, num_workers):
    """In the second epoch or later."""
    assert len(make_blocks(texts.train, tokenizer, TextArguments(**TINY_TEXTS))) // 8 < 33
    loop = {"gradient_accumulation_steps": accumulation, "fields": fields}
    whole = train_batches(accelerator, tokenizer, 40 * accumulation, **loop)
    rest = train_batches(accelerator, tokenizer, 7, first_step=33, num_workers=num_workers, **loop)
    assert_same(rest, whole[33 * accumulation : 33 * accumulation + 7])


def test_micro_batches_make_up_the_batch(accelerator, tokenizer):
    whole = train_batches(accelerator, tokenizer, 3)
    parts = train_batches(accelerator, tokenizer, 12, gradient_accumulation_steps=4)
    for index, batch in enumerate(whole):
        joined = torch.cat([part["input_ids"] for part in parts[4 * index : 4 * index + 4]])
        assert torch.equal(joined, batch["input_ids"])


def test_each_epoch_has_every_example_once_with_other_spans(accelerator, tokenizer, texts):
    num_blocks = len(make_blocks(texts.train, tokenizer, TextArguments(**TINY_TEXTS)))
    per_epoch = num_blocks // 8
    batches = train_batches(accelerator, tokenizer, 2 * per_epoch)
    first, second = (
        {tuple(row) for batch in part for row in torch.cat((batch["input_ids"], batch["labels"]), 1).tolist()}
        for part in (batches[:per_epoch], batches[per_epoch:])
    )
    assert len(first) == len(second) == per_epoch * 8
    assert not first & second


def test_spans_depend_on_seed_epoch_and_position(texts, tokenizer):
    arguments = TextArguments(**TINY_TEXTS)
    blocks, corruption = make_blocks(texts.train, tokenizer, arguments), make_corruption(arguments, tokenizer)
    labels = [
        CorruptedText(blocks, corruption, seed).__getitems__([(epoch, position, 0)])["labels"]
        for seed, epoch, position in ((0, 0, 0), (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    ]
    assert torch.equal(labels[0], labels[1])
    assert not any(torch.equal(labels[0], other) for other in labels[2:])


def test_evaluation_is_the_same_in_every_run(accelerator, texts, tokenizer):
    arguments = TextArguments(**TINY_TEXTS)
    runs = [
        list(make_eval_loader(texts, tokenizer, arguments, accelerator, LoopArguments(eval_batch_size=7, seed=seed)))
        for seed in (0, 1)
    ]
    assert_same(*runs)
    blocks = make_blocks(texts.eval, tokenizer, arguments)
    assert sum(len(batch["labels"]) for batch in runs[0]) == len(blocks)
    inputs, _ = make_corruption(arguments, tokenizer)(blocks, [(0, 0, index) for index in range(len(blocks))])
    assert np.array_equal(torch.cat([batch["input_ids"] for batch in runs[0]]), inputs)


def test_what_does_not_fit(accelerator, tokenizer):
    with pytest.raises(ValueError, match=r"^batch_size: 4096 is more than the \d+ training examples; lower it"):
        train_batches(accelerator, tokenizer, 1, batch_size=4096)
    with pytest.raises(ValueError, match=r"^max_steps: a stream has no epochs; say how many"):
        train_batches(accelerator, tokenizer, 1, max_steps=0, fields=STREAM)
    with pytest.raises(ValueError, match=r"^input_length: 114 spans need as many sentinels, got 100; shorten"):
        make_corruption(TextArguments(input_length=2048), tokenizer)


def test_stream_without_an_example(accelerator, tokenizer, tmp_path):
    (tmp_path / "short.txt").write_text("One.\n\nTwo.\n\nThree.\n\nFour.")
    with pytest.raises(ValueError, match=r"^input_length: the stream has fewer tokens than one example"):
        train_batches(accelerator, tokenizer, 1, fields={**STREAM, "dataset": str(tmp_path / "short.txt")})

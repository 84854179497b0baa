# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsight.training.engine.seeding import derive_seed, seed_generators


numbers = st.lists(st.integers(0, 2**40), min_size=1, max_size=4)


@given(numbers, numbers)
def test_seeds_are_a_function_of_all_numbers(one, other):
    assert 0 <= derive_seed(*one) < 2**32
    assert derive_seed(*one) == derive_seed(*one)
    if one != other and [*one, *[0] * 4][:4] != [*other, *[0] * 4][:4]:
        assert derive_seed(*one) != derive_seed(*other)


def test_neighbours_share_no_seed():
    assert len({derive_seed(seed, epoch, step) for seed in range(8) for epoch in range(8) for step in range(64)}) == (
        8 * 8 * 64
    )


def draws() -> tuple:
    return random.random(), np.random.random(), torch.rand(1).item()


def test_all_generators_are_seeded():
    seen = []
    for seed in (3, 3, 4):
        seed_generators(seed, torch.device("cpu"))
        seen.append(draws())
    assert seen[0] == seen[1]
    assert all(one != other for one, other in zip(seen[0], seen[2], strict=True))

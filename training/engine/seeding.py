# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Randomness as a function of where a run stands, so that nothing has to be saved to resume it."""

import random

import numpy as np
import torch


def derive_seed(*numbers: int) -> int:
    """A seed in [0, 2³²) from several numbers, such as the run's seed, an epoch and a position in it."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def seed_generators(seed: int, device: torch.device | None = None) -> None:
    """Seed Python's, NumPy's and torch's generators, that of `device` among them.

    `torch.manual_seed` would do for all devices, at 0.2 ms a call where an accelerator is compiled in but not in use.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if device is not None and device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)

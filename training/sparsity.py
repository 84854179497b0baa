# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The former place of `sparsight.training.methods.activation_sparsity`, kept for one release."""

import warnings

from sparsight.training.methods.activation_sparsity import *  # noqa: F403


warnings.warn(
    "sparsight.training.sparsity is now sparsight.training.methods.activation_sparsity, and goes in the next release",
    DeprecationWarning,
    stacklevel=2,
)

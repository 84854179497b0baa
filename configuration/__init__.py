# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""One configuration a family."""

from sparsight.configuration.configuration_crate import CrateConfig
from sparsight.configuration.configuration_sparse_t5 import SparseT5Config
from sparsight.configuration.configuration_sparse_vit import SparseViTConfig


__all__ = ["CrateConfig", "SparseT5Config", "SparseViTConfig"]

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Metric folders for `evaluate.load`."""

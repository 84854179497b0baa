# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Measurements of trained and training models."""

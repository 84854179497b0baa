# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Runnable scripts, and the parts of the recipes beside them."""

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The scripts that train, and the rooms beneath them."""

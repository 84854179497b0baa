# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What trains, whatever is trained: the loop, its observers, and the run from a model to the written folder."""

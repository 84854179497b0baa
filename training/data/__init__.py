# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""From the name of a data set to batches. Knows no task and no loss."""

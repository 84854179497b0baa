# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What a script starts: one model of a task, or a finetuning beside its baseline."""

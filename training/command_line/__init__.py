# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""From a command line and a recipe to dataclasses of arguments, and from an error to one line. Knows no training."""

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""One measurement a file, as a command: `add_options(parser)` and `run(args)`. `common` has what all of them share."""

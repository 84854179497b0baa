# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Wording that all error messages share."""

import difflib
from collections.abc import Iterable


def single_line(error: object, max_length: int = 300) -> str:
    """What an error of another library says, as part of a message of one line."""
    return " ".join(str(error).split())[:max_length]


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean …`: the known names that come nearest to `name`, or all of them where none comes near."""
    known = sorted(known)
    matches = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(matches)}?" if matches else f"known are {', '.join(known)}"

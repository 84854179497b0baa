# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Whether what a user named lies here or on the Hub."""

import os


def is_here(argument: str, name: str, what: str, way_out: str, endings: tuple[str, ...] = ()) -> bool:
    """Whether `name` is a file or folder here, rather than a name on the Hub.

    Args:
        argument: that gave the name.
        name: a path, or `name` or `org/name` on the Hub.
        what: "folder" or "file", which a user would expect here.
        way_out: what to give instead of a path that is not there.
        endings: of names that can only be files.

    Raises:
        ValueError: if it can only be a path, and there is none.
    """
    if os.path.exists(name):
        return True
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith(endings):
        raise ValueError(f"{argument}: there is no {what} {name}; give {way_out}")
    return False

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The one place where an error becomes a line that a user can act on.

What lies beneath the scripts raises ordinary exceptions whose message begins with the name of the argument at fault,
as in `ValueError("batch_size: 4096 is more than the 128 training images; lower it")`.
"""

import contextlib
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import fields
from pathlib import Path


class UsageError(Exception):
    """A command line or recipe that cannot be parsed. The message is one line with the flag and the way out."""


@contextlib.contextmanager
def one_line_errors(*argument_classes: type) -> Iterator[None]:
    """Turn an error that the input is to blame for into `script: error: --flag: …` on stderr and exit code 2.

    These are [`UsageError`], exceptions that begin with the name of an argument, and files that cannot be read or
    written. Any other exception passes, and ends the script with its traceback.

    Args:
        argument_classes: the dataclasses of the script's arguments.
    """
    names = {field.name for argument_class in argument_classes for field in fields(argument_class)}
    try:
        yield
    except Exception as error:
        message = describe(error, names)
        if message is None:
            raise
        print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
        sys.exit(2)


def describe(error: Exception, names: Collection[str]) -> str | None:
    """The one line for an error that the input is to blame for, None for any other.

    Args:
        error: what was raised.
        names: of the arguments.
    """
    text = str(error).strip()
    if isinstance(error, UsageError):
        return text
    # Where a worker of the data loader raised it, torch puts the traceback in front of the message.
    if text.startswith("Caught ") and " in DataLoader worker" in text:
        text = text.rpartition(f"\n{type(error).__name__}: ")[2]
    if (found := re.match(r"(\w+)(\.\w+)?: \S", text)) and found[1] in names:
        return f"--{' '.join(text.split())}"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"cannot use {error.filename} ({error.strerror}); give another place or see to this one"
    return None

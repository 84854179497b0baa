# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What the command lines share: mistakes that are answered with one line, and tables of commands."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from sparsight.configuration.messages import nearest, single_line


class ConsoleParser(argparse.ArgumentParser):
    """A parser that answers a mistake with one line on stderr, `<prog>: error: …`, and exit code 2.

    Abbreviated options are unknown, so that a command line means the same when options are added.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def parse_args(self, args: Sequence[str] | None = None, namespace=None) -> argparse.Namespace:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]
            if name.startswith("-"):
                self.error(f"{name}: unknown argument; {nearest(name, self._option_string_actions)}")
            self.error(f"{name!r}: one argument too many")
        return parsed

    def error(self, message: str) -> NoReturn:
        sys.exit(self.report(f"{message} (see {self.prog} --help)"))

    def report(self, error: object) -> int:
        """Print what is wrong as one line, and return the exit code 2."""
        # No message of ours is that long; it must not lose the way out at its end.
        print(f"{self.prog}: error: {single_line(error, max_length=4000)}", file=sys.stderr)
        return 2


@dataclass(frozen=True)
class Command:
    """One line of a table of commands.

    Attributes:
        module: the module that runs it, imported once the command is chosen.
        summary: what it does, for `--help`.
        example: arguments that show its use.
    """

    module: str
    summary: str
    example: str


def choose_command(
    commands: Mapping[str, Command], argv: Sequence[str] | None, prog: str, description: str
) -> tuple[str, list[str]]:
    """The command that a command line begins with, and the arguments after it.

    `--help` prints the table and exits with 0. No command, or one that is not in the table, is one line on stderr and
    exit code 2.

    Args:
        commands: by the name that is typed.
        argv: the arguments; None for the process's own.
        prog: what was typed in front of them.
        description: what the commands have in common, for `--help`.
    """
    width = max(map(len, commands))
    table = [
        line
        for name, command in commands.items()
        for line in (f"  {name:{width}}  {command.summary}", f"  {'':{width}}  $ {prog} {name} {command.example}")
    ]
    parser = ConsoleParser(
        prog=prog,
        usage=f"{prog} COMMAND ...",
        description=description,
        epilog="\n".join(["commands:", *table, "", f"`{prog} COMMAND --help` explains the arguments of a command."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", metavar="COMMAND", help=argparse.SUPPRESS)
    argv = list(sys.argv[1:] if argv is None else argv)
    name = parser.parse_args(argv[:1]).command
    if name not in commands:
        parser.error(f"unknown command {name!r}; {nearest(name, commands)}")
    return name, argv[1:]

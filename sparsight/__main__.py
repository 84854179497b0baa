# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The command `sparsight`, also as `python -m sparsight`."""

import importlib
import sys

from sparsight.configuration.console import Command, choose_command


# The time to `sparsight --help` is that of `import sparsight`, which loads torch and transformers to register the
# families: 5 s on two slow cores, as with `accelerate --help`. An entry point outside the package could answer before,
# at the price of a second import name; what a command needs beyond that is imported once the command is known.
COMMANDS = {
    "analyze": Command(
        "sparsight.analysis.__main__",
        "measure trained models: tables, figures and numbers",
        "rate-reduction outputs/crate_digits/model --dataset digits",
    ),
    "convert-crate": Command(
        "sparsight.modeling.convert_crate",
        "convert CRATE checkpoints between their authors' layout and transformers'",
        "--checkpoint crate_base.pth --num_attention_heads 12 --output crate-base",
    ),
    "card": Command(
        "sparsight.hub_cards.__main__",
        "write the model card of a checkpoint anew",
        "outputs/crate_digits/model",
    ),
    "tables": Command(
        "sparsight.hub_cards.documents",
        "make the tables of results in Markdown files anew",
        "README.md docs/*.md",
    ),
}


def main(argv: list[str] | None = None, prog: str = "sparsight") -> int:
    """Run the command that `argv` begins with, by default the process's own arguments.

    Returns:
        The exit code: 0, or 2 after one line on stderr about what is wrong.
    """
    description = "Transformers that compute less and whose inner workings can be inspected."
    name, arguments = choose_command(COMMANDS, argv, prog, description)
    return importlib.import_module(COMMANDS[name].module).main(arguments, prog=f"{prog} {name}")


if __name__ == "__main__":
    sys.exit(main(prog="python -m sparsight"))

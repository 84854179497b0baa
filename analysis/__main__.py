# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Measurements from the command line.

python -m sparsight.analysis rate-reduction MODEL [MODEL ...] --dataset digits --output rate_reduction.png
"""

import importlib
import sys

from transformers.utils import logging

from sparsight.configuration.console import Command, ConsoleParser, choose_command


COMMANDS = {
    "rate-reduction": Command(
        "sparsight.analysis.commands.rate_reduction",
        "compression rate and sparsity by layer, of CRATE or any vision transformer",
        "outputs/crate_digits/model --dataset digits --random_init",
    ),
    "sparsity": Command(
        "sparsight.analysis.commands.sparsity",
        "share of non-zero activations by layer, of any model on images",
        "google/vit-base-patch16-224 --dataset path/to/images",
    ),
}


def main(argv: list[str] | None = None, prog: str = "python -m sparsight.analysis") -> int:
    """Run the command that `argv` begins with, by default the process's own arguments.

    Returns:
        The exit code: 0, or 2 after one line on stderr about what is wrong.
    """
    name, arguments = choose_command(COMMANDS, argv, prog, "Measurements of trained models.")
    command = importlib.import_module(COMMANDS[name].module)
    parser = ConsoleParser(prog=f"{prog} {name}", description=command.__doc__)
    command.add_options(parser)
    args = parser.parse_args(arguments)
    logging.disable_progress_bar()
    try:
        command.run(args)
    except (OSError, ValueError) as error:
        return parser.report(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Write the model card of a checkpoint anew.

python -m sparsight.hub_cards outputs/crate_digits/model
"""

import sys
from pathlib import Path

from sparsight.configuration.console import ConsoleParser
from sparsight.hub_cards.model_card import CardError, write_model_card


def main(argv: list[str] | None = None, prog: str = "python -m sparsight.hub_cards") -> int:
    parser = ConsoleParser(
        prog=prog,
        description="Write README.md, the model card, of a checkpoint: from its config.json, and from results.json "
        "and arguments.json where a training script has put them beside it.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="a folder that `save_pretrained` wrote")
    args = parser.parse_args(argv)
    try:
        print(write_model_card(args.folder))
    except (CardError, OSError) as error:
        return parser.report(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())

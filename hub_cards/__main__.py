# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Write the model card of a checkpoint anew.

python -m sparsight.hub_cards outputs/crate_digits/model
"""

import argparse
import sys
from pathlib import Path

from sparsight.hub_cards.model_card import CardError, write_model_card


def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sparsight.hub_cards",
        description="Write README.md, the model card, of a checkpoint: from its config.json, and from results.json "
        "and arguments.json where a training script has put them beside it.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="a folder that `save_pretrained` wrote")
    try:
        print(write_model_card(parser.parse_args(args).folder))
    except CardError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

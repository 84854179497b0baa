# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables of results in Markdown files, made from the `results.json` files of several seeds.

    sparsight tables README.md docs/*.md
    sparsight tables README.md docs/*.md --check

A file says where a table belongs, and of what, relative to itself:

    <!-- sparsight tables: results/vit_digits_finetune before lora method -->
    <!-- end -->

`results/vit_digits_finetune` is a folder of JSON files, one a seed; the words after it are the models in them that are
set side by side. Without any, each file holds the results of one model. What is between the two lines is replaced.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from sparsight.configuration.console import ConsoleParser
from sparsight.hub_cards.tables import format_table, models_table
from sparsight.modeling.files import written_beside


_PLACE = re.compile(r"(<!-- sparsight tables: (?P<words>[^>]+) -->\n)(?P<table>.*?)(<!-- end -->)", re.DOTALL)
_NAMES = {"lora": "LoRA"}
_SINGLE_MODEL = "model"


def fill_tables(path: Path) -> str:
    """The text of a Markdown file with all its tables made anew.

    Raises:
        ValueError: if a table's results are not there or are no results.
        OSError: if the file cannot be read.
    """

    def replace(found: re.Match) -> str:
        folder, *models = found["words"].split()
        return f"{found[1]}{_make_table(path.parent / folder, models)}\n{found[4]}"

    return _PLACE.sub(replace, path.read_text(encoding="utf-8"))


def _make_table(folder: Path, models: list[str]) -> str:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ValueError(f"{folder}: has no results; give a folder of JSON files, one for each seed")
    runs = []
    for file in files:
        try:
            results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            chosen = {_NAMES.get(name, name): results[name] for name in models} or {_SINGLE_MODEL: results}
        except (ValueError, KeyError) as error:
            raise ValueError(f"{file}: is no results.json of {', '.join(models) or 'a model'} ({error!r})") from error
        runs.append(chosen)
    if not (table := models_table(runs)):
        raise ValueError(f"{folder}: has no number that a table shows")
    return format_table(table)


def main(argv: list[str] | None = None, prog: str = "python -m sparsight.hub_cards.documents") -> int:
    """Run the command; returns the exit code, 1 where `--check` finds a table that is not up to date."""
    parser = ConsoleParser(prog=prog, description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="Markdown files")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a table is out of date")
    args = parser.parse_args(argv)
    outdated = []
    try:
        texts = {path: fill_tables(path) for path in args.files}  # all, before the first is written
        for path, text in texts.items():
            if text != path.read_text(encoding="utf-8"):
                outdated.append(path)
                if not args.check:
                    with written_beside(path) as new:
                        new.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        return parser.report(error)
    for path in outdated:
        print(f"{path}: {'is out of date' if args.check else 'written'}")
    return 1 if args.check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""From the name of a data set to texts: Python's own documentation, files, or a data set of the Hub."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from sparsight.configuration.messages import single_line
from sparsight.training.command_line.arguments import argument
from sparsight.training.data.splits import SourceArguments, choose_splits, limit, load_from_hub
from sparsight.training.engine.places import is_here


STDLIB = "stdlib"
_ENDINGS = (".txt", ".parquet")
_TEXT_TYPES = ("string", "large_string")


@dataclass
class TextSource(SourceArguments):
    """Which texts there are."""

    dataset: str = argument(
        "'stdlib' (embedded: Python's own documentation), a .txt or .parquet file, a folder of them, or a data set of "
        "the Hub.",
        STDLIB,
    )
    text_column: str = argument("Column of the texts.", "text")
    streaming: bool = argument(
        "Read the data set while training; needs --max_steps, which count as one epoch. To resume, the stream is read "
        "again from its start.",
        False,
    )
    shuffle_buffer: int = argument("Texts of a stream to shuffle among.", 10_000, at_least=1)


@dataclass
class Texts:
    """Training and evaluation texts, in column `text`; a stream where the arguments say so."""

    train: datasets.Dataset | datasets.IterableDataset
    eval: datasets.Dataset | datasets.IterableDataset
    eval_split: str


def load_texts(source: TextSource) -> Texts:
    """Load the texts that the arguments name.

    Raises:
        ValueError: if the data set is not there or lacks the split or the column.
    """
    train, evaluation, eval_split = choose_splits(_load_splits(source), source)
    train = _select_column(train, source)
    if eval_split is not None:
        evaluation = _select_column(evaluation, source)
    elif source.streaming:
        if not (count := source.max_eval_samples):
            raise ValueError(
                "max_eval_samples: say how many texts of the stream to hold out, as it has no other split"
            )
        train, evaluation = train.skip(count), train.take(count)
        eval_split = f"the first {count} texts of {source.train_split}"
    else:
        if len(train) < 2:
            raise ValueError(f"dataset: {source.dataset} has one text, and none to evaluate on; give more")
        parts = train.train_test_split(test_size=0.1, seed=0)
        train, evaluation, eval_split = parts["train"], parts["test"], f"a tenth of {source.train_split}"
    return Texts(*limit(train, evaluation, source), eval_split)


def _load_splits(source: TextSource) -> dict[str, datasets.Dataset] | dict[str, datasets.IterableDataset]:
    name, streaming = source.dataset, source.streaming
    if name == STDLIB:
        texts = _load_stdlib()
        return {"train": texts.to_iterable_dataset() if streaming else texts}
    if is_here("dataset", name, "file", f"one, {STDLIB!r}, or a data set of the Hub", _ENDINGS):
        return _load_files(name, streaming)
    return load_from_hub(source, STDLIB, "file", streaming=streaming)


def _load_stdlib() -> datasets.Dataset:
    """The sections of Python's reference that every CPython carries for `help()`."""
    from pydoc_data.topics import topics

    return datasets.Dataset.from_dict({"text": [topics[name] for name in sorted(topics)]})


def _load_files(name: str, streaming: bool) -> dict[str, datasets.Dataset] | dict[str, datasets.IterableDataset]:
    """A text is a paragraph of a .txt file, or a row of a .parquet file."""
    path = Path(name)
    files = sorted(p for p in path.rglob("*") if p.suffix in _ENDINGS) if path.is_dir() else [path]
    kinds = {file.suffix for file in files}
    if len(kinds) != 1 or not kinds <= set(_ENDINGS):
        raise ValueError(f"dataset: {name} has no .txt or .parquet files, or both; give files of one kind")
    options = {"data_files": [str(file) for file in files], "streaming": streaming}
    try:
        if kinds == {".txt"}:
            return datasets.load_dataset("text", sample_by="paragraph", **options)
        return datasets.load_dataset("parquet", **options)
    except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
        raise ValueError(f"dataset: cannot read {name} ({single_line(error)}); give text in UTF-8") from error


def _select_column(
    texts: datasets.Dataset | datasets.IterableDataset, source: TextSource
) -> datasets.Dataset | datasets.IterableDataset:
    """The column of the texts alone, as `text`."""
    columns = texts.column_names or list(next(iter(texts), {}))
    column = source.text_column
    if column not in columns:
        raise ValueError(f"text_column: there is no column {column!r}; the data set has {', '.join(columns)}")
    texts = texts.select_columns([column])
    # A stream may not know yet what it holds; its rows are checked as they come.
    feature = (texts.features or {}).get(column)
    if feature is not None and not (isinstance(feature, datasets.Value) and feature.dtype in _TEXT_TYPES):
        kind = feature.dtype if isinstance(feature, datasets.Value) else type(feature).__name__
        raise ValueError(f"text_column: {column!r} holds {kind}, not texts; name a column of strings")
    if isinstance(texts, datasets.Dataset) and (number := texts.data.column(column).null_count):
        raise ValueError(f"text_column: {column!r} is empty (null) in {number} rows; remove them")
    return texts if column == "text" else texts.rename_column(column, "text")


def iterate_checked(texts: Iterable[dict[str, Any]], source: TextSource) -> Iterator[dict[str, str]]:
    """The rows, with [`check_texts`] on each."""
    for row in texts:
        check_texts([row["text"]], source)
        yield row


def check_texts(rows: Sequence[Any], source: TextSource) -> None:
    """Check that all rows of the column are texts.

    Raises:
        ValueError: if one is not.
    """
    for row in rows:
        if not isinstance(row, str):
            kind = "null" if row is None else type(row).__name__
            raise ValueError(f"text_column: a row of {source.text_column!r} is no text, but {kind}; remove or mend it")

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Text for the scripts: Python's own documentation, files, or a data set of the Hub."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import datasets

from sparsight.training.arguments import UsageError, argument, require, single_line
from sparsight.training.span_corruption import SpanLengths
from sparsight.training.tokenizer_training import NUM_SENTINELS


@dataclass
class TextArguments:
    """Data set, tokenizer and span corruption."""

    dataset: str = argument(
        "'stdlib' (embedded: Python's own documentation), a .txt or .parquet file, a folder of them, or a data set of "
        "the Hub.",
        "stdlib",
    )
    dataset_config: str | None = argument("Configuration name of a data set of the Hub, such as 'en'.")
    train_split: str = argument("Split to train on.", "train")
    eval_split: str | None = argument(
        "Split to evaluate on. Default: validation or test, whichever there is, else a tenth of the texts held out of "
        "training (of a stream, the first --max_eval_samples)."
    )
    text_column: str = argument("Column of the texts.", "text")
    streaming: bool = argument(
        "Read the data set while training; needs --max_steps, which count as one epoch. To resume, the stream is read "
        "again from its start.",
        False,
    )
    shuffle_buffer: int = argument("Texts of a stream to shuffle among.", 10_000)
    max_train_samples: int = argument("Train on the first so many texts only; 0 takes all.", 0)
    max_eval_samples: int = argument("Evaluate on the first so many texts only; 0 takes all.", 0)
    tokenizer_name: str | None = argument(
        "Tokenizer with sentinels <extra_id_0>, ..., a folder or on the Hub. Default: that of the checkpoint to start "
        "from, else one is trained on the data."
    )
    vocab_size: int = argument("Vocabulary of the tokenizer that is trained, with its 100 sentinels.", 2048)
    input_length: int = argument("Encoder tokens of an example, after corruption.", 512)
    noise_density: float = argument("Share of the tokens that are masked.", 0.15)
    mean_span_length: float = argument("Mean number of tokens in a masked span.", 3.0)
    packing: Literal["concatenate", "within_batch"] = argument(
        "Concatenate all texts and split them into examples, or do so within each --packing_batch_size texts, whose "
        "remainder is dropped.",
        "concatenate",
    )
    packing_batch_size: int = argument("Texts to tokenize, and with within_batch to pack, together.", 1000)

    def check(self) -> None:
        """
        Raises:
            UsageError: naming the argument, if a value is nonsense.
        """
        require(self.input_length >= 3, "input_length", f"{self.input_length} is too short; give at least 3")
        require(0 < self.noise_density < 1, "noise_density", f"{self.noise_density} is not in (0, 1)")
        require(self.mean_span_length >= 1, "mean_span_length", f"{self.mean_span_length} is less than a token")
        for name in ("packing_batch_size", "shuffle_buffer"):
            require(getattr(self, name) >= 1, name, f"{getattr(self, name)} is too few; give at least 1")
        for name in ("max_train_samples", "max_eval_samples"):
            require(getattr(self, name) >= 0, name, f"{getattr(self, name)} is negative; give 0 or more")
        smallest = NUM_SENTINELS + 100
        require(self.vocab_size >= smallest, "vocab_size", f"{self.vocab_size} is too few; give at least {smallest}")

    @property
    def lengths(self) -> SpanLengths:
        """How an example splits into inputs and targets."""
        return SpanLengths.for_inputs(self.input_length, self.noise_density, self.mean_span_length)


@dataclass
class Texts:
    """Training and evaluation texts, in column `text`; a stream where the arguments say so."""

    train: datasets.Dataset | datasets.IterableDataset
    eval: datasets.Dataset | datasets.IterableDataset
    eval_split: str


def load_texts(arguments: TextArguments) -> Texts:
    """
    Raises:
        UsageError: if the data set is not there or lacks the split or the column.
    """
    splits = _load_splits(arguments)
    for name in filter(None, (arguments.train_split, arguments.eval_split)):
        flag = "train_split" if name == arguments.train_split else "eval_split"
        require(name in splits, flag, f"{arguments.dataset} has no split {name!r}; it has {', '.join(splits)}")
    splits = {name: _select_column(split, arguments) for name, split in splits.items()}
    train = splits[arguments.train_split]
    eval_split = arguments.eval_split or next((s for s in ("validation", "valid", "val", "test") if s in splits), None)
    if eval_split is not None:
        evaluation = splits[eval_split]
    elif arguments.streaming:
        count = arguments.max_eval_samples
        require(
            count > 0, "max_eval_samples", "say how many texts of the stream to hold out, as it has no other split"
        )
        train, evaluation = train.skip(count), train.take(count)
        eval_split = f"the first {count} texts of {arguments.train_split}"
    else:
        require(len(train) > 1, "dataset", f"{arguments.dataset} has one text, and none to evaluate on; give more")
        parts = train.train_test_split(test_size=0.1, seed=0)
        train, evaluation, eval_split = parts["train"], parts["test"], f"a tenth of {arguments.train_split}"
    if arguments.max_train_samples > 0:
        train = train.take(arguments.max_train_samples)
    if arguments.max_eval_samples > 0:
        evaluation = evaluation.take(arguments.max_eval_samples)
    return Texts(train, evaluation, eval_split)


def _load_splits(arguments: TextArguments) -> dict[str, datasets.Dataset] | dict[str, datasets.IterableDataset]:
    name, streaming = arguments.dataset, arguments.streaming
    if name == "stdlib":
        texts = _load_stdlib()
        return {"train": texts.to_iterable_dataset() if streaming else texts}
    if os.path.exists(name):
        return _load_files(name, streaming)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith((".txt", ".parquet")):
        raise UsageError(f"--dataset: there is no file {name}; give one, 'stdlib', or a data set of the Hub")
    try:
        return datasets.load_dataset(name, arguments.dataset_config, streaming=streaming)
    except Exception as error:  # the loader of a data set may raise anything
        raise UsageError(
            f"--dataset: {name!r} is neither 'stdlib', a file here, nor a data set that the Hub gave "
            f"({single_line(error)})"
        ) from error


def _load_stdlib() -> datasets.Dataset:
    """The sections of Python's reference that every CPython carries for `help()`."""
    from pydoc_data.topics import topics

    return datasets.Dataset.from_dict({"text": [topics[name] for name in sorted(topics)]})


def _load_files(name: str, streaming: bool) -> dict[str, datasets.Dataset] | dict[str, datasets.IterableDataset]:
    """A text is a paragraph of a .txt file, or a row of a .parquet file."""
    path = Path(name)
    files = sorted(p for p in path.rglob("*") if p.suffix in (".txt", ".parquet")) if path.is_dir() else [path]
    kinds = {file.suffix for file in files}
    if len(kinds) != 1 or not kinds <= {".txt", ".parquet"}:
        raise UsageError(f"--dataset: {name} has no .txt or .parquet files, or both; give files of one kind")
    options = {"data_files": [str(file) for file in files], "streaming": streaming}
    try:
        if kinds == {".txt"}:
            return datasets.load_dataset("text", sample_by="paragraph", **options)
        return datasets.load_dataset("parquet", **options)
    except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
        raise UsageError(f"--dataset: cannot read {name} ({single_line(error)}); give text in UTF-8") from error


def _select_column(
    texts: datasets.Dataset | datasets.IterableDataset, arguments: TextArguments
) -> datasets.Dataset | datasets.IterableDataset:
    """The column of the texts alone, as `text`."""
    columns = texts.column_names or list(next(iter(texts), {}))
    column = arguments.text_column
    require(column in columns, "text_column", f"there is no column {column!r}; the data set has {', '.join(columns)}")
    texts = texts.select_columns([column])
    return texts if column == "text" else texts.rename_column(column, "text")

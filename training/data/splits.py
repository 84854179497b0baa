# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Which examples there are: what images and texts have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import datasets

from sparsight.configuration.messages import single_line
from sparsight.training.command_line.arguments import argument


EVAL_SPLITS = ("validation", "valid", "val", "test")


@dataclass
class SourceArguments:
    """Which examples there are to train and to evaluate on."""

    dataset: str = argument("Data set.", "")
    dataset_config: str | None = argument("Configuration name of a data set of the Hub, such as 'en'.")
    train_split: str = argument("Split to train on.", "train")
    eval_split: str | None = argument(
        "Split to evaluate on. Default: validation or test, whichever there is, else a tenth held out of training (of "
        "a stream, the first --max_eval_samples)."
    )
    max_train_samples: int = argument("Train on the first so many examples only; 0 takes all.", 0, at_least=0)
    max_eval_samples: int = argument("Evaluate on the first so many examples only; 0 takes all.", 0, at_least=0)


def load_from_hub(arguments: SourceArguments, embedded: str, place: str, **kwargs: Any) -> Any:
    """The splits of a data set of the Hub.

    Args:
        embedded: the data set that needs no download.
        place: "folder" or "file", which the user may have meant.
        kwargs: for `datasets.load_dataset`.

    Raises:
        ValueError: if the Hub does not give it.
    """
    try:
        return datasets.load_dataset(arguments.dataset, arguments.dataset_config, **kwargs)
    except Exception as error:  # the loader of a data set may raise anything
        raise ValueError(
            f"dataset: {arguments.dataset!r} is neither {embedded!r}, a {place} here, nor a data set that the Hub "
            f"gave ({single_line(error)})"
        ) from error


def choose_splits(splits: Mapping[str, Any], arguments: SourceArguments) -> tuple[Any, Any, str | None]:
    """The splits to train and to evaluate on, and the name of the latter; None where it has to be held out.

    Raises:
        ValueError: if the data set lacks a split that was asked for.
    """
    for flag in ("train_split", "eval_split"):
        name = getattr(arguments, flag)
        if name is not None and name not in splits:
            raise ValueError(f"{flag}: {arguments.dataset} has no split {name!r}; it has {', '.join(splits)}")
    others = [name for name in EVAL_SPLITS if name in splits and name != arguments.train_split]
    eval_split = arguments.eval_split or next(iter(others), None)
    return splits[arguments.train_split], splits.get(eval_split), eval_split


def limit(train: Any, evaluation: Any, arguments: SourceArguments) -> tuple[Any, Any]:
    """The first examples of both, as many as were asked for."""
    return _first(train, arguments.max_train_samples), _first(evaluation, arguments.max_eval_samples)


def _first(examples: Any, number: int) -> Any:
    if number <= 0:
        return examples
    return examples.take(number if isinstance(examples, datasets.IterableDataset) else min(number, len(examples)))

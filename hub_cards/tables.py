# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What was measured, as tables: of one run, and of several seeds as mean and standard deviation."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from sparsight.hub_cards.results import METRICS, Metric, layer_shares


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number, which a truth value is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


Runs = Sequence[Mapping[str, Mapping[str, Any]]]


def metrics_table(runs: Runs, metrics: Sequence[Metric] = METRICS) -> list[list[str]]:
    """A header, and a row a metric that any model has; empty where there is none.

    Args:
        runs: what was measured, by the name of the model; of several seeds, mean ± sample standard deviation.
        metrics: to look for.
    """
    rows = []
    for metric in metrics:
        values = {model: [run[model].get(metric.key) for run in runs] for model in runs[0]}
        if any(is_number(value) for of_model in values.values() for value in of_model):
            rows.append([metric.name, *(_cell(of_model, metric.format) for of_model in values.values())])
    return [["", *runs[0]], *rows] if rows else []


def layers_table(runs: Runs) -> list[list[str]]:
    """As [`metrics_table`], with the share of non-zero activations of each layer."""
    shares = {model: [layer_shares(run[model]) for run in runs] for model in runs[0]} if runs else {}
    labels = dict.fromkeys(label for of_model in shares.values() for layers in of_model for label in layers)
    rows = [
        [label, *(_cell([layers.get(label) for layers in of_model], "{:.2%}") for of_model in shares.values())]
        for label in labels
    ]
    return [["layer", *runs[0]], *rows] if rows else []


def models_table(runs: Runs) -> list[list[str]]:
    """Models side by side: the metrics that tables show, and below them the layers."""
    return [*metrics_table(runs, [metric for metric in METRICS if metric.in_tables]), *layers_table(runs)[1:]]


def _cell(values: Sequence[Any], form: str) -> str:
    numbers = [value for value in values if is_number(value)]
    if not numbers:
        return ""
    mean = form.format(statistics.fmean(numbers))
    if len(numbers) == 1:
        return mean
    return f"{mean} ± {form.format(statistics.stdev(numbers))}"


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up, the first to the left and the others to the right."""
    widths = [max(3, *(len(row[column]) for row in rows)) for column in range(len(rows[0]))]
    lines = [[cell.ljust(w) if not i else cell.rjust(w) for i, (cell, w) in enumerate(zip(r, widths, strict=True))]
             for r in rows]  # fmt: skip
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], rule, *lines[1:]))


def summary_line(results: Mapping[str, Any]) -> str:
    """The results of one model in a line, as a script prints it."""
    shown = [
        f"{metric.name} {metric.format.format(results[metric.key])}"
        for metric in METRICS
        if metric.in_tables and is_number(results.get(metric.key))
    ]
    return f"{', '.join(shown)} on {results['num_examples']} examples of {results['eval_split']}"

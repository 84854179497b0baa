# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""How every benchmark measures: two sides agree first, then run in turns, and the ratio of neighbouring runs counts.

    options = make_parser(__doc__).parse_args()
    benchmark = Benchmark(options)
    benchmark.compare("softmax", Side("ours", ours), Side("plain", plain), agree)

What else goes on at the machine slows both of two neighbouring runs, and so leaves their ratio as it is. The median of
the ratios is therefore what a benchmark reports, with the quartiles as their spread.
"""

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class _Parser(argparse.ArgumentParser):
    def parse_known_args(self, *args: Any, **kwargs: Any) -> tuple[argparse.Namespace, list[str]]:
        options, rest = super().parse_known_args(*args, **kwargs)
        if options.clock == "cpu" and options.device.type != "cpu":
            self.error(f"argument --clock: the time of the CPU says nothing about {options.device}; give wall")
        return options, rest


def make_parser(description: str, device: bool = True, **defaults: Any) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have.

    Args:
        description: of the benchmark, at the head of `--help`.
        device: whether the benchmark runs elsewhere than on the CPU.
        defaults: of the options, where this benchmark has others.
    """
    parser = _Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("--threads", type=at_least(1), default=1, help="Threads of torch on the CPU (default: %(default)s).")
    add("--repeats", type=at_least(1), default=7, help="Timed runs of each side (default: %(default)s).")
    add("--warm_up", type=at_least(0), default=1, help="Untimed runs of each side before (default: %(default)s).")
    add(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="Seconds that pass, or seconds of CPU time of this process, in which others on the machine do not count "
        "(default: %(default)s).",
    )
    add("--json", type=Path, metavar="FILE", help="Write every figure to this file.")
    if device:
        add("--device", type=_device, default="cpu", help="Where both sides run (default: %(default)s).")
    else:
        parser.set_defaults(device=torch.device("cpu"))
    parser.set_defaults(**defaults)
    return parser


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number, and not less than `least`."""

    def integer(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is too few; give at least {least}")
        return int(text)

    return integer


def _device(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # the latter where torch is built without it
        raise argparse.ArgumentTypeError(f"there is no device {name!r} here") from error


@dataclass(frozen=True)
class Side:
    """One of the two that are compared.

    Attributes:
        name: as the output has it.
        call: does once what is measured.
        calls: how often a run does it; more than once where a single call is too short, or not like the next.
    """

    name: str
    call: Callable[[], object]
    calls: int = 1


@dataclass(frozen=True)
class Comparison:
    """What two sides have shown. Times are in seconds a call.

    Attributes:
        name: of what was measured.
        first, second: the sides.
        first_seconds, second_seconds: a run each; they took turns, the first side first.
    """

    name: str
    first: Side
    second: Side
    first_seconds: list[float]
    second_seconds: list[float]

    @property
    def medians(self) -> tuple[float, float]:
        """The median time of each side."""
        return statistics.median(self.first_seconds), statistics.median(self.second_seconds)

    @property
    def ratios(self) -> list[float]:
        """How many times as long as the first side the second took, of any two runs that follow each other."""
        # A run has a neighbour before and one behind: what grows slower from run to run, both sides feel alike.
        neighbours = range(len(self.first_seconds) + len(self.second_seconds) - 1)
        return [self.second_seconds[i // 2] / self.first_seconds[(i + 1) // 2] for i in neighbours]

    @property
    def ratio(self) -> float:
        """The median of [`ratios`]."""
        return statistics.median(self.ratios)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile of [`ratios`]."""
        ratios = self.ratios
        if len(ratios) == 1:
            return ratios[0], ratios[0]
        lower, _, upper = statistics.quantiles(ratios, n=4, method="inclusive")
        return lower, upper

    def __str__(self) -> str:
        first, second = (
            f"{side.name} {1e3 * median:10.3f} ms"
            for side, median in zip((self.first, self.second), self.medians, strict=True)
        )
        lower, upper = self.quartiles
        ratio = f"{self.second.name} / {self.first.name} {self.ratio:.3f} (quartiles {lower:.3f} to {upper:.3f})"
        return f"{self.name:40}  {first}  {second}  {ratio}"

    def to_dict(self) -> dict[str, Any]:
        """All figures, as `--json` keeps them."""
        timed = ((self.first, self.first_seconds), (self.second, self.second_seconds))
        return {
            "name": self.name,
            "sides": [
                {"name": side.name, "calls": side.calls, "seconds": seconds, "median_seconds": median}
                for (side, seconds), median in zip(timed, self.medians, strict=True)
            ],
            "ratios": self.ratios,
            "median_ratio": self.ratio,
            "ratio_quartiles": list(self.quartiles),
        }


class Benchmark:
    """One run of a benchmark: sets torch's threads, prints a header, then a line for each comparison.

    Args:
        options: of a parser of [`make_parser`].
    """

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.device: torch.device = options.device
        self.comparisons: list[Comparison] = []
        torch.set_num_threads(options.threads)
        self.header = {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "device": self._device_name(),
            "clock": options.clock,
            "command": shlex.join(["python", *sys.argv]),
        }
        print(", ".join(f"{name} {value}" for name, value in self.header.items()), flush=True)
        self._write_json()  # a file that cannot be written shows now, not after the work

    def compare(self, name: str, first: Side, second: Side, agree: Callable[[], None]) -> Comparison:
        """Time two sides in turns, and print what came of it.

        Args:
            name: of what is measured.
            agree: raises an AssertionError unless both sides do the same, or what they have in common is the same. It
                runs before anything is timed.

        Raises:
            AssertionError: if the sides disagree.
        """
        try:
            agree()
        except AssertionError as error:
            names = f"{first.name} and {second.name}"
            raise AssertionError(f"{name}: {names} disagree, so nothing is timed: {error}") from error
        for _ in range(self.options.warm_up):
            self._seconds(first)
            self._seconds(second)
        turns = [(self._seconds(first), self._seconds(second)) for _ in range(self.options.repeats)]
        first_seconds, second_seconds = map(list, zip(*turns, strict=True))
        comparison = Comparison(name, first, second, first_seconds, second_seconds)
        print(comparison, flush=True)
        self.comparisons.append(comparison)
        self._write_json()
        return comparison

    def _seconds(self, side: Side) -> float:
        """The time of one call, in a run of all its calls."""
        clock = CLOCKS[self.options.clock]
        self._synchronize()
        start = clock()
        for _ in range(side.calls):
            side.call()
        self._synchronize()
        return (clock() - start) / side.calls

    def _synchronize(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def _device_name(self) -> str:
        if self.device.type == "cuda":
            return f"{self.device} ({torch.cuda.get_device_name(self.device)})"
        return str(self.device)

    def _write_json(self) -> None:
        if self.options.json is not None:
            figures = {**self.header, "comparisons": [comparison.to_dict() for comparison in self.comparisons]}
            self.options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")

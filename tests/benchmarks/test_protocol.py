# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The protocol of the benchmarks, on a clock that moves only as a test says, and the benchmarks in their smallest."""

import importlib
import json
import statistics

import pytest

from helpers import ROOT, run_python


@pytest.fixture
def protocol(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("protocol")


class FakeClock:
    """Stands still but for the calls of the sides, which take the seconds that they are given, in turn."""

    def __init__(self):
        self.now = 0.0
        self.readings = 0
        self.calls = []

    def __call__(self) -> float:
        self.readings += 1
        return self.now

    def call(self, name, *seconds):
        remaining = iter(seconds)

        def call():
            self.calls.append(name)
            self.now += next(remaining)

        return call


@pytest.fixture
def clock(protocol, monkeypatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setitem(protocol.CLOCKS, "wall", clock)
    return clock


def agree():
    pass


def make_benchmark(protocol, *args, **defaults):
    return protocol.Benchmark(protocol.make_parser("", **defaults).parse_args(args))


def test_sides_take_turns_after_the_warm_up(protocol, clock):
    benchmark = make_benchmark(protocol, "--warm_up", "1", "--repeats", "2")
    first = protocol.Side("a", clock.call("a", 100, 1, 2))
    second = protocol.Side("b", clock.call("b", 100, 3, 4))
    comparison = benchmark.compare("work", first, second, lambda: clock.calls.append("agree"))
    assert clock.calls == ["agree", "a", "b", "a", "b", "a", "b"]
    assert (comparison.first_seconds, comparison.second_seconds) == ([1, 2], [3, 4])


def test_disagreement_stops_before_anything_is_timed(protocol, clock, tmp_path):
    figures = tmp_path / "figures.json"
    benchmark = make_benchmark(protocol, "--json", str(figures))
    sides = protocol.Side("a", clock.call("a")), protocol.Side("b", clock.call("b"))

    def disagree():
        raise AssertionError("1 is not 2")

    with pytest.raises(AssertionError, match=r"work: a and b disagree.*1 is not 2"):
        benchmark.compare("work", *sides, disagree)
    assert (clock.calls, clock.readings) == ([], 0)
    assert json.loads(figures.read_text())["comparisons"] == []


def test_the_median_of_the_ratios_is_reported_and_not_the_ratio_of_the_medians(protocol, clock, capsys):
    benchmark = make_benchmark(protocol, "--warm_up", "0", "--repeats", "3")
    first, second = [1, 4, 16], [2, 20, 16]
    comparison = benchmark.compare(
        "work", protocol.Side("a", clock.call("a", *first)), protocol.Side("b", clock.call("b", *second)), agree
    )
    ratios = [2 / 1, 2 / 4, 20 / 4, 20 / 16, 16 / 16]  # in time's order: b, then a, then b again, by its neighbour
    assert comparison.ratios == ratios
    assert comparison.ratio == statistics.median(ratios) == 1.25
    assert statistics.median(second) / statistics.median(first) == 4
    assert comparison.quartiles == (1, 2)
    header, line = capsys.readouterr().out.splitlines()
    assert "b / a 1.250 (quartiles 1.000 to 2.000)" in line
    assert "a   4000.000 ms" in line
    assert "b  16000.000 ms" in line
    assert all(name in header for name in ("torch ", "threads 1", "device cpu", "clock wall", "command python "))


def test_a_machine_that_slows_down_steadily_leaves_the_ratio_in_the_middle(protocol, clock):
    """Of sides that do the same work, whichever comes second."""
    benchmark = make_benchmark(protocol, "--warm_up", "0", "--repeats", "4")
    growing = [2**run for run in range(8)]
    first = protocol.Side("a", clock.call("a", *growing[::2]))
    second = protocol.Side("b", clock.call("b", *growing[1::2]))
    assert set(benchmark.compare("work", first, second, agree).ratios) == {2, 0.5}


def test_times_are_those_of_one_call(protocol, clock):
    benchmark = make_benchmark(protocol, warm_up=0, repeats=1)
    several, single = protocol.Side("a", clock.call("a", 1, 2, 6), calls=3), protocol.Side("b", clock.call("b", 6))
    comparison = benchmark.compare("work", several, single, agree)
    assert clock.calls == ["a", "a", "a", "b"]
    assert (comparison.first_seconds, comparison.second_seconds) == ([3], [6])
    assert comparison.quartiles == (2, 2)


def test_a_device_is_synchronised_around_a_run_and_not_within(protocol, clock, monkeypatch):
    benchmark = make_benchmark(protocol, "--device", "meta", warm_up=0, repeats=1)
    monkeypatch.setattr("torch.accelerator.synchronize", lambda device: clock.calls.append(str(device)))
    sides = protocol.Side("a", clock.call("a", 1, 1), calls=2), protocol.Side("b", clock.call("b", 1))
    benchmark.compare("work", *sides, agree)
    assert clock.calls == ["meta", "a", "a", "meta", "meta", "b", "meta"]


def test_json_keeps_the_header_and_every_run(protocol, clock, tmp_path):
    figures = tmp_path / "figures.json"
    benchmark = make_benchmark(protocol, "--json", str(figures), warm_up=0, repeats=2)
    for name in ("one", "two"):
        sides = protocol.Side("a", clock.call("a", 1, 1)), protocol.Side("b", clock.call("b", 2, 2))
        benchmark.compare(name, *sides, agree)
    kept = json.loads(figures.read_text())
    assert {"torch", "threads", "device", "clock", "command"} < kept.keys()
    assert [comparison["name"] for comparison in kept["comparisons"]] == ["one", "two"]
    assert kept["comparisons"][1] == {
        "name": "two",
        "sides": [
            {"name": "a", "calls": 1, "seconds": [1, 1], "median_seconds": 1},
            {"name": "b", "calls": 1, "seconds": [2, 2], "median_seconds": 2},
        ],
        "ratios": [2, 2, 2],
        "median_ratio": 2,
        "ratio_quartiles": [2, 2],
    }


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--repeats", "0"], "--repeats: 0 is too few; give at least 1"),
        (["--device", "nowhere"], "--device: there is no device 'nowhere' here"),
        (["--device", "meta", "--clock", "cpu"], "--clock: the time of the CPU says nothing about meta"),
    ],
)
def test_options_that_measure_nothing_are_refused(protocol, capsys, args, message):
    with pytest.raises(SystemExit) as error:
        protocol.make_parser("").parse_args(args)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "args", "comparisons"),
    [
        (
            "bench_crate.py",
            ["--preset", "tiny", "--batch_size", "1"],
            ["crate-tiny training step", "crate-tiny forward", "crate-tiny fused forward", "coding rate, 197 x 64"],
        ),
        ("bench_sparsity_meter.py", ["--size", "digits", "--batch_size", "2"], ["Sparse ViT digits, batch 2"]),
    ],
)
def test_benchmarks_run_in_their_smallest(tmp_path, script, args, comparisons):
    figures = tmp_path / "figures.json"
    common = ["--repeats", "1", "--warm_up", "0", "--threads", "1", "--json", figures]
    done = run_python(f"benchmarks/{script}", *args, *common)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [comparison["name"] for comparison in json.loads(figures.read_text())["comparisons"]] == comparisons
    assert len(done.stdout.splitlines()) == 1 + len(comparisons)
    assert f"python benchmarks/{script} {' '.join(args)}" in done.stdout

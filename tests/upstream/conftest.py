# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""`pytest -m upstream tests/upstream`: transformers' own model tests on our families.

Without the mark nothing here is collected, and without the folder on the command line no count is shown at the end.
"""

from collections import Counter, defaultdict
from pathlib import Path

from _pytest.reports import TestReport

import upstream_suite


FOLDER = Path(__file__).parent


def _wanted(config) -> bool:
    return config.option.markexpr == "upstream"


def pytest_ignore_collect(collection_path, config):
    # Importing these files fetches transformers' source distribution.
    return None if _wanted(config) or collection_path == FOLDER else True


def pytest_configure(config):
    if _wanted(config):
        try:
            names = upstream_suite.marks()
        except upstream_suite.NoSourceDistribution:
            return  # the test files say so
        for name in sorted(names):
            config.addinivalue_line("markers", f"{name}: of transformers")


def pytest_terminal_summary(terminalreporter, config):
    """The count a class: ours beside transformers' own on the same mixins."""
    if not _wanted(config):
        return
    counts: dict[str, Counter] = defaultdict(Counter)
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            # Sub-tests have reports of another type; a test that is skipped may have only that of its set-up.
            if type(report) is TestReport and (report.when == "call" or report.skipped):
                counts[report.nodeid.split("::")[1]][outcome] += 1
    terminalreporter.section("upstream")
    terminalreporter.write_line(f"{'class':28} {'run':>5} {'passed':>7} {'failed':>7} {'skipped':>8}")
    for name, count in sorted(counts.items()):
        run = count["passed"] + count["failed"]
        terminalreporter.write_line(f"{name:28} {run:5} {count['passed']:7} {count['failed']:7} {count['skipped']:8}")

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""How training/ is laid out: its floors, what its folders know of each other, its sizes, and nothing written twice.

`pytest -n 0 -s tests/training/test_floors.py` prints the floors.
"""

import ast
import collections
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import ROOT
from sparsight.training.tasks import TASKS


TRAINING = ROOT / "training"
# From the ground up; folders of a floor do not know each other.
FLOORS = (("command_line",), ("engine",), ("data", "methods"), ("tasks", "jobs"), ("scripts",))
MOST_LINES_TWICE = 10


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def folder_of(path: Path) -> str:
    parts = path.relative_to(TRAINING).parts
    return parts[0] if len(parts) > 1 else "scripts"


def find_imports(path: Path) -> set[str]:
    """The full names of what a file imports, wherever in it."""
    names = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """The code of training/, but for the former place of what has moved, which imports and warns."""
    return [path for path in sorted(TRAINING.rglob("*.py")) if path != TRAINING / "sparsity.py"]


@pytest.fixture(scope="module")
def arrows(files) -> dict[str, set[str]]:
    """The folders that each folder imports from."""
    folders = {folder_of(path) for path in files} - {"recipes"}
    arrows = {folder: set() for folder in folders}
    for path in files:
        for name in find_imports(path):
            if name.startswith("sparsight.training."):
                other = name.split(".")[2]
                arrows[folder_of(path)].add(other if other in folders else "scripts")
    return {folder: others - {folder} for folder, others in arrows.items()}


def height(folder: str, arrows: dict[str, set[str]], above: tuple[str, ...] = ()) -> int:
    """The floor that a folder is on, by what it imports alone: one above the highest of those."""
    assert folder not in above, f"a circle: {' -> '.join((*above, folder))}"
    return max((height(other, arrows, (*above, folder)) + 1 for other in arrows[folder]), default=0)


def test_the_floors(arrows):
    """Five at most, no arrow upwards, no circle."""
    heights = {folder: height(folder, arrows) for folder in arrows}
    picture = "\n".join(
        f"{heights[folder]}  {folder:12} -> {', '.join(sorted(arrows[folder])) or 'nothing'}"
        for folder in sorted(arrows, key=lambda folder: (-heights[folder], folder))
    )
    print(f"\n{picture}")
    assert {folder for floor in FLOORS for folder in floor} == arrows.keys(), picture
    assert max(heights.values()) < 5, picture
    level = {folder: number for number, floor in enumerate(FLOORS) for folder in floor}
    upwards = [(folder, other) for folder in arrows for other in arrows[folder] if level[other] >= level[folder]]
    assert not upwards, picture


def test_data_and_engine_know_no_task(files):
    classes = {task.__name__ for task in TASKS.values()}
    for path in files:
        if folder_of(path) in ("data", "engine", "methods", "command_line"):
            names = {node.id for node in ast.walk(parse(path)) if isinstance(node, ast.Name)}
            assert not [name for name in find_imports(path) if "training.tasks" in name], path
            assert not names & classes, path


def test_beneath_the_scripts_only_the_command_line_knows_usage_errors(files):
    """All else raises exceptions that any caller understands."""
    for path in files:
        if folder_of(path) in ("engine", "data", "methods", "tasks", "jobs"):
            assert "UsageError" not in path.read_text(encoding="utf-8"), path
            assert "sys.exit" not in path.read_text(encoding="utf-8"), path


def test_sizes(files):
    """Scripts that one reads at a glance, and functions of the engine that take few things."""
    for path in files:
        if folder_of(path) == "scripts":
            assert len(path.read_text(encoding="utf-8").splitlines()) <= 130, path
    for name in ("loop.py", "run.py"):
        for node in ast.walk(parse(TRAINING / "engine" / name)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                given = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                given += [arg.arg for arg in (node.args.vararg, node.args.kwarg) if arg is not None]
                number = len([arg for arg in given if arg not in ("self", "cls")])
                assert number <= 8, f"{name}:{node.lineno} has {number} parameters"


def test_a_task_is_entered_in_one_list():
    """Adding modular addition touched nothing but its own file, its recipe, and the list of tasks."""
    own, where = TRAINING / "tasks" / "modular_addition.py", []
    packages = ["sparsight", "configuration", "modeling", "analysis", "hub_cards", "metrics", "training"]
    for path in (path for package in packages for path in (ROOT / package).rglob("*.py")):
        if path == own:
            continue
        tree = parse(path)
        docstrings = {
            ast.get_docstring(node, clean=False)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        }
        for node in ast.walk(tree):
            said = [value for _, value in ast.iter_fields(node) if isinstance(value, str)]
            for text in said:
                if text not in docstrings and re.search("modular_?addition", text, re.IGNORECASE):
                    where.append((path.relative_to(ROOT).as_posix(), type(node).__name__))
    assert {path for path, _ in where} == {"training/tasks/__init__.py"}
    # Its import, and an entry of the list: the name, and the class.
    assert {kind for _, kind in where} == {"ImportFrom", "alias", "Constant", "Name"}
    (tasks,) = (node for node in ast.walk(parse(TRAINING / "tasks" / "__init__.py")) if isinstance(node, ast.Dict))
    assert [key.value for key in tasks.keys] == list(TASKS)


# --- nothing is written twice ----------------------------------------------------------------------------------------


def code_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that count, with their numbers: no imports, comments, blank lines, or lone punctuation."""
    text = path.read_text(encoding="utf-8")
    imports = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports |= set(range(node.lineno, node.end_lineno + 1))
    for number, line in enumerate(text.splitlines(), start=1):
        line = " ".join(line.split())
        if number not in imports and not line.startswith("#") and re.search(r"\w", line):
            yield number, line


def find_repetitions(paths: list[Path], most: int) -> list[str]:
    """The runs of more than `most` lines that stand in two places, each once."""
    seen, found = {}, []
    for path in paths:
        lines, previous = list(code_lines(path)), None
        for start in range(len(lines) - most):
            window = tuple(line for _, line in lines[start : start + most + 1])
            place = (path, start)
            first = seen.setdefault(window, place)
            if first != place and previous != (first[0], first[1] - 1):
                found.append(f"{path}:{lines[start][0]} stands in {first[0]} already: {window[0]}")
            previous = first if first != place else None
    return found


def test_no_two_places_share_more_than_ten_lines(files):
    tests = sorted((ROOT / "tests" / "training").rglob("*.py"))
    helpers = sorted((ROOT / "tests").glob("*_testing.py"))
    assert not find_repetitions([*files, *tests, *helpers], MOST_LINES_TWICE)


def test_the_search_for_repetitions(tmp_path):
    run = [f"x{number} = f({number})" for number in range(12)]
    (tmp_path / "a.py").write_text("\n".join(["import os", "", *run]))
    (tmp_path / "b.py").write_text("\n".join(["def g():", *(f"    {line}\n    # a remark" for line in run)]))
    (tmp_path / "c.py").write_text("\n".join([*run[:6], "y = 1", *run[6:]]))
    imports = [f"import module_{number}" for number in range(12)]
    for name in "de":
        (tmp_path / f"{name}.py").write_text("\n".join(imports))
    paths = sorted(tmp_path.glob("*.py"))
    assert len(find_repetitions(paths, 10)) == 1
    assert find_repetitions(paths, 12) == []
    assert find_repetitions(paths, 5)[-1].startswith(f"{tmp_path}/c.py:8 stands in {tmp_path}/a.py already")
    repeated = collections.Counter(text.split(":")[0] for text in find_repetitions(paths, 5))
    assert repeated == {str(tmp_path / "b.py"): 1, str(tmp_path / "c.py"): 2}

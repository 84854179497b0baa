# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The installed command `sparsight`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import ViTImageProcessorPil

from crate_testing import make_model
from helpers import run_python, snapshot
from sparsight import CrateForImageClassification
from sparsight.__main__ import COMMANDS, main
from sparsight.configuration.console import ConsoleParser
from sparsight.modeling.crate_checkpoints import to_official


SPARSIGHT = Path(sys.executable).with_name("sparsight")


def run_console(*args: object, cwd: Path) -> subprocess.CompletedProcess:
    """Run the command as a shell would."""
    return subprocess.run(
        [SPARSIGHT, *map(str, args)], cwd=cwd, env=os.environ, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """An official CRATE checkpoint of 8×8 images with 3 heads."""
    model = make_model(image_size=8, patch_size=4)
    torch.save(to_official(model), tmp_path / "official.pth")
    return tmp_path / "official.pth"


def test_help_explains_each_command_with_an_example(tmp_path):
    done = run_console("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for name, command in COMMANDS.items():
        lines = rf"^  {name} +{re.escape(command.summary)}\n +\$ sparsight {name} {re.escape(command.example)}$"
        assert re.search(lines, done.stdout, flags=re.MULTILINE), name
    done = run_python("-m", "sparsight", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "$ python -m sparsight card " in done.stdout


def test_commands_from_checkpoint_to_card(tmp_path, checkpoint):
    """Convert, measure, describe: what each of them writes is there, and nothing else."""
    convert = ("--checkpoint", checkpoint, "--num_attention_heads", 3, "--output", "model")
    done = run_console("convert-crate", *convert, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("model: ")
    model = CrateForImageClassification.from_pretrained(tmp_path / "model")
    assert all(torch.equal(value, torch.load(checkpoint)[name]) for name, value in to_official(model).items())

    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(tmp_path / "model")
    images = ("--dataset", "digits", "--num_images", 8)
    for command in ("rate-reduction", "sparsity"):
        done = run_console("analyze", command, "model", *images, "--output", f"{command}.png", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert re.search(r"^model +2 .*%", done.stdout, flags=re.MULTILINE)
        with Image.open(tmp_path / f"{command}.png") as figure:
            figure.verify()

    done = run_console("card", "model", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "model/README.md\n", "")
    assert "CRATE is a white-box transformer" in (tmp_path / "model" / "README.md").read_text()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"official.pth", "model", "rate-reduction.png", "sparsity.png", "sparsity.json"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_under_the_name_that_was_typed(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    captured = capsys.readouterr()
    assert captured.out.startswith(f"usage: sparsight {command} ")
    assert captured.err == ""


MISTAKES = {
    "no command": ([], "sparsight: error: the following arguments are required: COMMAND (see sparsight --help)"),
    "unknown command": (
        ["convert-crat", "--output", "x"],
        "sparsight: error: unknown command 'convert-crat'; did you mean convert-crate? (see sparsight --help)",
    ),
    "option first": (["--cards"], "sparsight: error: the following arguments are required: COMMAND (see"),
    "no argument": (["card"], "sparsight card: error: the following arguments are required: DIR (see sparsight card"),
    "no checkpoint": (["card", "none"], "sparsight card: error: none: has no config.json; give a folder"),
    "two folders": (["card", "none", "more"], "sparsight card: error: 'more': one argument too many (see"),
    "unknown option": (
        ["convert-crate", "--checkpoint", "a", "--output", "b", "--overwrit"],
        "sparsight convert-crate: error: --overwrit: unknown argument; did you mean --overwrite",
    ),
    "no file": (
        ["convert-crate", "--checkpoint", "a.pth", "--num_attention_heads", "3", "--output", "b"],
        "sparsight convert-crate: error: --checkpoint a.pth: no such file; give the path",
    ),
    "unknown measurement": (
        ["analyze", "sparsty"],
        "sparsight analyze: error: unknown command 'sparsty'; did you mean sparsity? (see sparsight analyze --help)",
    ),
    "no model": (
        ["analyze", "sparsity", "none/of/these"],
        "sparsight analyze sparsity: error: argument MODEL: there is no folder none/of/these; give one",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(case, tmp_path, monkeypatch, capsys):
    arguments, message = MISTAKES[case]
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments)
    except SystemExit as exit_:
        code = exit_.code
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert (code, captured.out) == (2, "")
    assert line.startswith(message)
    assert snapshot(tmp_path) == {}


def test_a_mistake_from_the_shell(tmp_path):
    arguments, message = MISTAKES["unknown command"]
    done = run_console(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_messages_of_several_lines_become_one_and_keep_their_end(capsys):
    parser = ConsoleParser(prog="some command")
    message = "\n".join(["--output:", "a long reason " * 50, "give another"])
    assert parser.report(ValueError(message)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("some command: error: --output: a long reason")
    assert line.endswith("a long reason give another")

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What is particular to train.py: it trains on any task."""

import json

import pytest

from script_testing import SCRIPTS, Runs, error_line, reset_accelerator
from sparsight.training import train
from sparsight.training.tasks import TASKS


OWN_SCRIPT = {"image": "images", "t5": "t5"}


@pytest.mark.parametrize("task", OWN_SCRIPT)
def test_it_does_what_the_script_of_a_task_does(task, tmp_path):
    runs = Runs(SCRIPTS[OWN_SCRIPT[task]], tmp_path)
    expected = runs("own", "--max_steps", "3")
    train.main([*runs.args("any", "--max_steps", "3"), "--task", task])
    runs.assert_same_weights("any", "own")
    assert runs.results("any") == expected
    own, of_any = (json.loads((tmp_path / name / "arguments.json").read_text()) for name in ("own", "any"))
    of_script = {"output_dir", "command"}
    assert {**of_any, **{name: own[name] for name in of_script}} == {**own, "task": task}


@pytest.mark.parametrize("runs", ["addition"], indirect=True)
def test_goes_on_from_a_checkpoint(runs, capsys):
    first = runs("first", *runs.script.steps)
    options = ("--model_name_or_path", runs.folder / "first" / "model", "--learning_rate", "1e-9", "--max_steps", "1")
    runs.recipe.write_text("task: modular_addition\nmodulus: 11\nbatch_size: 40\n")
    assert runs("second", *options)["loss"] == pytest.approx(first["loss"], rel=1e-5)
    runs.refuse("third", *options, "--modulus", "13")
    assert f"--modulus: 13 needs 14 tokens, and {runs.folder}/first/model has 12" in error_line(capsys)
    assert not (runs.folder / "third").exists()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_task_alone_is_enough(family, tmp_path, monkeypatch):
    """Its recipe is taken for the family that it is of, and the output goes where the recipe says."""
    monkeypatch.chdir(tmp_path)
    args = ["--task", "modular_addition", "--max_steps", "1", "--modulus", "7", "--batch_size", "8"]
    args += [] if family == "gpt2" else ["--model_type", "llama", "--model.hidden_size", "16"]
    args += [] if family == "gpt2" else ["--model.num_attention_heads", "2", "--model.num_hidden_layers", "1"]
    train.main(args)
    folder = "modular_addition" if family == "gpt2" else "llama"
    written = json.loads((tmp_path / "outputs" / folder / "arguments.json").read_text())
    assert written["recipe"] == ("modular_addition" if family == "gpt2" else None)
    assert (tmp_path / "outputs" / folder / "model" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], f"--task: missing; give one of {', '.join(TASKS)}, or a --recipe that names it"),
        (["--task", "imagee"], "--task: unknown 'imagee'; did you mean image?"),
        (["--recipe", "sparse_vit_digits"], "--task: missing"),
        (["--recipe", "modular_additon"], "--recipe: no recipe 'modular_additon'; did you mean modular_addition"),
        (["--task", "t5", "--modulus", "7"], "--modulus: unknown argument"),
    ],
)
def test_bad_task(args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_info:
        train.main(args)
    assert exit_info.value.code == 2
    assert message in error_line(capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("task", TASKS)
def test_help_is_that_of_the_task(task, capsys):
    with pytest.raises(SystemExit) as exit_info:
        train.main(["--help", "--task", task])
    assert exit_info.value.code == 0
    shown = capsys.readouterr().out
    own = {"image": "--crop_scale", "t5": "--noise_density", "modular_addition": "--modulus"}
    assert [name for name, flag in own.items() if flag in shown] == [task]
    reset_accelerator()

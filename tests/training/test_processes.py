# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What only processes of their own can show: exit codes, resuming after a kill, and two that train together.

The scripts start from a process that has imported what they need, which takes most of the time of a short run.
"""

import json
import multiprocessing
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import script_testing
from finetune_testing import JOBS, Finetunings
from helpers import ROOT, run_python, snapshot
from script_testing import SCRIPTS, STREAM, Runs, start_script


@pytest.fixture(scope="module")
def start():
    """Starts a script as `python SCRIPT ...` would; its stdout and stderr go to `log`.out and `log`.err."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sparsight.training.train", "sparsight.training.finetune_sparsity"])
    started = []

    def start(path: Path, args: list[str], log: Path) -> ForkServerProcess:
        started.append(context.Process(target=start_script, args=(str(path), args, str(log))))
        started[-1].start()
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.mark.parametrize("script", [*(script.module for script in SCRIPTS.values()), "finetune_sparsity"])
def test_the_command_itself_exits_with_2_and_one_line(start, script, tmp_path):
    task = ["--task", "modular_addition"] if script == "train" else []
    args = [*task, "--batch_size", "0", "--output_dir", str(tmp_path / "run")]
    process = start(ROOT / "training" / f"{script}.py", args, tmp_path / "log")
    process.join(120)
    assert process.exitcode == 2
    stderr = (tmp_path / "log.err").read_text()
    # Optional packages may speak up when they are imported; of ours there is one line.
    ours = [line for line in stderr.splitlines() if line.startswith(f"{script}.py")]
    assert ours == [f"{script}.py: error: --batch_size: 0 is out of range; give at least 1"]
    assert "Traceback" not in stderr
    assert not (tmp_path / "run").exists()


# --- killed and resumed ----------------------------------------------------------------------------------------------


# With dropout, examples drawn anew each epoch, a schedule and, where there is one, a method.
LONG = {
    "images": ("--num_epochs", "6", "--mixup", "0.2", "--model.hidden_dropout_prob", "0.1", "--eval_epochs", "1.75",
               "--restrict_layer_norms"),
    "t5": ("--max_steps", "24", "--eval_epochs", "0.3", "--restrict_layer_norms", "--model.dropout_rate", "0.1",
           "--gradient_accumulation_steps", "2"),
    "addition": ("--max_steps", "80", "--eval_epochs", "3.5", "--gradient_accumulation_steps", "2"),
}  # fmt: skip
RESUMED = [("images", ()), ("t5", ()), ("t5", STREAM), ("addition", ())]
IDS = ["images", "t5-blocks", "t5-stream", "addition"]


@pytest.mark.parametrize(("name", "options"), RESUMED, ids=IDS)
def test_killed_and_resumed_is_as_if_never_stopped(start, name, options, tmp_path):
    """Bit for bit, and stopped within an epoch."""
    runs = Runs(SCRIPTS[name], tmp_path)
    options = (*LONG[name], "--logging_steps", "3", "--keep_checkpoints", "2", *options)
    whole = runs("whole", *options)
    killed = tmp_path / "killed"
    process = start(runs.script.path, runs.args("killed", *options), tmp_path / "log")
    deadline = time.monotonic() + 120
    while not list(killed.glob("checkpoint-*[0-9]")):
        assert process.is_alive(), (tmp_path / "log.err").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (killed / "results.json").exists()
    for checkpoint in (checkpoints := list(killed.glob("checkpoint-*[0-9]"))):  # each is complete
        assert load_file(checkpoint / "weights.safetensors")
        states = torch.load(checkpoint / "training_state.pt", weights_only=True)
        assert states["step"] == int(checkpoint.name.partition("-")[2])
        assert 0 < states["step"] < whole["num_steps"]
    assert checkpoints
    resumed = runs("killed", *options, "--resume_from_checkpoint", "latest")
    runs.assert_same_weights("killed", "whole")
    assert resumed == whole
    assert not [path for path in killed.rglob("*") if ".tmp" in path.name or ".old" in path.name]
    texts = [snapshot(tmp_path / run / "model").get("tokenizer.json") for run in ("killed", "whole")]
    assert texts[0] == texts[1]


# --- two processes ---------------------------------------------------------------------------------------------------


# Few steps, in which rounding does not grow yet; an evaluation whose batches do not divide.
FEW = {
    "images": ("--max_steps", "4", "--eval_batch_size", "30"),
    "t5": ("--max_steps", "4", "--eval_batch_size", "3"),
    "addition": ("--max_steps", "4", "--eval_batch_size", "7"),
}
# The task, and what trained its vanilla model.
FINETUNED = {"image": ("images", "images-one"), "t5": ("t5", "t5-blocks-one")}


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Path:
    """A folder with each run in this process, `<name>-one`, and in two that were launched once for all, `-two`."""
    folder = tmp_path_factory.mktemp("both")
    jobs = []

    def run(name: str, runs: Runs, *options: object) -> None:
        runs(f"{name}-one", *options)
        jobs.append((str(runs.script.path), runs.args(f"{name}-two", *options), str(folder / name)))

    for name, (script, options) in zip(IDS, RESUMED, strict=True):
        run(name, Runs(SCRIPTS[script], folder), *FEW[script], *SCRIPTS[script].no_dropout, *options)
    for task, (script, trained) in FINETUNED.items():
        checkpoint = folder / trained / "model"
        few = (*FEW[script], *SCRIPTS[script].no_dropout, "--learning_rate", "1e-3", "--no_baseline")
        run(f"finetune-{task}", Finetunings(JOBS[task], folder), *few, "--model_name_or_path", checkpoint)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = run_python(*launch, script_testing.__file__, folder / "jobs.json", timeout=500, ACCELERATE_USE_CPU="true")
    logs = "\n".join(path.read_text()[-2000:] for path in folder.glob("*.err"))
    assert done.returncode == 0, done.stderr[-2000:] + logs
    return folder


def assert_same_numbers(one: dict, two: dict) -> None:
    """Counts to the letter; measurements but for rounding."""
    assert two.keys() == one.keys()
    for key, value in one.items():
        if isinstance(value, float | list):
            assert two[key] == pytest.approx(value, abs=1e-3), key
        elif isinstance(value, dict):
            assert_same_numbers(value, two[key])
        else:
            assert two[key] == value, key


@pytest.mark.parametrize("name", [*IDS, *(f"finetune-{task}" for task in FINETUNED)])
def test_two_processes(both, name):
    """The same examples in each step, and the same counts in evaluation."""
    for rank in range(2):
        assert (both / f"{name}.{rank}.processes").read_text() == "2"
    model = "merged" if name.startswith("finetune") else "model"
    first, second = (load_file(both / f"{name}-{run}" / model / "model.safetensors") for run in ("one", "two"))
    torch.testing.assert_close(second, first, rtol=0, atol=1e-4)
    assert_same_numbers(*(json.loads((both / f"{name}-{run}" / "results.json").read_text()) for run in ("one", "two")))
    # One of them speaks, once.
    assert (both / f"{name}.0.out").read_text().count("loss") == 1
    assert (both / f"{name}.1.out").read_text() == ""

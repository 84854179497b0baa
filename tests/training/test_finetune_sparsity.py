# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The finetuning job end to end, alike for each task, on a vanilla model that trains in a second."""

import collections
import contextlib
import io
import json
import shutil

import pytest
import torch
from peft import PeftModel

from finetune_testing import COLUMNS, JOBS, Finetunings
from helpers import snapshot
from script_testing import CODE, error_line, read_scalars, reset_accelerator
from sparsight.hub_cards.results import layer_shares
from sparsight.training import finetune_sparsity
from sparsight.training.data import tokenization
from sparsight.training.engine import loop, publishing
from sparsight.training.engine.checkpoints import find_checkpoints
from sparsight.training.engine.observers import Observer
from sparsight.training.engine.task import Task
from sparsight.training.jobs import task_training
from sparsight.training.methods.activation_sparsity import find_blocks
from sparsight.training.tasks import classification, denoising


@pytest.fixture(scope="module", params=JOBS)
def finished(request, tmp_path_factory) -> Finetunings:
    """A whole job, the run `out`, and what it `printed`."""
    runs = Finetunings(JOBS[request.param], tmp_path_factory.mktemp("job"))
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        runs("out", *CODE)
    runs.printed = stdout.getvalue()
    return runs


@pytest.fixture
def anew(finished, tmp_path) -> Finetunings:
    """The same job, with other runs."""
    return Finetunings(finished.job, tmp_path)


@pytest.fixture
def given(finished) -> tuple:
    """Arguments for the method alone, on the vanilla model that there is."""
    return "--model_name_or_path", finished.vanilla_of("out"), "--no_baseline"


# --- what the job writes ---------------------------------------------------------------------------------------------


def test_what_the_job_writes(finished):
    folder = finished.folder / "out"
    assert sorted(path.name for path in folder.iterdir()) == [
        "adapter", "arguments.json", "lora", "merged", "method", "results.json", "sparsity.png", "vanilla",
    ]  # fmt: skip
    results = finished.results("out")
    assert results["recipe"] == results["method"]  # its former name
    assert results["eval_split"]
    script = finished.script
    model = script.load(folder / "merged")
    measured = script.measure(model, script.make_batch(model, folder / "merged"))
    for column in COLUMNS:
        assert measured.keys() | {"nonzero_share", "derivative_nonzero_share"} <= results[column].keys()
        assert tuple(layer_shares(results[column])) == finished.job.labels
        assert results[column]["num_examples"] == measured["num_examples"]
    assert 0 < results["method"]["training_nonzero_share"] < 1
    assert (folder / "sparsity.png").read_bytes().startswith(b"\x89PNG")
    for name in ("adapter", "merged"):
        assert {"README.md", "arguments.json", "results.json"} <= {path.name for path in (folder / name).iterdir()}
        assert json.loads((folder / name / "results.json").read_text()) == results
    assert list((folder / "merged").glob("modeling_sparse_*.py"))


@pytest.mark.parametrize(("column", "folder"), [("before", "vanilla/model"), ("method", "merged")])
def test_numbers_are_those_of_the_models_on_disk(finished, column, folder):
    model = finished.script.load(finished.folder / "out" / folder)
    expected = finished.script.measure(model, finished.script.make_batch(model, finished.folder / "out" / folder))
    results = finished.results("out")[column]
    assert {key: results[key] for key in expected} == pytest.approx(expected, rel=1e-5)


def test_the_merged_model_is_the_methods(finished):
    job = finished.job
    merged = finished.script.load(finished.folder / "out" / "merged")
    assert type(merged).__name__ == finished.script.model_class
    assert merged.config.activation_mix == 1.0
    assert {name: getattr(merged.config, name) for name in job.sparse_fields} == job.sparse_fields
    old = dict(finished.script.load(finished.vanilla_of("out")).named_parameters())
    changed = collections.Counter()
    for name, parameter in merged.named_parameters():
        norm_name = name.replace(job.zeroth_bias, job.norm)
        bias_name = name.replace(job.norm, job.zeroth_bias)
        if name != norm_name:
            scale = merged.get_parameter(norm_name)
            assert parameter.any()
            assert (scale.abs() >= 1).all()
            assert (parameter.abs() <= 0.1 * scale.abs()).all()
            assert not torch.equal(scale, old[norm_name])
            changed["zeroth bias"] += 1
        elif name.removesuffix(".weight").endswith(job.targets):
            assert not torch.equal(parameter, old[name]), name
            changed["matrix"] += 1
        elif bias_name == name or bias_name not in dict(merged.named_parameters()):
            # All else stays: embeddings, the head, biases, and the norms before attention.
            torch.testing.assert_close(parameter, old[name], rtol=0, atol=0)
    assert changed == {"zeroth bias": len(job.labels), "matrix": job.num_matrices}


def test_merged_is_unmerged(finished):
    """The adapter on the vanilla checkpoint gives the merged model's logits: it holds all that the method changed."""
    merged = finished.script.load(finished.folder / "out" / "merged")
    base = type(merged).from_pretrained(finished.vanilla_of("out"), **finished.job.sparse_fields)
    unmerged = PeftModel.from_pretrained(base, finished.folder / "out" / "adapter").eval()
    batch = finished.script.make_batch(merged, finished.folder / "out" / "merged")
    torch.testing.assert_close(unmerged(**batch).logits, merged(**batch).logits, atol=1e-5, rtol=1e-5)


def test_the_printed_table(finished):
    results = finished.results("out")
    lines = [line for line in finished.printed.splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["", *COLUMNS]
    measured = {"accuracy", "top-5 accuracy"} if "accuracy" in results["before"] else {"perplexity"}
    rows = {row[0]: row[1:] for row in cells[2:]}
    assert rows.keys() == {*measured, "loss", "non-zero activations", *finished.job.labels}
    assert rows["loss"] == [f"{results[column]['loss']:.4f}" for column in COLUMNS]
    for label in finished.job.labels:
        assert rows[label] == [f"{layer_shares(results[column])[label]:.2%}" for column in COLUMNS]
    assert f"written to {finished.folder / 'out'}" in finished.printed


def test_options(finished, anew, given):
    """Mixing, uplift at once, no baseline, a given checkpoint, and a field of the config."""
    smallest = {}

    class LookAtScales(Observer):
        def begin(self, training):
            smallest["first"] = min(block.mlp_norm.weight.abs().min().item() for block in find_blocks(training.model))

    options = ("--mixing_steps", "8", "--uplift_steps", "0", "--lora_dropout", "0.1", "--max_steps", "6")
    options += ("--model.jsrelu_linear_above", "4")
    results = anew("out", *given, *options, observers=[LookAtScales()])
    assert "lora" not in results
    assert not (anew.folder / "out" / "vanilla").exists()
    merged = anew.script.load(anew.folder / "out" / "merged")
    assert merged.activation_mix == 6 / 8  # stopped before the end of mixing, and saved as it is
    assert merged.config.jsrelu_linear_above == 4
    before = finished.script.load(finished.vanilla_of("out"))
    scales = [scale for name, scale in before.named_parameters() if name.endswith(f"{anew.job.norm}.weight")]
    assert min(scale.abs().min() for scale in scales) < 1
    assert smallest["first"] >= 1
    assert all((block.mlp_norm.weight.abs() >= 1).all() for block in find_blocks(merged))


def test_a_tracker_tells_the_trainings_apart_and_observers_see_the_method_alone(finished, anew, given):
    seen = []

    class Watch(Observer):
        def after_step(self, training):
            seen.append((training.output_dir.name, training.step))

        def results(self):
            return {"watched": len(seen)}

    few = ("--max_steps", "2", "--report_to", "tensorboard")
    results = anew("out", *given[:2], *few, observers=[Watch()])
    assert seen == [("method", 1), ("method", 2)]
    assert results["method"]["watched"] == 2
    assert "watched" not in results["lora"]
    scalars = read_scalars(anew.folder / "out")
    assert {tag.rpartition("/")[0].split("/nonzero")[0] for tag in scalars} == {
        "lora/train", "lora/eval", "method/train", "method/eval",
    }  # fmt: skip
    assert scalars["lora/train/loss"] == scalars["method/train/loss"] == [2]


def test_measuring_no_sparsity(finished, anew, given):
    results = anew("out", *given, "--max_steps", "2", "--measure_sparsity", "never")
    for column in ("before", "method"):
        assert not [key for key, value in results[column].items() if "nonzero" in key and value is not None]
    assert not (anew.folder / "out" / "sparsity.png").exists()


# --- once and again --------------------------------------------------------------------------------------------------


def test_data_are_loaded_and_a_tokenizer_is_trained_once(anew, monkeypatch):
    calls = collections.Counter()

    def count(module, name):
        real = getattr(module, name)

        def counted(*args, **kwargs):
            calls[name] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    count(classification, "load_images")
    count(denoising, "load_texts")
    count(tokenization, "train_tokenizer")
    # No command line is made up within the job: one is parsed, the user's.
    count(finetune_sparsity, "parse_arguments")
    count(task_training, "parse_arguments")
    anew("out", "--max_steps", "1")
    of_task = {"image": ["load_images"], "t5": ["load_texts", "train_tokenizer"]}
    task = next(name for name, job in JOBS.items() if job is anew.job)
    assert calls == dict.fromkeys([*of_task[task], "parse_arguments"], 1)
    assert json.loads((anew.folder / "out" / "vanilla" / "arguments.json").read_text())["command"] is None


def test_a_second_run_keeps_the_vanilla_model(finished, capsys):
    vanilla, results = snapshot(finished.vanilla_of("out")), finished.results("out")
    finished.refuse("out")
    assert "--overwrite" in error_line(capsys)
    assert finished("out", "--overwrite", *CODE) == results
    assert snapshot(finished.vanilla_of("out")) == vanilla


def test_another_seed_trains_another_vanilla_model(finished, anew):
    """In the same folder, where the one of the first seed lies."""
    shutil.copytree(finished.folder / "out", anew.folder / "out")
    anew.recipe = finished.recipe
    anew("out", "--max_steps", "1", "--no_baseline", "--overwrite", "--seed", "1")
    before, after = (runs.weights("out", "vanilla/model") for runs in (finished, anew))
    assert [name for name in before if not torch.equal(before[name], after[name])]


# --- interrupted -----------------------------------------------------------------------------------------------------


def test_interrupted_and_resumed(finished, anew, monkeypatch):
    """Stopped within each of the three trainings in turn, the job ends with the same merged model."""
    real, stopped, steps = Task.evaluate, [], []
    backpropagate = loop._backpropagate

    def evaluate_or_stop(self, model):
        """Stop behind the first checkpoint of each training, once."""
        for part in ("vanilla", "lora", "method"):
            if part not in stopped and find_checkpoints(anew.folder / "out" / part):
                stopped.append(part)
                raise KeyboardInterrupt
        return real(self, model)

    def count_and_backpropagate(training, *args):
        steps.append(training.step)
        return backpropagate(training, *args)

    monkeypatch.setattr(Task, "evaluate", evaluate_or_stop)
    monkeypatch.setattr(loop, "_backpropagate", count_and_backpropagate)
    resume = ()
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            anew("out", *resume)
        reset_accelerator()
        resume = ("--resume_from_checkpoint", "latest")
    assert anew("out", *resume) == finished.results("out")
    assert stopped == ["vanilla", "lora", "method"]
    for model in ("vanilla/model", "merged"):
        name = f"{model}/model.safetensors"
        assert (anew.folder / "out" / name).read_bytes() == (finished.folder / "out" / name).read_bytes(), model
    # No step was taken twice but those between a checkpoint and the stop behind it, four a training.
    assert len(steps) == anew.job.num_steps + 3 * 4


def test_no_model_is_there_without_its_card(finished, anew, given, monkeypatch):
    """Stopped before the first and before the second card is written, neither model is in place."""
    real, documented = publishing.write_model_card, []

    def write_or_stop(folder):
        if "method" not in folder.parts:  # `best` within it has a card of its own
            assert not (anew.folder / "out" / "adapter").exists()
            assert not (anew.folder / "out" / "merged").exists()
            documented.append(folder)
            if len(documented) in (1, 3):
                raise KeyboardInterrupt
        real(folder)

    monkeypatch.setattr(publishing, "write_model_card", write_or_stop)
    options = (*given, "--max_steps", "2")
    for number in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            anew("out", *options)
        reset_accelerator()
        assert len(documented) == number
        assert sorted(path.name for path in (anew.folder / "out").iterdir()) == ["arguments.json", "method"]
        options = (*given, "--max_steps", "2", "--resume_from_checkpoint", "latest")
    anew("out", *options)
    for name in ("adapter", "merged"):
        assert (anew.folder / "out" / name / "README.md").exists()


# --- bad input -------------------------------------------------------------------------------------------------------


BAD = {
    "missing model": (["--model_name_or_path", "./nowhere"], "--model_name_or_path: there is no folder ./nowhere"),
    "missing data": (["--dataset", "./nowhere"], "--model_name_or_path: give a "),
    "rank too large": (["--lora_rank", "17"], "--lora_rank: 17 is more than "),
    "no rank": (["--lora_rank", "0"], "--lora_rank: 0 is out of range; give at least 1"),
    "unknown task": (["--task", "text"], "--task: unknown 'text'; "),
    "task of no sparse form": (["--task", "modular_addition"], "--task: unknown 'modular_addition'; known are image"),
    "unknown recipe": (["--recipe", "vit_digit_finetune"], "did you mean vit_digits_finetune"),
    "unknown vanilla recipe": (["--vanilla_recipe", "vit_digit"], "did you mean vit_digits"),
    "negative steps": (["--mixing_steps", "-1"], "--mixing_steps: -1 is out of range; give at least 0"),
    "unknown field": (["--model.zeroth_bais", "true"], "--model.zeroth_bais: sparse_"),
    "named checkpoint": (["--resume_from_checkpoint", "x"], "--resume_from_checkpoint: 'x'"),
}
BAD_OF_TASK = {
    "image": {
        "rank of a matrix": (["--lora_rank", "17"], "17 is more than vit.layers.0.attention.q_proj (16, 16) allows"),
        "what is asked for": (["--dataset", "./nowhere"], "give a classifier of ./nowhere to finetune"),
    },
    "t5": {
        "rank of a matrix": (["--lora_rank", "17"], "17 is more than encoder.block.0.layer.0.SelfAttention.q"),
        "what is asked for": (["--dataset", "./nowhere"], "give a T5 of ./nowhere to finetune"),
        "argument of images": (["--mixup", "0.2"], "--mixup: unknown argument"),
        "no noise": (["--noise_density", "0"], "--noise_density: 0.0 is out of range; give more than 0"),
        "field of images": (["--model.hidden_act", "relu"], "--model.hidden_act: sparse_t5 has no such field"),
    },
}


@pytest.mark.parametrize(
    ("task", "case"), [(task, case) for task, more in BAD_OF_TASK.items() for case in (*BAD, *more)]
)
def test_bad_input(task, case, tmp_path, capsys, monkeypatch):
    args, message = (BAD | BAD_OF_TASK[task])[case]
    runs = Finetunings(JOBS[task], tmp_path)
    monkeypatch.chdir(tmp_path)
    runs.refuse("out", *args)
    assert message in error_line(capsys)
    assert not list(tmp_path.iterdir())

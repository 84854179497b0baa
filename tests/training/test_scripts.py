# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What the scripts that train one model do alike: what a run writes, its options, resuming, and bad input."""

import dataclasses
import importlib

import pytest
import torch

from helpers import ROOT, snapshot
from script_testing import CODE, SCRIPTS, STREAM, error_line, read_scalars
from sparsight.analysis.sparsity import SparsityMeter
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.models import ModelArguments
from sparsight.training.finetune_sparsity import FinetuneArguments
from sparsight.training.methods import MethodArguments
from sparsight.training.tasks import TASKS


def only(*scripts: str):
    """Of the scripts, these."""
    return pytest.mark.parametrize("runs", scripts, indirect=True)


def cases(*pairs: tuple[str, object]):
    """A case a script and what goes with it."""
    return pytest.mark.parametrize(("runs", "case"), pairs, indirect=["runs"])


# --- what a run writes -----------------------------------------------------------------------------------------------


def test_what_a_run_writes(runs, capsys):
    script = runs.script
    results = runs("run", *script.steps, *CODE)
    assert f"{runs.folder / 'run'}: " in (printed := capsys.readouterr().out)
    assert f"{script.metric} " in printed
    assert sorted(path.name for path in (runs.folder / "run").iterdir()) == [
        "arguments.json", "best", "checkpoint-12", "model", "results.json",
    ]  # fmt: skip
    # The numbers are those of the model that lies there.
    for name in ("best", "model"):
        folder = runs.folder / "run" / name
        model = script.load(folder)
        assert type(model).__name__ == script.model_class
        files = {path.name for path in folder.iterdir()}
        assert {"README.md", "arguments.json", "config.json", "model.safetensors"} <= files
        # Models of ours bring their code.
        assert any(file.startswith("modeling_") for file in files) == script.model_class.startswith("Sparse")
        with torch.no_grad(), SparsityMeter(model) as meter:
            expected = script.measure(model, script.make_batch(model, folder))
        if name == "best":
            (metric,) = results["best"].keys() - {"step"}
            assert results["best"][metric] == pytest.approx(expected[metric], rel=1e-5)
            continue
        assert {key: results[key] for key in expected} == pytest.approx(expected, rel=1e-5)
        sparsity = meter.compute()
        assert results["nonzero_share"] == sparsity.nonzero_share
        per_layer = [
            share
            for key, shares in results.items()
            if key.endswith("nonzero_share_per_layer") and "derivative" not in key
            for share in shares
        ]
        assert per_layer == list(sparsity.nonzero_share_per_layer.values())
        assert tuple(sparsity.nonzero_share_per_layer) == script.layers
        assert results["num_parameters"] == model.num_parameters()
    assert results["num_steps"] == 12
    assert 0 < results["training_nonzero_share"] < 1


@cases(
    ("images", ("--no_augmentation", "--learning_rate", "6e-3", "--max_train_samples", "256",
                "--model.hidden_size", "64", "--num_epochs", "10", "--eval_epochs", "5")),
    ("t5", ("--max_steps", "40", "--eval_epochs", "2")),
    ("addition", ("--train_share", "0.8", "--batch_size", "85", "--weight_decay", "1", "--learning_rate", "2e-2",
                  "--model.n_embd", "32", "--model.n_layer", "1", *SCRIPTS["addition"].no_dropout,
                  "--max_steps", "150", "--eval_epochs", "50")),
)  # fmt: skip
def test_it_learns(runs, case):
    results = runs("long", *case)
    if "accuracy" in results:
        assert results["accuracy"] > 0.5
        assert results["best"]["accuracy"] >= results["accuracy"]
    else:
        assert results["loss"] < runs("short", "--max_steps", "1")["loss"] - 0.5
        assert results["best"]["loss"] <= results["loss"]


@cases(
    ("images", ("layernorm_after", "mlp.zeroth_bias", "layernorm_before")),
    ("t5", ("layer_norm", "DenseReluDense.zeroth_bias", "layer.0.layer_norm")),
)
def test_restricted_layer_norms(runs, case):
    norm, zeroth_bias, other_norm = case
    options = ("--model.mlp_norm_bias", "false") if "before" in other_norm else ()
    runs("run", "--restrict_layer_norms", *options, *runs.script.steps)
    found = runs.weights("run")
    biases = {name: value for name, value in found.items() if zeroth_bias in name}
    assert len(biases) == len(runs.script.layers)
    for name, bias in biases.items():
        norm_name = name.replace(zeroth_bias, norm)
        assert (found[norm_name] >= 1).all()
        assert bias.any()
        assert (bias.abs() <= 0.1 * found[norm_name]).all()
        assert norm_name.replace(".weight", ".bias") not in found
    assert any((value < 1).any() for name, value in found.items() if f"{other_norm}.weight" in name)


def test_same_seed_same_weights_and_other_seed_other_weights(runs):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        runs(name, "--max_steps", "4", "--seed", seed)
    runs.assert_same_weights("a", "b")
    # The largest is a matrix: norms and biases start alike.
    name = max(runs.weights("a"), key=lambda name: runs.weights("a")[name].numel())
    assert not torch.equal(runs.weights("a")[name], runs.weights("c")[name])


@cases(("images", 2e-4), ("t5", 2e-3), ("addition", 2e-3))
def test_accumulated_micro_batches_are_one_batch(runs, case):
    options = ("--max_steps", "8", *runs.script.no_dropout)
    runs("whole", *options)
    runs("parts", *options, "--gradient_accumulation_steps", "4")
    runs.assert_same_weights("parts", "whole", atol=case)


def test_any_number_of_workers_gives_the_same_weights(runs):
    runs("none", "--max_steps", "4", "--num_workers", "0")
    runs("two", "--max_steps", "4", "--num_workers", "2")
    runs.assert_same_weights("two", "none")


@cases(
    ("images", ("--mixup", "0.2", "--cutmix", "1.0", "--label_smoothing", "0.1", "--repeated_augmentation", "3")),
    ("images", ("--optimizer", "lion", "--learning_rate", "2e-4", "--lr_scheduler", "inverse_sqrt",
                "--warmup_epochs", "1")),
    ("images", ("--optimizer", "sgd", "--learning_rate", "0.1", "--max_grad_norm", "0", "--gradient_checkpointing")),
    ("images", ("--mixed_precision", "bf16", "--auto_augment", "rand-m9-mstd0.5", "--random_erasing", "0.2")),
    ("images", ("--model.hidden_act", "gelu", "--model.zeroth_bias", "false", "--no_augmentation")),
    ("t5", ("--label_smoothing", "0.1", "--packing", "within_batch", "--packing_batch_size", "2")),
    ("t5", ("--optimizer", "adafactor", "--gradient_checkpointing", "--noise_density", "0.3")),
    ("t5", ("--mixed_precision", "bf16", "--model.feed_forward_proj", "gated-jsrelu")),
    ("t5", ("--model.feed_forward_proj", "gated-gelu", "--model.zeroth_bias", "false", "--mean_span_length", "1.5")),
    ("t5", (*STREAM, "--max_train_samples", "9")),
    ("addition", ("--label_smoothing", "0.1", "--gradient_checkpointing", "--train_share", "0.5")),
    ("addition", ("--mixed_precision", "bf16", "--optimizer", "sgd", "--modulus", "7", "--batch_size", "20")),
)  # fmt: skip
def test_options(runs, case):
    results = runs("run", "--num_epochs", "2", *case)
    assert 0 < results["loss"] < (10 if runs.script.module == "pretrain_t5" else 3.5)
    assert 0 <= results.get("accuracy", 0) <= 1


def test_tensorboard(runs):
    runs("run", *runs.script.steps, "--report_to", "tensorboard", "--logging_steps", "3")
    scalars = read_scalars(runs.folder / "run")
    layers = {f"train/nonzero_share/{layer}" for layer in runs.script.layers}
    shown = {"train/loss", "train/lr", "train/nonzero_share", *layers, "eval/loss", f"eval/{runs.script.metric}"}
    assert shown <= scalars.keys()
    assert {tag.split("/")[0] for tag in scalars} == {"train", "eval"}
    evaluations = scalars["eval/loss"]
    assert len(evaluations) > 2
    assert scalars["train/loss"] == sorted({3, 6, 9, 12, *evaluations})


@only("images", "addition")
def test_overwrite_starts_anew(runs):
    runs("run", "--max_steps", "8")
    (runs.folder / "run" / "mine.txt").write_text("not of a run")
    runs("run", "--max_steps", "4", "--overwrite")
    assert [path.name for path in (runs.folder / "run").glob("checkpoint-*")] == ["checkpoint-4"]
    assert (runs.folder / "run" / "mine.txt").exists()


# --- resuming (a kill is in test_processes.py) -----------------------------------------------------------------------


@only("images", "addition")
def test_resumes_from_a_named_checkpoint(runs):
    kept = (*runs.script.steps, "--keep_checkpoints", "9")
    runs("whole", *kept)
    _, checkpoint, last = sorted((runs.folder / "whole").glob("checkpoint-*"), key=lambda path: len(path.name))[-3:]
    runs("again", *kept, "--resume_from_checkpoint", checkpoint)
    runs.assert_same_weights("again", "whole")
    # It did start there.
    written = {path.name for path in (runs.folder / "again").glob("checkpoint-*")}
    assert last.name in written
    assert "checkpoint-4" not in written


@only("images", "addition")
def test_a_finished_run_resumes_to_what_it_was(runs):
    first = runs("run", *runs.script.steps)
    model = snapshot(runs.folder / "run" / "model")
    assert runs("run", *runs.script.steps, "--resume_from_checkpoint", "latest") == first
    assert snapshot(runs.folder / "run" / "model")["model.safetensors"] == model["model.safetensors"]


@cases(
    ("images", [("--learning_rate", "0.5"), ("--crop_scale", "0.1", "1")]),
    ("t5", [("--noise_density", "0.5")]),
    ("addition", [("--modulus", "13"), ("--measure_sparsity", "never")]),
)
def test_resuming_another_run_is_refused(runs, case, capsys):
    runs("run", "--max_steps", "4")
    before = snapshot(runs.folder / "run")
    for change in case:
        runs.refuse("run", "--max_steps", "4", "--resume_from_checkpoint", "latest", *change)
        assert f"{change[0]}: the run in" in error_line(capsys)
    assert snapshot(runs.folder / "run") == before


DIVERGES = ("--optimizer", "sgd", "--learning_rate", "1e30", "--max_grad_norm", "0", "--lr_scheduler", "constant",
            "--warmup_steps", "0", "--max_steps", "20")  # fmt: skip


def test_a_loss_that_is_not_finite_stops_the_run(runs, capsys):
    runs.refuse("run", *DIVERGES, "--logging_steps", "1", "--eval_epochs", "5")
    error = error_line(capsys)
    assert "--learning_rate: the loss is not finite at step 2" in error
    assert "no checkpoint yet" in error
    assert [path.name for path in (runs.folder / "run").iterdir()] == ["arguments.json"]


@only("images", "addition")
def test_the_last_good_checkpoint_outlives_a_loss_that_is_not_finite(runs, capsys):
    runs("run", "--max_steps", "4")
    checkpoint = runs.folder / "run" / "checkpoint-4"
    states = torch.load(checkpoint / "training_state.pt", weights_only=True)
    for group in states["optimizer"]["param_groups"]:
        group["weight_decay"] = -1e38  # the step after this one breaks the weights
    states["scheduler"]["_last_lr"] = states["scheduler"]["base_lrs"] = [1.0] * len(states["scheduler"]["base_lrs"])
    torch.save(states, checkpoint / "training_state.pt")
    good = snapshot(checkpoint)
    runs.refuse("run", "--max_steps", "12", "--resume_from_checkpoint", "latest")
    error = error_line(capsys)
    assert "the loss is not finite at step" in error
    assert f"the last good checkpoint is {checkpoint}" in error
    assert snapshot(checkpoint) == good
    assert [path.name for path in (runs.folder / "run").glob("checkpoint-*")] == ["checkpoint-4"]


# --- bad input -------------------------------------------------------------------------------------------------------


BAD = {
    "missing model": (["--model_name_or_path", "./nowhere"], "--model_name_or_path: there is no folder ./nowhere"),
    "not a model": (["--model_name_or_path", str(ROOT / "tests")], "--model_name_or_path: cannot load"),
    "unknown recipe": (["--recipe", "sparse_vit_digit"], "--recipe: no recipe 'sparse_vit_digit'; did you mean"),
    "unknown argument": (["--batchsize", "8"], "--batchsize: unknown argument; did you mean --batch_size"),
    "wrong type": (["--batch_size", "many"], "invalid int value: 'many'"),
    "unknown family": (["--model_type", "vti"], "--model_type: unknown 'vti'; "),
    "unknown optimizer": (["--optimizer", "adamv"], "--optimizer: unknown 'adamv'; did you mean"),
    "unknown schedule": (["--lr_scheduler", "cosin"], "--lr_scheduler: unknown 'cosin'; did you mean cosine"),
    "unknown tracker": (["--report_to", "tensorbord"], "--report_to: "),
    "batch too large": (["--batch_size", "40960"], "--batch_size: 40960 is more than the "),
    "no checkpoint": (["--resume_from_checkpoint", "./nowhere"], "--resume_from_checkpoint: ./nowhere is none"),
}
BAD_OF_SCRIPT = {
    "images": {
        "missing data": (["--dataset", "./nowhere"], "--dataset: there is no folder ./nowhere"),
        "recipe by name": (["--recipe", "sparse_vit_digit"], "did you mean sparse_vit_digits"),
        "unknown field": (["--model.hidden_sise", "8"], "--model.hidden_sise: sparse_vit has no such field"),
        "nonsense model field": (["--model.activation_mix", "7"], "`activation_mix` must lie in [0, 1]"),
        "family": (["--model_type", "sparse_vti"], "--model_type: unknown 'sparse_vti'; did you mean sparse_vit"),
        "odd batch to mix": (["--batch_size", "31", "--mixup", "1"], "--batch_size: mixup and cutmix mix pairs"),
        "how many images": (["--batch_size", "4096"], "--batch_size: 4096 is more than the 128 training examples"),
    },
    "t5": {
        "missing data": (["--dataset", "./nowhere.txt"], "--dataset: there is no file ./nowhere.txt"),
        "missing tokenizer": (["--tokenizer_name", "./nowhere"], "--tokenizer_name: there is no folder ./nowhere"),
        "recipe by name": (["--recipe", "sparse_t5_stdlb"], "did you mean sparse_t5_stdlib"),
        "unknown field": (["--model.dmodel", "8"], "--model.dmodel: sparse_t5 has no such field; did you mean"),
        "nonsense model field": (["--model.activation_mix", "7"], "`activation_mix` must lie in [0, 1]"),
        "image family": (["--model_type", "sparse_vit"], "--model_type: unknown 'sparse_vit'; did you mean sparse_t5"),
        "small vocabulary": (["--model.vocab_size", "200"], "--tokenizer_name: the tokenizer has 300 tokens"),
        "no noise": (["--noise_density", "0"], "--noise_density: 0.0 is out of range; give more than 0"),
        "long input": (["--input_length", "4096"], "--input_length: "),
        "stream of no length": ([*STREAM, "--max_steps", "0"], "--max_steps: a stream has no epochs"),
        "unknown packing": (["--packing", "none"], "--packing: invalid choice: 'none'"),
    },
    "addition": {
        "small modulus": (["--modulus", "2"], "--modulus: 2 is out of range; give at least 3"),
        "nothing held out": (["--train_share", "1"], "--train_share: 1.0 is out of range; give more than 0 and less"),
        "unknown task": (["--task", "modular_additoin"], "--task: unknown 'modular_additoin'; did you mean"),
        "unknown field": (["--model.n_emb", "8"], "--model.n_emb: gpt2 has no such field; did you mean n_embd"),
        "argument of images": (["--mixup", "0.2"], "--mixup: unknown argument"),
    },
}  # fmt: skip


@cases(*((script, case) for script, more in BAD_OF_SCRIPT.items() for case in (BAD | more).values()))
def test_bad_input(runs, case, capsys, monkeypatch):
    """One line, exit code 2, and nothing written."""
    args, message = case
    monkeypatch.chdir(runs.folder)
    runs.refuse("run", *args)
    assert message in error_line(capsys)
    assert not list(runs.folder.iterdir())


@only("images", "addition")
def test_output_folder_of_another_run(runs, capsys):
    (runs.folder / "run").mkdir()
    (runs.folder / "run" / "results.json").write_text("{}")
    runs.refuse("run")
    error = error_line(capsys)
    assert "--output_dir: " in error
    assert "--overwrite" in error
    assert snapshot(runs.folder / "run") == {"results.json": b"{}"}


HELP = {
    **{script.module: (ModelArguments, MethodArguments, LoopArguments) for script in SCRIPTS.values()},
    "finetune_sparsity": (FinetuneArguments, LoopArguments),
}
DATA = {"train_image_classification": "image", "pretrain_t5": "t5", "train": "image", "finetune_sparsity": "image"}


@pytest.mark.parametrize("module", HELP)
def test_help_explains_every_argument(module, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as exit_info:
        importlib.import_module(f"sparsight.training.{module}").main(["--help"])
    assert exit_info.value.code == 0
    shown = capsys.readouterr().out
    assert f"accelerate launch training/{module}.py" in shown
    arguments = [
        field
        for argument_class in (*HELP[module], TASKS[DATA[module]].arguments_class)
        for field in dataclasses.fields(argument_class)
        if field.init
    ]
    assert len(arguments) > 40
    words = " ".join(shown.split())
    for field in arguments:
        assert f"--{field.name} " in words
        assert " ".join(field.metadata["help"].split())[:60] in words
    assert words.count("(default: ") >= len(arguments)

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The pretraining script end to end: what it writes, resuming after a kill, several processes, and bad input."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    T5Config,
    T5ForConditionalGeneration,
    T5Tokenizer,
)

from helpers import ROOT, run_python, snapshot
from sparsight import SparseT5ForConditionalGeneration
from sparsight.analysis.sparsity import SparsityMeter
from sparsight.training import pretrain_t5
from sparsight.training.text_data import TextArguments, load_texts
from sparsight.training.text_examples import make_blocks, make_corruption


SCRIPT = ROOT / "training" / "pretrain_t5.py"
TEXT = {"vocab_size": 300, "input_length": 24, "max_train_samples": 4, "max_eval_samples": 2}
STREAM = ("--streaming", "--shuffle_buffer", "3")


@pytest.fixture(autouse=True)
def _fresh_accelerator():
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def pretrain(recipe: str, output_dir: Path, *args: str) -> dict:
    pretrain_t5.main(["--recipe", recipe, "--output_dir", str(output_dir), *args])
    return json.loads((output_dir / "results.json").read_text())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def test_what_a_run_writes(tiny_t5_recipe, tmp_path, capsys):
    output_dir = tmp_path / "run"
    results = pretrain(tiny_t5_recipe, output_dir)
    assert "perplexity" in capsys.readouterr().out
    assert sorted(path.name for path in output_dir.iterdir()) == [
        "arguments.json", "best", "checkpoint-12", "model", "results.json",
    ]  # fmt: skip
    # The numbers are those of the model and the tokenizer that lie there.
    arguments = TextArguments(**TEXT)
    for name in ("model", "best"):
        model = AutoModelForSeq2SeqLM.from_pretrained(output_dir / name).eval()
        tokenizer = AutoTokenizer.from_pretrained(output_dir / name)
        assert (type(model), type(tokenizer)) == (SparseT5ForConditionalGeneration, T5Tokenizer)
        assert model.lm_head.weight is model.shared.weight
        blocks = make_blocks(load_texts(arguments).eval, tokenizer, arguments)
        seeds = [(0, 0, index) for index in range(len(blocks))]
        inputs, targets = map(torch.from_numpy, make_corruption(arguments, tokenizer)(blocks, seeds))
        with torch.no_grad(), SparsityMeter(model) as meter:
            outputs = model(input_ids=inputs, labels=targets)
        if name == "best":
            assert results["best"]["loss"] == pytest.approx(outputs.loss.item(), rel=1e-5)
            continue
        assert results["loss"] == pytest.approx(outputs.loss.item(), rel=1e-5)
        sparsity = meter.compute()
        assert results["nonzero_share"] == sparsity.nonzero_share
        per_layer = results["encoder_nonzero_share_per_layer"] + results["decoder_nonzero_share_per_layer"]
        assert per_layer == list(sparsity.nonzero_share_per_layer.values())
        assert (results["num_examples"], results["num_target_tokens"]) == (len(blocks), targets.numel())
        assert (results["num_encoder_tokens"], results["num_decoder_tokens"]) == (inputs.numel(), targets.numel())
    assert results["num_steps"] == 12
    assert 0 < results["training_nonzero_share"] < 1


def test_it_learns(tiny_t5_recipe, tmp_path):
    first = pretrain(tiny_t5_recipe, tmp_path / "short", "--max_steps", "1")
    results = pretrain(tiny_t5_recipe, tmp_path / "long", "--max_steps", "150", "--eval_epochs", "2")
    assert results["loss"] < first["loss"] - 0.5
    assert results["best"]["loss"] <= results["loss"]


def test_restricted_layer_norms(tiny_t5_recipe, tmp_path):
    pretrain(tiny_t5_recipe, tmp_path / "run", "--restrict_layer_norms")
    found = weights(tmp_path / "run")
    biases = {name: value for name, value in found.items() if "zeroth_bias" in name}
    assert len(biases) == 4
    for name, zeroth_bias in biases.items():
        scale = found[name.replace("DenseReluDense.zeroth_bias", "layer_norm")]
        assert (scale >= 1).all()
        assert zeroth_bias.any()
        assert (zeroth_bias.abs() <= 0.1 * scale).all()
    assert any((value < 1).any() for name, value in found.items() if "layer.0.layer_norm" in name)


@pytest.mark.parametrize(
    "options",
    [
        ("--label_smoothing", "0.1", "--packing", "within_batch", "--packing_batch_size", "2"),
        ("--optimizer", "adafactor", "--gradient_checkpointing", "--noise_density", "0.3"),
        ("--mixed_precision", "bf16", "--model.feed_forward_proj", "gated-jsrelu"),
        ("--model.feed_forward_proj", "gated-gelu", "--model.zeroth_bias", "false", "--mean_span_length", "1.5"),
        (*STREAM, "--max_train_samples", "0"),
    ],
)
def test_options(tiny_t5_recipe, tmp_path, options):
    results = pretrain(tiny_t5_recipe, tmp_path / "run", *options)
    assert 0 < results["loss"] < 10


def test_text_files_and_a_named_tokenizer(tiny_t5_recipe, tmp_path):
    pretrain(tiny_t5_recipe, tmp_path / "first")
    (tmp_path / "text.txt").write_text("\n\n".join(f"The number {i} is followed by {i + 1}." for i in range(900)))
    args = ("--dataset", str(tmp_path / "text.txt"), "--tokenizer_name", str(tmp_path / "first" / "model"))
    pretrain(tiny_t5_recipe, tmp_path / "second", *args, "--max_train_samples", "0", "--max_eval_samples", "0")
    first, second = (AutoTokenizer.from_pretrained(tmp_path / name / "model") for name in ("first", "second"))
    assert second.get_vocab() == first.get_vocab()


def test_goes_on_from_a_checkpoint(tiny_t5_recipe, tmp_path):
    first = pretrain(tiny_t5_recipe, tmp_path / "first", "--max_steps", "30")
    recipe = tmp_path / "more.yaml"
    lines = Path(tiny_t5_recipe).read_text().splitlines()
    recipe.write_text("\n".join(line for line in lines if not line.startswith((" ", "model:"))))
    args = ("--model_name_or_path", str(tmp_path / "first" / "model"), "--learning_rate", "1e-6", "--max_steps", "2")
    second = pretrain(str(recipe), tmp_path / "second", *args)
    assert second["loss"] == pytest.approx(first["loss"], abs=1e-2)


def test_tensorboard(tiny_t5_recipe, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    pretrain(tiny_t5_recipe, tmp_path / "run", "--report_to", "tensorboard", "--logging_steps", "4")
    events = EventAccumulator(str(tmp_path / "run" / "run"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    layers = {
        f"train/nonzero_share/{side}.block.{layer}.layer.{index}.DenseReluDense"
        for side, index in (("encoder", 1), ("decoder", 2))
        for layer in range(2)
    }
    assert {"train/loss", "train/lr", "train/nonzero_share", "eval/loss", "eval/perplexity", *layers} <= tags


# --- resuming --------------------------------------------------------------------------------------------------------


RUN = ("--max_steps", "60", "--eval_epochs", "0.125", "--logging_steps", "3", "--restrict_layer_norms",
       "--keep_checkpoints", "2", "--model.dropout_rate", "0.1", "--gradient_accumulation_steps", "2")  # fmt: skip


@pytest.mark.parametrize("stream", [(), STREAM], ids=["blocks", "stream"])
def test_killed_and_resumed_is_as_if_never_stopped(tiny_t5_recipe, tmp_path, stream):
    """Bit for bit, with dropout, spans drawn anew each epoch, a schedule and the recipe's part."""
    whole = pretrain(tiny_t5_recipe, tmp_path / "whole", *RUN, *stream)
    killed = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "--recipe", tiny_t5_recipe, "--output_dir", killed, *RUN, *stream],
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 120
    while not list(killed.glob("checkpoint-*[0-9]")):
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "results.json").exists()
    resumed = pretrain(tiny_t5_recipe, killed, *RUN, *stream, "--resume_from_checkpoint", "latest")
    torch.testing.assert_close(weights(killed), weights(tmp_path / "whole"), rtol=0, atol=0)
    assert resumed == whole
    tokenizers = [snapshot(folder / "model")["tokenizer.json"] for folder in (killed, tmp_path / "whole")]
    assert tokenizers[0] == tokenizers[1]


def test_any_number_of_workers_gives_the_same_weights(tiny_t5_recipe, tmp_path):
    pretrain(tiny_t5_recipe, tmp_path / "none", "--num_workers", "0")
    pretrain(tiny_t5_recipe, tmp_path / "two", "--num_workers", "2")
    torch.testing.assert_close(weights(tmp_path / "two"), weights(tmp_path / "none"), rtol=0, atol=0)


def test_resuming_with_other_spans_is_refused(tiny_t5_recipe, tmp_path, capsys):
    pretrain(tiny_t5_recipe, tmp_path / "run")
    before = snapshot(tmp_path / "run")
    with pytest.raises(SystemExit):
        pretrain(tiny_t5_recipe, tmp_path / "run", "--resume_from_checkpoint", "latest", "--noise_density", "0.5")
    assert "--noise_density: the run in" in capsys.readouterr().err
    assert snapshot(tmp_path / "run") == before


# --- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [(), STREAM], ids=["blocks", "stream"])
def test_two_processes(tiny_t5_recipe, tmp_path, stream):
    """The same examples and spans in each step, the same counts in evaluation."""
    args = ["--recipe", tiny_t5_recipe, "--eval_batch_size", "30", "--model.dropout_rate", "0.0", *stream]
    pretrain_t5.main([*args, "--output_dir", str(tmp_path / "one")])
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1"]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    done = run_python(*launch, SCRIPT, *args, "--output_dir", tmp_path / "two")
    assert done.returncode == 0, done.stderr[-2000:]
    one, two = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two"))
    for name in ("num_examples", "num_target_tokens", "num_encoder_tokens", "num_decoder_tokens", "num_steps"):
        assert two[name] == one[name]
    torch.testing.assert_close(weights(tmp_path / "two"), weights(tmp_path / "one"), rtol=0, atol=1e-3)
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-3)
    assert two["nonzero_share"] == pytest.approx(one["nonzero_share"], abs=1e-3)


# --- bad input -------------------------------------------------------------------------------------------------------


BAD = {
    "missing data": (["--dataset", "./nowhere.txt"], "--dataset: there is no file ./nowhere.txt"),
    "missing model": (["--model_name_or_path", "./nowhere"], "--model_name_or_path: there is no folder"),
    "missing tokenizer": (["--tokenizer_name", "./nowhere"], "--tokenizer_name: there is no folder ./nowhere"),
    "not a model": (["--model_name_or_path", str(ROOT / "tests")], "--model_name_or_path: cannot load"),
    "unknown recipe": (["--recipe", "sparse_t5_stdlb"], "did you mean sparse_t5_stdlib"),
    "unknown argument": (["--inputlength", "8"], "--inputlength: unknown argument; did you mean --input_length"),
    "unknown model field": (["--model.dmodel", "8"], "--model.dmodel: sparse_t5 has no such field"),
    "nonsense model field": (["--model.activation_mix", "7"], "`activation_mix` must lie in [0, 1]"),
    "image family": (["--model_type", "sparse_vit"], "--model_type: unknown 'sparse_vit'; did you mean sparse_t5"),
    "small vocabulary": (["--model.vocab_size", "200"], "--tokenizer_name: the tokenizer has 300 tokens"),
    "no noise": (["--noise_density", "0"], "--noise_density: 0.0 is not in (0, 1)"),
    "long input": (["--input_length", "4096"], "--input_length: "),
    "stream of no length": ([*STREAM, "--max_steps", "0"], "--max_steps: a stream has no epochs"),
    "unknown packing": (["--packing", "none"], "--packing: invalid choice: 'none'"),
    "batch too large": (["--batch_size", "4096"], "--batch_size: 4096 is more than"),
    "no checkpoint": (["--resume_from_checkpoint", "./nowhere"], "--resume_from_checkpoint: ./nowhere is none"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, tiny_t5_recipe, tmp_path, capsys, monkeypatch):
    args, message = BAD[case]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_info:
        pretrain_t5.main(["--recipe", tiny_t5_recipe, "--output_dir", "run", *args])
    assert exit_info.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(lines) == 1
    assert message in lines[0]
    assert not list(tmp_path.iterdir())


def test_model_without_a_tokenizer(tmp_path, capsys, tiny_t5):
    T5ForConditionalGeneration(T5Config(**tiny_t5)).save_pretrained(tmp_path / "t5")
    recipe = tmp_path / "plain.yaml"
    recipe.write_text("dataset: stdlib\ninput_length: 24\n")
    with pytest.raises(SystemExit):
        pretrain(str(recipe), tmp_path / "run", "--model_name_or_path", str(tmp_path / "t5"))
    assert f"--model_name_or_path: {tmp_path / 't5'} has no tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_command_itself_exits_with_2_and_one_line(tmp_path):
    done = run_python(SCRIPT, "--batch_size", "0", "--output_dir", tmp_path / "run")
    assert done.returncode == 2
    # Optional packages may speak up when they are imported; of ours there is one line.
    ours = [line for line in done.stderr.splitlines() if line.startswith("pretrain_t5.py")]
    assert ours == ["pretrain_t5.py: error: --batch_size: 0 is too few; give at least 1"]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_help_explains_every_argument():
    done = run_python(SCRIPT, "--help", COLUMNS="200")
    assert done.returncode == 0
    assert "accelerate launch training/pretrain_t5.py" in done.stdout
    for name in ("--noise_density", "--packing", "--streaming", "--tokenizer_name", "--resume_from_checkpoint"):
        assert name in done.stdout

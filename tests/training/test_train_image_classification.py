# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The training script end to end: what it writes, resuming after a kill, several processes, and bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.state import AcceleratorState
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageClassification, PreTrainedModel

from helpers import ROOT, run_python, snapshot
from sparsight import CrateForImageClassification, SparseViTForImageClassification
from sparsight.analysis.sparsity import SparsityMeter
from sparsight.training import train_image_classification
from sparsight.training.image_data import EvalCollator, ImageArguments, load_images


SCRIPT = ROOT / "training" / "train_image_classification.py"


@pytest.fixture(autouse=True)
def _fresh_accelerator():
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def train(recipe: str, output_dir: Path, *args: str) -> dict:
    train_image_classification.main(["--recipe", recipe, "--output_dir", str(output_dir), *args])
    return json.loads((output_dir / "results.json").read_text())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def test_what_a_run_writes(tiny_recipe, tmp_path, capsys):
    output_dir = tmp_path / "run"
    results = train(tiny_recipe, output_dir, "--num_epochs", "3")
    assert "accuracy" in capsys.readouterr().out
    assert sorted(path.name for path in output_dir.iterdir()) == [
        "arguments.json", "best", "checkpoint-12", "model", "results.json",
    ]  # fmt: skip
    # The numbers are those of the model that lies there.
    data = load_images(ImageArguments(max_eval_samples=100))
    for name in ("model", "best"):
        model = AutoModelForImageClassification.from_pretrained(output_dir / name).eval()
        assert type(model) is SparseViTForImageClassification
        assert model.config.id2label == {index: str(index) for index in range(10)}
        collate = EvalCollator(model.config, AutoImageProcessor.from_pretrained(output_dir / name))
        batch = collate(list(data.eval))
        with torch.no_grad(), SparsityMeter(model) as meter:
            outputs = model(**batch)
        accuracy = (outputs.logits.argmax(-1) == batch["labels"]).double().mean().item()
        if name == "best":
            assert results["best"]["accuracy"] == accuracy
            continue
        assert results["accuracy"] == accuracy
        assert results["loss"] == pytest.approx(outputs.loss.item(), rel=1e-5)
        hits = (outputs.logits.topk(5).indices == batch["labels"][:, None]).any(-1)
        assert results["accuracy_top5"] == hits.double().mean().item()
        sparsity = meter.compute()
        assert results["nonzero_share"] == sparsity.nonzero_share
        assert results["nonzero_share_per_layer"] == list(sparsity.nonzero_share_per_layer.values())
    assert (results["num_examples"], results["num_tokens"], results["num_steps"]) == (100, 500, 12)
    assert 0 < results["training_nonzero_share"] < 1


def test_it_learns(tiny_recipe, tmp_path):
    results = train(tiny_recipe, tmp_path / "run", "--num_epochs", "60", "--eval_epochs", "30")
    assert results["accuracy"] > 0.5
    assert results["best"]["accuracy"] >= results["accuracy"]


def test_restricted_layer_norms(tiny_recipe, tmp_path):
    args = ("--restrict_layer_norms", "--model.mlp_norm_bias", "false", "--num_epochs", "2")
    train(tiny_recipe, tmp_path / "run", *args)
    found = weights(tmp_path / "run")
    scales = {name: value for name, value in found.items() if "layernorm_after.weight" in name}
    assert len(scales) == 2
    for name, scale in scales.items():
        assert (scale >= 1).all()
        zeroth_bias = found[name.replace("layernorm_after", "mlp.zeroth_bias")]
        assert zeroth_bias.any()
        assert (zeroth_bias.abs() <= 0.1 * scale).all()
    assert not any("layernorm_after.bias" in name for name in found)


def test_same_seed_same_weights_and_other_seed_other_weights(tiny_recipe, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(tiny_recipe, tmp_path / name, "--num_epochs", "1", "--seed", str(seed))
    torch.testing.assert_close(weights(tmp_path / "a"), weights(tmp_path / "b"), rtol=0, atol=0)
    assert not torch.equal(weights(tmp_path / "a")["classifier.weight"], weights(tmp_path / "c")["classifier.weight"])


def test_accumulated_micro_batches_are_one_batch(tiny_recipe, tmp_path):
    train(tiny_recipe, tmp_path / "whole", "--num_epochs", "2")
    train(tiny_recipe, tmp_path / "parts", "--num_epochs", "2", "--gradient_accumulation_steps", "4")
    torch.testing.assert_close(weights(tmp_path / "parts"), weights(tmp_path / "whole"), rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    "options",
    [
        ("--mixup", "0.2", "--cutmix", "1.0", "--label_smoothing", "0.1", "--repeated_augmentation", "3"),
        ("--optimizer", "lion", "--learning_rate", "2e-4", "--lr_scheduler", "inverse_sqrt", "--warmup_epochs", "1"),
        ("--optimizer", "sgd", "--learning_rate", "0.1", "--max_grad_norm", "0", "--gradient_checkpointing"),
        ("--mixed_precision", "bf16", "--auto_augment", "rand-m9-mstd0.5", "--random_erasing", "0.2"),
        ("--model.hidden_act", "gelu", "--model.zeroth_bias", "false", "--no_augmentation"),
    ],
)
def test_options(tiny_recipe, tmp_path, options):
    results = train(tiny_recipe, tmp_path / "run", "--num_epochs", "2", *options)
    assert 0 <= results["accuracy"] <= 1
    assert results["loss"] < 3.5


def test_tensorboard(tiny_recipe, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tiny_recipe, tmp_path / "run", "--num_epochs", "2", "--report_to", "tensorboard", "--logging_steps", "2")
    events = EventAccumulator(str(tmp_path / "run" / "run"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    layers = {f"train/nonzero_share/vit.layers.{layer}.mlp" for layer in range(2)}
    assert {"train/loss", "train/lr", "train/nonzero_share", "eval/accuracy", "eval/loss", *layers} <= tags
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4, 6, 8]


def small_checkpoint(model_type: str, folder: Path, num_labels: int) -> PreTrainedModel:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    sizes |= {} if model_type == "crate" else {"intermediate_size": 16}
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, num_labels=num_labels, **sizes)
    model = AutoModelForImageClassification.from_config(config)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("model_type", ["vit", "sparse_vit", "crate"])
@pytest.mark.parametrize("num_labels", [3, 10])
def test_transfer_starts_from_the_checkpoint_with_a_new_head(tmp_path, tiny_recipe, model_type, num_labels):
    checkpoint = small_checkpoint(model_type, tmp_path / "checkpoint", num_labels)
    recipe = yaml.safe_load(Path(tiny_recipe).read_text())
    del recipe["model"], recipe["model_type"]
    (tmp_path / "transfer.yaml").write_text(yaml.safe_dump(recipe))
    # The step is too small to move anything.
    args = ("--model_name_or_path", str(tmp_path / "checkpoint"), "--max_steps", "1", "--learning_rate", "1e-12")
    train(str(tmp_path / "transfer.yaml"), tmp_path / "run", *args)
    transferred = AutoModelForImageClassification.from_pretrained(tmp_path / "run" / "model")
    assert type(transferred) is type(checkpoint)
    for name, parameter in transferred.named_parameters():
        if name.startswith("classifier"):
            assert parameter.shape[0] == 10
            assert parameter.shape != checkpoint.get_parameter(name).shape or not torch.allclose(
                parameter, checkpoint.get_parameter(name), atol=1e-3
            )
        else:
            torch.testing.assert_close(parameter, checkpoint.get_parameter(name), rtol=0, atol=1e-6)


def test_crate(tmp_path):
    args = ["--model_type", "crate", "--model.num_hidden_layers", "2", "--batch_size", "32"]
    args += ["--max_train_samples", "512", "--max_eval_samples", "100", "--num_epochs", "10", "--eval_epochs", "10"]
    train_image_classification.main([*args, "--output_dir", str(tmp_path / "run")])
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["accuracy"] > 0.5
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "run" / "model").eval()
    assert type(model) is CrateForImageClassification
    collate = EvalCollator(model.config, AutoImageProcessor.from_pretrained(tmp_path / "run" / "model"))
    batch = collate(list(load_images(ImageArguments(max_eval_samples=100)).eval))
    with torch.no_grad():
        codes = model(batch["pixel_values"], output_hidden_states=True).hidden_states[1:]
    # The sparsity of CRATE is that of the codes after ISTA.
    assert results["nonzero_share_per_layer"] == [(code != 0).double().mean().item() for code in codes]


# --- resuming --------------------------------------------------------------------------------------------------------


RUN = ("--num_epochs", "12", "--mixup", "0.2", "--model.hidden_dropout_prob", "0.1", "--eval_epochs", "1.75",
       "--logging_steps", "3", "--restrict_layer_norms", "--keep_checkpoints", "2")  # fmt: skip


def test_killed_and_resumed_is_as_if_never_stopped(tiny_recipe, tmp_path):
    """Bit for bit, with dropout, mixup, augmentation, a schedule and the recipe's part; stopped within an epoch."""
    whole = train(tiny_recipe, tmp_path / "whole", *RUN)
    killed = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "--recipe", tiny_recipe, "--output_dir", killed, *RUN],
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
    checkpoints = sorted(killed.glob("checkpoint-*[0-9]"))
    assert checkpoints
    assert not (killed / "results.json").exists()
    for checkpoint in checkpoints:  # each is complete
        assert load_file(checkpoint / "weights.safetensors")
        assert torch.load(checkpoint / "training_state.pt", weights_only=True)["progress"]["step"] % 7 == 0
    resumed = train(tiny_recipe, killed, *RUN, "--resume_from_checkpoint", "latest")
    torch.testing.assert_close(weights(killed), weights(tmp_path / "whole"), rtol=0, atol=0)
    assert resumed == whole
    assert not list(killed.glob("*.tmp"))


def test_resumes_from_a_named_checkpoint(tiny_recipe, tmp_path):
    run = ("--num_epochs", "4", "--eval_epochs", "1", "--keep_checkpoints", "9")
    train(tiny_recipe, tmp_path / "whole", *run)
    checkpoint = tmp_path / "whole" / "checkpoint-8"
    train(tiny_recipe, tmp_path / "again", *run, "--resume_from_checkpoint", str(checkpoint))
    torch.testing.assert_close(weights(tmp_path / "again"), weights(tmp_path / "whole"), rtol=0, atol=0)
    assert not (tmp_path / "again" / "checkpoint-4").exists()  # it did start from step 8


def test_resuming_another_run_is_refused(tiny_recipe, tmp_path, capsys):
    train(tiny_recipe, tmp_path / "run", "--num_epochs", "1")
    before = snapshot(tmp_path / "run")
    with pytest.raises(SystemExit):
        train(tiny_recipe, tmp_path / "run", "--resume_from_checkpoint", "latest", "--learning_rate", "0.5")
    assert "--learning_rate: the run in" in capsys.readouterr().err
    assert snapshot(tmp_path / "run") == before


def test_overwrite_starts_anew(tiny_recipe, tmp_path):
    train(tiny_recipe, tmp_path / "run", "--num_epochs", "2")
    (tmp_path / "run" / "mine.txt").write_text("not of a run")
    train(tiny_recipe, tmp_path / "run", "--num_epochs", "1", "--overwrite")
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-4"]
    assert (tmp_path / "run" / "mine.txt").exists()


def test_a_loss_that_is_not_finite_stops_the_run(tiny_recipe, tmp_path, capsys):
    args = ["--optimizer", "sgd", "--learning_rate", "1e30", "--max_grad_norm", "0", "--num_epochs", "5"]
    args += ["--warmup_epochs", "0", "--lr_scheduler", "constant", "--logging_steps", "1"]
    with pytest.raises(SystemExit) as exit_info:
        train(tiny_recipe, tmp_path / "run", *args)
    assert exit_info.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "--learning_rate: the loss is not finite at step 2" in error
    assert "no checkpoint yet" in error
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["arguments.json"]


def test_the_last_good_checkpoint_outlives_a_loss_that_is_not_finite(tiny_recipe, tmp_path, capsys):
    train(tiny_recipe, tmp_path / "run", "--num_epochs", "1")
    good = snapshot(tmp_path / "run" / "checkpoint-4")
    checkpoint = tmp_path / "run" / "checkpoint-4"
    states = torch.load(checkpoint / "training_state.pt", weights_only=True)
    for group in states["optimizer"]["param_groups"]:
        group["weight_decay"] = -1e38  # the step after this one breaks the weights
    states["scheduler"]["_last_lr"] = states["scheduler"]["base_lrs"] = [1.0] * len(states["scheduler"]["base_lrs"])
    torch.save(states, checkpoint / "training_state.pt")
    good = snapshot(checkpoint)
    with pytest.raises(SystemExit):
        train(tiny_recipe, tmp_path / "run", "--num_epochs", "3", "--resume_from_checkpoint", "latest")
    error = capsys.readouterr().err.splitlines()[-1]
    assert "the loss is not finite at step" in error
    assert f"the last good checkpoint is {checkpoint}" in error
    assert snapshot(checkpoint) == good
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-4"]


# --- several processes -----------------------------------------------------------------------------------------------


def test_two_processes(tiny_recipe, tmp_path):
    """The same examples in each step, the same counts in evaluation."""
    args = ["--recipe", tiny_recipe, "--num_epochs", "2", "--eval_batch_size", "30", "--mixup", "0", "--cutmix", "0"]
    train_image_classification.main([*args, "--output_dir", str(tmp_path / "one")])
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1"]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    done = run_python(*launch, SCRIPT, *args, "--output_dir", tmp_path / "two")
    assert done.returncode == 0, done.stderr[-2000:]
    one, two = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two"))
    assert (two["num_examples"], two["num_tokens"], two["num_steps"]) == (100, 500, 8)
    torch.testing.assert_close(weights(tmp_path / "two"), weights(tmp_path / "one"), rtol=0, atol=1e-4)
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-4)
    assert two["nonzero_share"] == pytest.approx(one["nonzero_share"], abs=1e-3)


# --- bad input -------------------------------------------------------------------------------------------------------


BAD = {
    "missing data folder": (["--dataset", "./nowhere"], "--dataset: there is no folder ./nowhere"),
    "missing model folder": (["--model_name_or_path", "./nowhere"], "--model_name_or_path: there is no folder"),
    "not a model": (["--model_name_or_path", str(ROOT / "tests")], "--model_name_or_path: cannot load"),
    "unknown recipe": (["--recipe", "sparse_vit_digit"], "did you mean sparse_vit_digits"),
    "unknown argument": (["--batchsize", "8"], "--batchsize: unknown argument; did you mean --batch_size"),
    "unknown model field": (
        ["--model.hidden_sise", "8"],
        "--model.hidden_sise: sparse_vit has no such field",
    ),
    "nonsense model field": (["--model.activation_mix", "7"], "`activation_mix` must lie in [0, 1]"),
    "unknown family": (["--model_type", "sparse_vti"], "--model_type: unknown 'sparse_vti'; did you mean sparse_vit"),
    "unknown optimizer": (["--optimizer", "adamv"], "--optimizer: unknown 'adamv'; did you mean"),
    "unknown schedule": (["--lr_scheduler", "cosin"], "--lr_scheduler: unknown 'cosin'; did you mean cosine"),
    "unknown tracker": (["--report_to", "tensorbord"], "--report_to"),
    "batch too large": (["--batch_size", "4096"], "--batch_size: 4096 is more than the 128 training images"),
    "odd batch to mix": (["--batch_size", "31", "--mixup", "1"], "--batch_size: mixup and cutmix mix pairs"),
    "no checkpoint": (["--resume_from_checkpoint", "./nowhere"], "--resume_from_checkpoint: ./nowhere is none"),
    "wrong type": (["--batch_size", "many"], "invalid int value: 'many'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, tiny_recipe, tmp_path, capsys, monkeypatch):
    args, message = BAD[case]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_info:
        train_image_classification.main(["--recipe", tiny_recipe, "--output_dir", "run", *args])
    assert exit_info.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(lines) == 1
    assert message in lines[0]
    assert not list(tmp_path.iterdir())


def test_unreadable_image_writes_nothing(tmp_path, tiny_recipe, capsys):
    for name in ("cat", "dog"):
        (tmp_path / "data" / "train" / name).mkdir(parents=True)
        for index in range(20):
            Image.new("RGB", (8, 8)).save(tmp_path / "data" / "train" / name / f"{index}.png")
    bad = tmp_path / "data" / "train" / "dog" / "7.png"
    bad.write_bytes(b"no image")
    with pytest.raises(SystemExit):
        train(tiny_recipe, tmp_path / "run", "--dataset", str(tmp_path / "data"))
    assert f"--dataset: cannot read {bad}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_output_folder_of_another_run(tiny_recipe, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text("{}")
    with pytest.raises(SystemExit):
        train(tiny_recipe, tmp_path / "run")
    error = capsys.readouterr().err
    assert "--output_dir" in error
    assert "--overwrite" in error
    assert snapshot(tmp_path / "run") == {"results.json": b"{}"}


def test_the_command_itself_exits_with_2_and_one_line(tmp_path):
    done = run_python(SCRIPT, "--batch_size", "0", "--output_dir", tmp_path / "run")
    assert done.returncode == 2
    # Optional packages may speak up when they are imported; of ours there is one line.
    ours = [line for line in done.stderr.splitlines() if line.startswith("train_image_classification.py")]
    assert ours == ["train_image_classification.py: error: --batch_size: 0 is too few; give at least 1"]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_help_explains_every_argument():
    done = run_python(SCRIPT, "--help", COLUMNS="200")
    assert done.returncode == 0
    assert "accelerate launch training/train_image_classification.py" in done.stdout
    lines = done.stdout.splitlines()
    for name in ("--batch_size", "--crop_scale", "--restrict_layer_norms", "--resume_from_checkpoint"):
        assert any(name in line for line in lines)
    assert os.linesep.join(lines).count("(default: ") > 40

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The main job end to end, on a vanilla model that trains in a second."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.state import AcceleratorState
from peft import PeftModel
from transformers import (
    AutoModelForImageClassification,
    DeiTConfig,
    DeiTForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from helpers import ROOT, TINY_RECIPE, run_python, snapshot
from sparsight import SparseViTForImageClassification
from sparsight.training import finetune_sparsity, training_run
from sparsight.training.finetune_tasks import TASKS
from sparsight.training.image_data import EvalCollator, ImageArguments, load_images, make_image_processor


SCRIPT = ROOT / "training" / "finetune_sparsity.py"
COLUMNS = ("before", "lora", "recipe")


@pytest.fixture(autouse=True)
def _fresh_accelerator():
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="module")
def recipes(tmp_path_factory) -> tuple[str, str]:
    """Recipes of a vanilla ViT and of its finetuning, small and quick."""
    folder = tmp_path_factory.mktemp("recipes")
    vanilla = yaml.safe_load(TINY_RECIPE)
    vanilla["model"] |= {"hidden_act": "relu", "zeroth_bias": False}
    (folder / "vanilla.yaml").write_text(yaml.safe_dump({**vanilla, "num_epochs": 4}))
    finetune = {name: value for name, value in vanilla.items() if name not in ("model", "model_type")}
    finetune |= {"lora_rank": 4, "num_epochs": 3, "vanilla_recipe": str(folder / "vanilla.yaml")}
    (folder / "finetune.yaml").write_text(yaml.safe_dump(finetune))
    return str(folder / "vanilla.yaml"), str(folder / "finetune.yaml")


def finetune(recipes, output_dir: Path, *args: str) -> dict:
    finetune_sparsity.main(["--recipe", recipes[1], "--output_dir", str(output_dir), *args])
    return json.loads((output_dir / "results.json").read_text())


@pytest.fixture(scope="module")
def finished(recipes, tmp_path_factory) -> Path:
    """The output folder of the whole job."""
    output_dir = tmp_path_factory.mktemp("job") / "out"
    finetune(recipes, output_dir)
    AcceleratorState._reset_state(reset_partial_state=True)
    return output_dir


@pytest.fixture(scope="module")
def eval_batch() -> dict[str, torch.Tensor]:
    data = load_images(ImageArguments(max_eval_samples=100))
    config = ViTConfig(image_size=8)
    return EvalCollator(config, make_image_processor(config, ImageArguments()))(list(data.eval))


def test_what_the_job_writes(finished):
    assert sorted(path.name for path in finished.iterdir()) == [
        "adapter", "arguments.json", "lora", "merged", "recipe", "results.json", "sparsity.png", "vanilla",
    ]  # fmt: skip
    results = json.loads((finished / "results.json").read_text())
    assert set(COLUMNS) <= set(results)
    for column in COLUMNS:
        assert {"accuracy", "accuracy_top5", "loss", "nonzero_share", "nonzero_share_per_layer"} <= set(
            results[column]
        )
        assert len(results[column]["nonzero_share_per_layer"]) == 2
        assert results[column]["num_examples"] == 100
    assert (finished / "sparsity.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("column", "folder"), [("before", "vanilla/model"), ("recipe", "merged")])
def test_numbers_are_those_of_the_models_on_disk(finished, eval_batch, column, folder):
    results = json.loads((finished / "results.json").read_text())[column]
    model = AutoModelForImageClassification.from_pretrained(finished / folder).eval()
    outputs = model(**eval_batch)
    accuracy = (outputs.logits.argmax(-1) == eval_batch["labels"]).double().mean().item()
    assert results["accuracy"] == accuracy
    assert results["loss"] == pytest.approx(outputs.loss.item(), rel=1e-5)


def test_the_merged_model_is_the_recipes(finished):
    merged = AutoModelForImageClassification.from_pretrained(finished / "merged")
    assert type(merged) is SparseViTForImageClassification
    assert (merged.config.hidden_act, merged.config.activation_mix, merged.config.zeroth_bias) == ("jsrelu", 1.0, True)
    vanilla = AutoModelForImageClassification.from_pretrained(finished / "vanilla" / "model")
    for layer, before in zip(merged.vit.layers, vanilla.vit.layers, strict=True):
        assert (layer.layernorm_after.weight.abs() >= 1).all()
        torch.testing.assert_close(layer.layernorm_after.bias, before.layernorm_after.bias, rtol=0, atol=0)
        assert layer.mlp.zeroth_bias.weight.any()
        assert (layer.mlp.zeroth_bias.weight.abs() <= 0.1 * layer.layernorm_after.weight.abs()).all()
        for name in [f"attention.{matrix}_proj" for matrix in "qkvo"] + ["mlp.fc1", "mlp.fc2"]:
            assert not torch.equal(layer.get_submodule(name).weight, before.get_submodule(name).weight)
    torch.testing.assert_close(merged.classifier.weight, vanilla.classifier.weight, rtol=0, atol=0)


def test_merged_is_unmerged(finished, eval_batch):
    """The adapter on the vanilla checkpoint gives the merged model's logits: it holds all that the recipe changed."""
    base = SparseViTForImageClassification.from_pretrained(
        finished / "vanilla" / "model", hidden_act="jsrelu", zeroth_bias=True
    )
    unmerged = PeftModel.from_pretrained(base, finished / "adapter").eval()
    merged = AutoModelForImageClassification.from_pretrained(finished / "merged").eval()
    expected = merged(eval_batch["pixel_values"]).logits
    torch.testing.assert_close(unmerged(eval_batch["pixel_values"]).logits, expected, atol=1e-5, rtol=1e-5)


def test_a_second_run_keeps_the_vanilla_model(finished, recipes, capsys, tmp_path):
    vanilla = snapshot(finished / "vanilla" / "model")
    results = (finished / "results.json").read_text()
    with pytest.raises(SystemExit) as exit_info:
        finetune(recipes, finished)
    assert exit_info.value.code == 2
    assert "--overwrite" in capsys.readouterr().err
    again = finetune(recipes, finished, "--overwrite")
    assert again == json.loads(results)
    assert snapshot(finished / "vanilla" / "model") == vanilla


def test_another_seed_trains_another_vanilla_model(recipes, tmp_path):
    finetune(recipes, tmp_path / "out", "--max_steps", "2", "--no_baseline")
    vanilla = snapshot(tmp_path / "out" / "vanilla" / "model")
    finetune(recipes, tmp_path / "out", "--max_steps", "2", "--no_baseline", "--seed", "1", "--overwrite")
    assert snapshot(tmp_path / "out" / "vanilla" / "model")["model.safetensors"] != vanilla["model.safetensors"]


def test_table(finished, capsys):
    results = json.loads((finished / "results.json").read_text())
    table = finetune_sparsity.format_table(TASKS["image"], {column: results[column] for column in COLUMNS})
    lines = table.splitlines()
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["", *COLUMNS]
    assert [row[0] for row in cells[2:]] == [
        "accuracy@1", "accuracy@5", "loss", "non-zero share", "layer 1", "layer 2",
    ]  # fmt: skip
    assert cells[2][1:] == [f"{results[column]['accuracy']:.2%}" for column in COLUMNS]
    assert cells[6][3] == f"{results['recipe']['nonzero_share_per_layer'][0]:.2%}"


def test_options(recipes, finished, tmp_path):
    """Mixing, uplift at once, no baseline, a given checkpoint, a tracker and a field of the config."""
    args = ["--model_name_or_path", str(finished / "vanilla" / "model"), "--no_baseline", "--mixing_steps", "8"]
    args += ["--uplift_steps", "0", "--lora_dropout", "0.1", "--model.jsrelu_linear_above", "4", "--max_steps", "6"]
    results = finetune(recipes, tmp_path / "out", *args, "--report_to", "tensorboard")
    assert "lora" not in results
    assert not (tmp_path / "out" / "vanilla").exists()
    merged = AutoModelForImageClassification.from_pretrained(tmp_path / "out" / "merged")
    assert merged.activation_mix == 6 / 8  # stopped before the end of mixing, and saved as it is
    assert merged.config.jsrelu_linear_above == 4
    assert all((layer.layernorm_after.weight.abs() >= 1).all() for layer in merged.vit.layers)


def test_a_vit_of_transformers_with_gelu(recipes, tmp_path):
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4,
        num_labels=10,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(tmp_path / "vit")  # and no image processor beside it
    args = ["--model_name_or_path", str(tmp_path / "vit"), "--max_steps", "3"]
    results = finetune(recipes, tmp_path / "out", *args)
    assert results["before"]["nonzero_share"] > 0.99  # GELU
    assert results["lora"]["nonzero_share"] > 0.99
    assert results["recipe"]["nonzero_share"] < 0.9


def test_interrupted_and_resumed(recipes, finished, tmp_path, monkeypatch):
    """Stopped within each of the three trainings in turn, the job ends with the same merged model."""
    output_dir = tmp_path / "out"
    real = training_run.train
    stages = []

    def stop_once(*args, **kwargs):
        """Stop behind the first checkpoint of each training, once."""
        name, save = kwargs["description"], kwargs["save_model"]
        if name in stages:
            return real(*args, **kwargs)
        stages.append(name)
        stopped = dataclasses.replace(args[3], eval_epochs=1.0)

        def evaluate_then_stop(model, evaluate=kwargs["evaluate"], calls=[]):  # noqa: B006
            calls.append(model)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return evaluate(model)

        return real(*args[:3], stopped, *args[4:], **{**kwargs, "evaluate": evaluate_then_stop, "save_model": save})

    monkeypatch.setattr(training_run, "train", stop_once)
    monkeypatch.setattr(finetune_sparsity, "train", stop_once)
    resume = []
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            finetune(recipes, output_dir, *resume)
        AcceleratorState._reset_state(reset_partial_state=True)
        resume = ["--resume_from_checkpoint", "latest"]
    finetune(recipes, output_dir, *resume)
    assert len(stages) == 3
    for name in ("vanilla/model", "merged"):
        weights = snapshot(output_dir / name)["model.safetensors"]
        assert weights == snapshot(finished / name)["model.safetensors"], name


def test_two_processes_give_the_same_counts(recipes, finished, tmp_path):
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1"]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    args = ["--model_name_or_path", finished / "vanilla" / "model", "--eval_batch_size", "30", "--no_baseline"]
    done = run_python(*launch, SCRIPT, "--recipe", recipes[1], "--output_dir", tmp_path / "out", *args)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("accuracy@1") == 1  # one table, from the main process
    one = json.loads((finished / "results.json").read_text())
    two = json.loads((tmp_path / "out" / "results.json").read_text())
    for name in (
        "accuracy",
        "accuracy_top5",
        "nonzero_share",
        "nonzero_share_per_layer",
        "num_examples",
        "num_tokens",
    ):
        assert two["before"][name] == pytest.approx(one["before"][name], abs=1e-4)
    assert two["recipe"]["num_tokens"] == one["recipe"]["num_tokens"]
    assert two["recipe"]["loss"] == pytest.approx(one["recipe"]["loss"], abs=1e-3)


# --- bad input -------------------------------------------------------------------------------------------------------


BAD = {
    "missing model": (["--model_name_or_path", "./nowhere"], "--model_name_or_path: there is no folder ./nowhere"),
    "missing data": (["--dataset", "./nowhere"], "--model_name_or_path: give a classifier of ./nowhere"),
    "rank too large": (["--lora_rank", "17"], "--lora_rank: 17 is more than vit.layers.0.attention.q_proj (16, 16)"),
    "no rank": (["--lora_rank", "0"], "--lora_rank: 0 is too few"),
    "unknown recipe": (["--recipe", "vit_digit_finetune"], "did you mean vit_digits_finetune"),
    "unknown vanilla recipe": (["--vanilla_recipe", "vit_digit"], "did you mean vit_digits"),
    "negative steps": (["--mixing_steps", "-1"], "--mixing_steps: -1 is negative"),
    "unknown field": (["--model.zeroth_bais", "true"], "--model.zeroth_bais: sparse_vit has no such field"),
    "named checkpoint": (["--resume_from_checkpoint", "x"], "--resume_from_checkpoint: 'x'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, recipes, tmp_path, capsys, monkeypatch):
    args, message = BAD[case]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_info:
        finetune_sparsity.main(["--recipe", recipes[1], "--output_dir", "out", *args])
    assert exit_info.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(lines) == 1
    assert message in lines[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ViTForImageClassification(ViTConfig(num_hidden_layers=1, image_size=8, num_labels=7, patch_size=4)),
         "--dataset: it has 10 classes, but"),
        (lambda: DeiTForImageClassification(DeiTConfig(num_hidden_layers=1, image_size=8, patch_size=4)),
         "is a deit; the recipe is for vit and"),
    ],
    ids=["class count", "family"],
)  # fmt: skip
def test_checkpoint_that_does_not_fit(make, message, recipes, tmp_path, capsys):
    make().save_pretrained(tmp_path / "model")
    with pytest.raises(SystemExit):
        finetune(recipes, tmp_path / "out", "--model_name_or_path", str(tmp_path / "model"))
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    pipeline,
)

from helpers import snapshot
from sparsight import CrateConfig, CrateForImageClassification, CrateModel
from sparsight.modeling.convert_crate import main
from sparsight.modeling.crate_checkpoints import (
    config_from_official,
    from_official,
    load_official_checkpoint,
    to_official,
)
from sparsight.modeling.files import temporary_path
from sparsight.modeling.remote_code import collect_source_files


CODE = collect_source_files(CrateForImageClassification)
CONVERTED = sorted([*CODE, "config.json", "model.safetensors", "preprocessor_config.json"])


def make_official(**overrides) -> dict[str, torch.Tensor]:
    """A small random checkpoint in the authors' layout."""
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 8, "patch_size": 4}
    torch.manual_seed(0)
    return to_official(CrateForImageClassification(CrateConfig(**sizes | {"num_labels": 6} | overrides)))


def run_cli(*arguments) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "sparsight.modeling.convert_crate", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_command_line_to_pipeline_and_back(tmp_path, golden_crate):
    arguments = golden_crate.facts["official_arguments"]
    wrapped = {"epoch": 3, "state_dict": {f"module.{name}": value for name, value in golden_crate.official.items()}}
    torch.save(wrapped, tmp_path / "official.pth")
    process = run_cli(
        *("--checkpoint", tmp_path / "official.pth", "--output", tmp_path / "model"),
        *("--num_attention_heads", arguments["heads"], "--pooling", arguments.get("pool", "cls")),
    )
    assert (process.returncode, process.stderr) == (0, "")

    assert sorted(os.listdir(tmp_path)) == ["model", "official.pth"]
    assert sorted(os.listdir(tmp_path / "model")) == CONVERTED
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "model")
    logits = model(golden_crate.tensors["pixel_values"]).logits
    torch.testing.assert_close(logits, golden_crate.tensors["logits"], rtol=0, atol=1e-5)

    process = run_cli("--reverse", "--checkpoint", tmp_path / "model", "--output", tmp_path / "back.pth")
    assert (process.returncode, process.stderr) == (0, "")
    back = torch.load(tmp_path / "back.pth", weights_only=True)["state_dict"]
    assert back.keys() == golden_crate.official.keys()
    assert all(torch.equal(value, golden_crate.official[name]) for name, value in back.items())


def test_pipeline_classifies_with_what_conversion_wrote(tmp_path):
    save_file(make_official(), tmp_path / "official.safetensors")
    convert = ["--checkpoint", str(tmp_path / "official.safetensors"), "--num_attention_heads", "3"]
    assert main([*convert, "--output", str(tmp_path / "model")]) == 0
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8))
    predictions = pipeline("image-classification", model=str(tmp_path / "model"), top_k=6)(image)
    pixel_values = AutoImageProcessor.from_pretrained(tmp_path / "model")(image, return_tensors="pt").pixel_values
    assert pixel_values.shape == (1, 3, 8, 8)
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "model")
    expected = model(pixel_values).logits.softmax(-1)[0]
    assert {p["label"]: p["score"] for p in predictions} == pytest.approx(
        {f"LABEL_{label}": score.item() for label, score in enumerate(expected)}, abs=1e-6
    )


def test_image_processor_is_the_authors_evaluation_transform(tmp_path):
    torch.save(make_official(image_size=224, patch_size=112), tmp_path / "official.pth")
    convert = ["--checkpoint", str(tmp_path / "official.pth"), "--num_attention_heads", "3"]
    assert main([*convert, "--output", str(tmp_path / "model")]) == 0
    processor = AutoImageProcessor.from_pretrained(tmp_path / "model")
    # 512×256 is resized to 512/2×256, of which the central 224² are kept.
    pixels = np.zeros((512, 512, 3), dtype=np.uint8)
    pixels[32:-32, 32:-32] = 255
    (pixel_values,) = processor(Image.fromarray(pixels), return_tensors="pt").pixel_values
    white = (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(pixel_values[:, 1:-1, 1:-1], white.view(3, 1, 1).expand(3, 222, 222))


@pytest.mark.parametrize(
    ("overrides", "arguments"),
    [
        ({}, []),
        ({"num_channels": 1}, []),
        ({"num_attention_heads": 1}, []),
        ({"num_attention_heads": 1, "head_dim": 5}, []),
        ({"head_dim": 7}, []),
        ({"num_labels": 21842}, []),
        ({"image_size": [8, 24]}, ["--image_size", "8", "24"]),
        ({"image_size": [24, 8], "patch_size": [4, 2]}, ["--image_size", "24", "8", "--patch_size", "4", "2"]),
        ({"image_size": [4, 9], "patch_size": [4, 3], "num_channels": 2}, ["--image_size", "4", "9"]),
        ({"image_size": [4, 6], "patch_size": [2, 3]}, ["--patch_size", "2", "3"]),
        ({"num_channels": 4}, ["--image_size", "8", "8"]),
        ({"ista_step_size": 0.2, "ista_lambda": 0.5, "pooling": "mean"}, []),
    ],
)
def test_every_form_is_recognised(tmp_path, overrides, arguments):
    official = make_official(**overrides)
    torch.save(official, tmp_path / "official.pth")
    heads = overrides.get("num_attention_heads", 3)
    for name in ("ista_step_size", "ista_lambda", "pooling"):
        if name in overrides:
            arguments = [*arguments, f"--{name}", str(overrides[name])]
    convert = ["--checkpoint", str(tmp_path / "official.pth"), "--num_attention_heads", str(heads)]
    assert main([*convert, "--output", str(tmp_path / "model"), *arguments]) == 0
    model = CrateForImageClassification.from_pretrained(tmp_path / "model")
    assert {name: getattr(model.config, name) for name in overrides} == overrides
    assert all(torch.equal(value, official[name]) for name, value in to_official(model).items())


def test_published_demo_checkpoint():
    """224², patch 8, 21,842 classes, 6 heads: by shapes alone, without the memory."""
    with torch.device("meta"):
        config = CrateConfig.preset("base", num_attention_heads=6, patch_size=8, num_labels=21842)
        official = to_official(CrateForImageClassification(config))
    assert config_from_official(official, num_attention_heads=6).to_dict() == config.to_dict()


def test_precision_of_the_checkpoint_is_kept(tmp_path):
    official = {name: value.to(torch.bfloat16) for name, value in make_official().items()}
    assert from_official(official, config_from_official(official, 3)).dtype == torch.bfloat16


BAD_INPUTS = [
    "no file",
    "text",
    "objects",
    "safetensors",
    "no state dict",
    "vit",
    "keys",
    "shapes",
    "no projection",
    "projection",
    "heads",
    "zero heads",
    "heads missing",
    "heads no number",
    "rectangular",
    "image size",
    "ambiguous",
    "patch size",
    "step size",
    "pooling",
    "no checkpoint",
    "zero image size",
    "negative patch size",
    "int8",
    "sparse",
    "NaN",
    "infinity",
    "numbers for names",
    "names twice",
    "unprintable name",
    "layer missing",
    "layer far away",
    "no patch",
    "no classes",
]


def _bad_inputs(folder):
    """Name → (arguments, what the message has to say)."""
    official = make_official()

    def saved(name, state_dict):
        torch.save(state_dict, folder / name)
        return ["--checkpoint", folder / name]

    heads = ["--num_attention_heads", "3"]
    matrix = "transformer.layers.1.1.fn.weight"

    def altered(name, change):
        return saved(name, official | {matrix: change(official[matrix])}) + heads

    (folder / "text.pth").write_text("no pickle")
    torch.save({"a": object}, folder / "objects.pth")
    (folder / "text.safetensors").write_text("no tensors")
    vit = ViTForImageClassification(ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=8))
    renamed = {name.replace("layers.1.0.norm.weight", "extra"): value for name, value in official.items()}
    misshapen = official | {"transformer.layers.1.1.fn.weight": torch.zeros(3, 3)}
    gap = {name.replace("layers.1.", "layers.2."): value for name, value in official.items()}
    no_projection = {name: value for name, value in official.items() if ".to_out." not in name}
    rectangular = make_official(image_size=(8, 24))
    good = saved("good.pth", official)
    image_size = ["--image_size", "4", "6"]
    return {
        "no file": (["--checkpoint", folder / "none.pth", *heads], ["--checkpoint", "no such file"]),
        "text": (["--checkpoint", folder / "text.pth", *heads], ["--checkpoint", "text.pth", "safetensors"]),
        "objects": (["--checkpoint", folder / "objects.pth", *heads], ["--checkpoint", "weights_only=True"]),
        "safetensors": (["--checkpoint", folder / "text.safetensors", *heads], ["--checkpoint", "text.safetensors"]),
        "no state dict": (saved("list.pth", [torch.zeros(1)]) + heads, ["--checkpoint", "state dict"]),
        "vit": (saved("vit.pth", vit.state_dict()) + heads, ["cls_token", "vit.embeddings.cls_token"]),
        "keys": (saved("keys.pth", renamed) + heads, ["transformer.layers.1.0.norm.weight", "transformer.extra"]),
        "shapes": (saved("shapes.pth", misshapen) + heads, ["transformer.layers.1.1.fn.weight [3, 3]", "[12, 12]"]),
        "no projection": (saved("none.pth2", no_projection) + heads, ["--num_attention_heads 3", "to_out", "1 head"]),
        "projection": ([*good, "--num_attention_heads", "1"], ["--num_attention_heads 1", "to_out", "several"]),
        "heads": ([*good, "--num_attention_heads", "5"], ["--num_attention_heads 5", "12", "fn.qkv.weight"]),
        "zero heads": ([*good, "--num_attention_heads", "0"], ["--num_attention_heads 0"]),
        "heads missing": (good, ["--num_attention_heads", "give it"]),
        "heads no number": ([*good, "--num_attention_heads", "x"], ["--num_attention_heads", "'x'"]),
        "rectangular": (saved("rectangular.pth", rectangular) + heads, ["--image_size", "12 patches"]),
        "image size": ([*good, *heads, "--image_size", "9", "9"], ["--image_size 9 9", "4 patches"]),
        "ambiguous": (
            [*saved("ambiguous.pth", make_official(image_size=(4, 6), patch_size=(2, 3))), *heads, *image_size],
            ["--image_size 4 6", "--patch_size"],
        ),
        "patch size": ([*good, *heads, "--patch_size", "3", "3"], ["--patch_size 3 3"]),
        "step size": ([*good, *heads, "--ista_step_size", "-1"], ["--ista_step_size -1", "positive"]),
        "pooling": ([*good, *heads, "--pooling", "max"], ["--pooling", "'max'"]),
        "no checkpoint": (heads, ["--checkpoint"]),
        "zero image size": ([*good, *heads, "--image_size", "0", "0"], ["--image_size 0 0", "positive"]),
        "negative patch size": ([*good, *heads, "--patch_size", "-4", "4"], ["--patch_size -4 4", "positive"]),
        "int8": (
            saved("int8.pth", {name: value.to(torch.int8) for name, value in official.items()}) + heads,
            ["cls_token (int8)", "before it was quantised"],
        ),
        "sparse": (altered("sparse.pth", lambda weight: weight.to_sparse()), [f"{matrix} (sparse_coo)", "pruned"]),
        "NaN": (altered("nan.pth", lambda weight: weight * torch.nan), ["NaN", matrix, "before the training"]),
        "infinity": (altered("infinity.pth", lambda weight: weight / 0), ["infinite", matrix]),
        "numbers for names": (saved("numbers.pth", dict(enumerate(official.values()))) + heads, ["by name", "model"]),
        "names twice": (saved("twice.pth", official | {"module.cls_token": torch.ones(1)}) + heads, ["twice"]),
        "unprintable name": (
            saved("name.pth", official | {"a\n\x1b\ud800": torch.ones(1)}) + heads,
            [r"a\n\x1b\ud800"],
        ),
        "layer missing": (saved("gap.pth", gap) + heads, ["layers are missing", "give"]),
        "layer far away": (
            saved("far.pth", official | {"transformer.layers.99999999.0.norm.weight": torch.ones(12)}) + heads,
            ["layers are missing", "give"],
        ),
        "no patch": (
            saved("patch.pth", official | {"pos_embedding": torch.zeros(1, 1, 12)}) + heads,
            ["pos_embedding"],
        ),
        "no classes": (
            saved("class.pth", official | {"mlp_head.1.weight": torch.zeros(0, 12)}) + heads,
            ["keys mlp_head.1.weight are missing or misshapen"],
        ),
    }


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, capsys, name):
    cases = _bad_inputs(tmp_path)
    assert list(cases) == BAD_INPUTS
    arguments, expected = cases[name]
    before = sorted(os.listdir(tmp_path))
    try:
        code = main([*map(str, arguments), "--output", str(tmp_path / "model")])
    except SystemExit as exit_:
        code = exit_.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("python -m sparsight.modeling.convert_crate: error: ")
    assert [text for text in expected if text not in captured.err] == []
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("form", ["zip", "pickle", "safetensors"])
def test_cut_file_is_one_line_and_writes_nothing(tmp_path, capsys, form):
    """At every length up to some hundred bytes and at many beyond, torch and safetensors fail in ways of their own."""
    whole, cut = tmp_path / f"whole.{form}", tmp_path / f"cut.{form}"
    if form == "safetensors":
        save_file(make_official(), whole)
    else:
        torch.save(make_official(), whole, _use_new_zipfile_serialization=form == "zip")
    content = whole.read_bytes()
    for length in [*range(0, 300, 7), *range(300, len(content), 499), len(content) - 1]:
        cut.write_bytes(content[:length])
        arguments = ["--checkpoint", str(cut), "--num_attention_heads", "3", "--output", str(tmp_path / "model")]
        assert main(arguments) == 2, length
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"--checkpoint {cut}: cannot be read as a file of tensors; give a whole .pth" in error
    assert sorted(os.listdir(tmp_path)) == sorted([whole.name, cut.name])


WRAPPINGS = {
    "state_dict": lambda official: {"state_dict": official, "epoch": 3},
    "model": lambda official: {"model": official, "optimizer": {"state": {}}, "args": argparse.Namespace(lr=0.1)},
    "model_state_dict": lambda official: {"model_state_dict": official, "loss": 0.1},
    "model, state_dict": lambda official: {"model": {"state_dict": official}},
    "name of the model": lambda official: {"model": "crate", "state_dict": official},
    "compiled": lambda official: {"model": {f"module._orig_mod.{name}": value for name, value in official.items()}},
    "parameters": lambda official: {name: torch.nn.Parameter(value) for name, value in official.items()},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_every_wrapping_is_taken_off(tmp_path, wrapping):
    official = make_official()
    torch.save(WRAPPINGS[wrapping](official), tmp_path / "official.pth")
    loaded = load_official_checkpoint(tmp_path / "official.pth")
    assert loaded.keys() == official.keys()
    assert all(torch.equal(value, official[name]) for name, value in loaded.items())


def test_bad_input_from_the_shell(tmp_path):
    torch.save(make_official(), tmp_path / "official.pth")
    arguments = ("--checkpoint", tmp_path / "official.pth", "--num_attention_heads", 5, "--output", tmp_path / "model")
    process = run_cli(*arguments)
    assert process.returncode == 2
    assert process.stderr.count("\n") == 1
    assert "--num_attention_heads 5" in process.stderr
    assert os.listdir(tmp_path) == ["official.pth"]


@pytest.fixture
def checkpoint(tmp_path) -> list[str]:
    torch.save(make_official(), tmp_path / "official.pth")
    return ["--checkpoint", str(tmp_path / "official.pth"), "--num_attention_heads", "3"]


def test_existing_output_is_replaced_on_demand_only(tmp_path, checkpoint, capsys):
    output = tmp_path / "model"
    output.mkdir()
    assert main([*checkpoint, "--output", str(output)]) == 0  # an empty folder is no loss
    (output / "notes.txt").write_text("mine")
    assert main([*checkpoint, "--output", str(output)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (output / "notes.txt").exists()
    assert main([*checkpoint, "--output", str(output), "--overwrite"]) == 0
    assert sorted(os.listdir(output)) == CONVERTED
    assert sorted(os.listdir(tmp_path)) == ["model", "official.pth"]


def test_overwrite_spares_what_is_no_model(tmp_path, checkpoint, capsys):
    output = tmp_path / "home"
    output.mkdir()
    (output / "thesis.tex").write_text("mine")
    assert main([*checkpoint, "--output", str(output), "--overwrite"]) == 2
    assert "no config.json" in capsys.readouterr().err
    assert os.listdir(output) == ["thesis.tex"]
    assert main([*checkpoint, "--output", str(tmp_path), "--overwrite"]) == 2
    assert "holds the checkpoint itself" in capsys.readouterr().err
    assert (tmp_path / "official.pth").exists()


def test_a_failed_write_leaves_the_previous_folder(tmp_path, checkpoint, monkeypatch, capsys):
    output = tmp_path / "model"
    assert main([*checkpoint, "--output", str(output)]) == 0
    before = {name: (output / name).read_bytes() for name in os.listdir(output)}

    def full_disk(self, folder, **kwargs):
        folder.mkdir()
        (folder / "model.safetensors").write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr(CrateForImageClassification, "save_pretrained", full_disk)
    assert main([*checkpoint, "--output", str(output), "--overwrite"]) == 2
    assert capsys.readouterr().err.endswith("no space left\n")
    assert {name: (output / name).read_bytes() for name in os.listdir(output)} == before
    assert sorted(os.listdir(tmp_path)) == ["model", "official.pth"]


def test_a_failed_replacement_puts_the_previous_folder_back(tmp_path, checkpoint, monkeypatch):
    output, rename = tmp_path / "model", Path.rename
    assert main([*checkpoint, "--output", str(output)]) == 0
    before = {name: (output / name).read_bytes() for name in os.listdir(output)}

    def rename_all_but_new(self, target):
        if self == temporary_path(output):
            raise OSError("no permission")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_all_but_new)
    assert main([*checkpoint, "--output", str(output), "--overwrite"]) == 2
    assert {name: (output / name).read_bytes() for name in os.listdir(output)} == before
    assert sorted(os.listdir(tmp_path)) == ["model", "official.pth"]


def test_a_replacement_that_was_killed_is_no_empty_place(tmp_path, checkpoint, capsys):
    """Killed between the two renamings, it left the previous folder aside: that still takes `--overwrite`."""
    output = tmp_path / "model"
    assert main([*checkpoint, "--output", str(output)]) == 0
    before = snapshot(output)
    output.rename(temporary_path(output).with_name(".model.old"))
    assert main([*checkpoint, "--output", str(output)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert snapshot(output) == before


def test_reverse_writes_safetensors_too(tmp_path, checkpoint, capsys):
    assert main([*checkpoint, "--output", str(tmp_path / "model")]) == 0
    reverse = ["--reverse", "--checkpoint", str(tmp_path / "model"), "--output", str(tmp_path / "back.safetensors")]
    assert main(reverse) == 0
    assert "3 heads of 4, step size 0.1, lambda 0.1, pooling cls" in capsys.readouterr().out
    official = make_official()
    back = load_file(tmp_path / "back.safetensors")
    assert back.keys() == official.keys()
    assert all(torch.equal(value, official[name]) for name, value in back.items())
    assert main(reverse) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*reverse, "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("model", "output", "message"),
    [
        (CrateForImageClassification, "back", "ends in .pth or .safetensors"),
        (CrateModel, "back.pth", "it lacks classifier.bias, classifier.weight, layernorm.bias, layernorm.weight"),
        (ViTForImageClassification, "back.pth", "its model type is vit"),
        (None, "back.pth", "config.json"),
    ],
)
def test_reverse_refuses_what_is_no_crate_classifier(tmp_path, capsys, model, output, message):
    if model is not None:
        config_class = ViTConfig if model is ViTForImageClassification else CrateConfig
        sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "image_size": 8, "patch_size": 4}
        model(config_class(**sizes)).save_pretrained(tmp_path / "model")
    capsys.readouterr()
    code = main(["--reverse", "--checkpoint", str(tmp_path / "model"), "--output", str(tmp_path / output)])
    error = capsys.readouterr().err
    assert code == 2
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / output).exists()


def cut_weights(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def make_weights_nan(folder: Path) -> None:
    state_dict = load_file(folder / "model.safetensors")
    state_dict["classifier.bias"].fill_(torch.nan)
    save_file(state_dict, folder / "model.safetensors", metadata={"format": "pt"})


def with_config(**fields):
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | fields))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut_weights, "incomplete"),
        (make_weights_nan, "NaN or infinite values in mlp_head.1.bias"),
        (lambda folder: (folder / "config.json").write_text("{"), "not a valid JSON file"),
        (with_config(num_hidden_layers=1), "its config.json leaves out crate.layers.1."),
        (with_config(num_labels=4), "other shapes of classifier.bias, classifier.weight"),
        (with_config(hidden_size="twelve"), "hidden_size"),
        (with_config(patch_size=0), "`patch_size` must be positive"),
        (with_config(dtype="float33"), "float33"),
        (with_config(model_type="crates"), "contains custom code"),
    ],
)
def test_reverse_refuses_an_altered_folder(tmp_path, checkpoint, capsys, change, message):
    assert main([*checkpoint, "--output", str(tmp_path / "model")]) == 0
    change(tmp_path / "model")
    capsys.readouterr()
    assert main(["--reverse", "--checkpoint", str(tmp_path / "model"), "--output", str(tmp_path / "back.pth")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert "give a" in captured.err
    assert sorted(os.listdir(tmp_path)) == ["model", "official.pth"]


@pytest.mark.parametrize("overrides", [{"nonnegative": False}, {"layer_norm_eps": 1e-6}, {"num_labels": 0}])
def test_what_the_authors_code_cannot_compute_has_no_reverse(overrides):
    with pytest.raises(ValueError, match=next(iter(overrides))):
        make_official(**overrides)

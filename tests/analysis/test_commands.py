# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    BertConfig,
    BertModel,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
    ViTMAEConfig,
    ViTMAEForPreTraining,
)

from helpers import snapshot
from sparsight import CrateConfig, CrateForImageClassification
from sparsight.analysis.__main__ import main
from sparsight.analysis.data import digits_images, image_loader
from sparsight.analysis.rate_reduction import layerwise_rate_reduction
from sparsight.analysis.sparsity import SparsityMeter


SIZES = {"hidden_size": 16, "num_attention_heads": 4, "image_size": 8, "patch_size": 4}
PROCESSOR = ViTImageProcessorPil(size={"height": 8, "width": 8})


@pytest.fixture
def checkpoints(tmp_path) -> list[str]:
    torch.manual_seed(0)
    crate = CrateForImageClassification(CrateConfig(num_hidden_layers=3, **SIZES))
    vit = ViTForImageClassification(ViTConfig(num_hidden_layers=2, intermediate_size=32, **SIZES))
    for name, model in (("crate", crate), ("vit", vit)):
        model.save_pretrained(tmp_path / name)
        PROCESSOR.save_pretrained(tmp_path / name)
    return [str(tmp_path / "crate"), str(tmp_path / "vit")]


def test_rate_reduction_prints_the_table_and_writes_the_figure(tmp_path, checkpoints):
    figure = tmp_path / "figures" / "rates.png"
    command = [sys.executable, "-m", "sparsight.analysis", "rate-reduction", *checkpoints]
    process = subprocess.run(
        [*command, "--dataset", "digits", "--num_images", "40", "--output", figure],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MPLCONFIGDIR": str(tmp_path)},
    )
    model = CrateForImageClassification.from_pretrained(checkpoints[0])
    loader = image_loader(digits_images()[0][:40], ViTImageProcessorPil.from_pretrained(checkpoints[0]))
    header, *lines, last = process.stdout.splitlines()
    assert header.split()[:2] == ["checkpoint", "layer"]
    assert [line.split()[:2] for line in lines] == [
        *([checkpoints[0], str(number)] for number in (1, 2, 3)),
        *([checkpoints[1], str(number)] for number in (1, 2)),
    ]
    for line, layer in zip(lines, layerwise_rate_reduction(model, loader), strict=False):
        _, _, mean, _, std, share, *_ = line.split()
        assert float(mean) == pytest.approx(layer.compression_rate_mean, abs=2e-3)
        assert float(std) == pytest.approx(layer.compression_rate_std, abs=2e-3)
        assert float(share.rstrip("%")) / 100 == pytest.approx(layer.nonzero_share_mean, abs=2e-4)
    assert last == f"figure: {figure}"
    with Image.open(figure) as image:
        assert image.size == (1500, 600)


def test_rate_reduction_measures_random_initialisation_of_a_folder(tmp_path, checkpoints, capsys):
    (tmp_path / "images").mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(
        tmp_path / "images/a.png"
    )
    arguments = ["rate-reduction", checkpoints[0], "--dataset", str(tmp_path / "images"), "--random_init"]
    assert main([*arguments, "--output", str(tmp_path / "rates.svg")]) == 0
    names = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert names == [checkpoints[0]] * 3 + [f"{checkpoints[0]} (random)"] * 3
    svg = (tmp_path / "rates.svg").read_text()
    assert svg.startswith("<?xml")


def test_sparsity_of_each_layer_as_table_figure_and_numbers(tmp_path, checkpoints, capsys):
    figure = tmp_path / "figures" / "sparsity.svg"
    images = ["--dataset", "digits", "--num_images", "40", "--batch_size", "16"]
    assert main(["sparsity", *checkpoints, *images, "--output", str(figure)]) == 0
    header, *lines, figure_line, numbers_line = capsys.readouterr().out.splitlines()
    assert header.split() == ["checkpoint", "layer", "non-zero", "activations", "non-zero", "derivatives"]
    assert [line.split()[:2] for line in lines] == [
        *([checkpoints[0], layer] for layer in ("1", "2", "3", "all")),
        *([checkpoints[1], layer] for layer in ("1", "2", "all")),
    ]
    assert (figure_line, numbers_line) == (f"figure: {figure}", f"numbers: {figure.with_suffix('.json')}")
    assert figure.read_text().startswith("<?xml")

    numbers = json.loads(figure.with_suffix(".json").read_text())
    assert list(numbers) == checkpoints
    shares = []
    for path, model_class in zip(checkpoints, (CrateForImageClassification, ViTForImageClassification), strict=True):
        model = model_class.from_pretrained(path)
        with torch.no_grad(), SparsityMeter(model) as meter:
            for pixel_values in image_loader(digits_images()[0][:40], PROCESSOR):
                model(pixel_values)
        expected = meter.compute().to_results()
        assert numbers[path] == expected
        shares += [*expected["nonzero_share_per_layer"], expected["nonzero_share"]]
        assert expected["num_tokens"] == 40 * 5
    printed = [float(line.split()[2].rstrip("%")) / 100 for line in lines]
    assert printed == pytest.approx(shares, abs=6e-5)
    assert 0.1 < shares[0] < 0.9


def test_sparsity_of_a_model_that_is_no_classifier(tmp_path, capsys):
    sizes = SIZES | {"intermediate_size": 32, "hidden_act": "relu"}
    ViTMAEForPreTraining(ViTMAEConfig(num_hidden_layers=2, **sizes)).save_pretrained(tmp_path / "mae")
    PROCESSOR.save_pretrained(tmp_path / "mae")
    arguments = ["sparsity", str(tmp_path / "mae"), "--num_images", "3", "--random_init"]
    assert main([*arguments, "--output", str(tmp_path / "sparsity.png")]) == 0
    results = json.loads((tmp_path / "sparsity.json").read_text())
    assert list(results) == [str(tmp_path / "mae"), f"{tmp_path / 'mae'} (random)"]
    for shares in results.values():
        assert len(shares["nonzero_share_per_layer"]) == 2
        assert 0 < shares["nonzero_share"] < 1


BAD_INPUTS = {
    "no command": ([], "the following arguments are required: COMMAND"),
    "unknown command": (["rate-reductoin"], "unknown command 'rate-reductoin'; did you mean rate-reduction?"),
    "no model": (["sparsity"], "the following arguments are required: MODEL"),
    "no folder": (["sparsity", "{tmp}/none"], "argument MODEL: there is no folder {tmp}/none; give one, or a name"),
    "no checkpoint": (["sparsity", "{tmp}/images"], "argument MODEL: {tmp}/images has no config.json; give a folder"),
    "not on the Hub": (["sparsity", "org/none"], "MODEL org/none: cannot be loaded ("),
    "broken config": (["sparsity", "{tmp}/broken"], "MODEL {tmp}/broken: cannot be loaded ("),
    "broken weights": (["sparsity", "{tmp}/cut"], "MODEL {tmp}/cut: cannot be loaded ("),
    "text": (["sparsity", "{tmp}/bert"], "MODEL {tmp}/bert: cannot be loaded ("),
    "no subspaces": (["rate-reduction", "{tmp}/resnet"], "MODEL {tmp}/resnet: cannot be measured (ResNetForImage"),
    "no dataset": (
        ["sparsity", "{tmp}/vit", "--dataset", "{tmp}/none"],
        'argument --dataset: there is no folder {tmp}/none; give one of images, or "digits"',
    ),
    "no images": (
        ["sparsity", "{tmp}/vit", "--dataset", "{tmp}/vit"],
        "there are no images below {tmp}/vit; give a folder that has some",
    ),
    "cut image": (
        ["rate-reduction", "{tmp}/vit", "--dataset", "{tmp}/images"],
        "{tmp}/images/cut.png: cannot be read as an image (",
    ),
    "zero images": (["sparsity", "{tmp}/vit", "--num_images", "0"], "argument --num_images: '0' is no whole number"),
    "no number": (["sparsity", "{tmp}/vit", "--batch_size", "x"], "argument --batch_size: 'x' is no whole number"),
    "no device": (
        ["sparsity", "{tmp}/vit", "--device", "gpu"],
        "argument --device: there is no device 'gpu' here; give one of cpu",
    ),
    "device of another machine": (["sparsity", "{tmp}/vit", "--device", "cuda:99"], "there is no device 'cuda:99'"),
    "no figure": (
        ["sparsity", "{tmp}/vit", "--output", "{tmp}/sparsity.json"],
        "argument --output: {tmp}/sparsity.json has no ending of a figure; give one of .",
    ),
    "no ending": (["sparsity", "{tmp}/vit", "--output", "{tmp}/png"], "argument --output: {tmp}/png has no ending"),
    "eps": (["rate-reduction", "{tmp}/vit", "--eps", "0"], "argument --eps: '0' is no number above 0"),
    "projection": (["rate-reduction", "{tmp}/vit", "--projection", "out"], "argument --projection: invalid choice"),
    "unknown option": (
        ["sparsity", "{tmp}/vit", "--num_image", "3"],
        "--num_image: unknown argument; did you mean --num_images",
    ),
}


@pytest.fixture
def bad_folder(tmp_path, checkpoints, monkeypatch):
    """Checkpoints and images of which something is wrong, in a folder that is also where the command runs."""
    (tmp_path / "images").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "images" / "cut.png")
    (tmp_path / "images" / "cut.png").write_bytes((tmp_path / "images" / "cut.png").read_bytes()[:40])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    resnet = ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1])
    models = {
        "bert": BertModel(BertConfig(vocab_size=10, **small)),
        "resnet": ResNetForImageClassification(resnet),
        "cut": ViTForImageClassification(ViTConfig(**small, image_size=8, patch_size=4)),
    }
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        if name != "bert":
            PROCESSOR.save_pretrained(tmp_path / name)
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"half")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_input_is_one_line_and_writes_nothing(case, bad_folder, capsys):
    arguments, message = BAD_INPUTS[case]
    before = snapshot(bad_folder)
    capsys.readouterr()
    try:
        code = main([argument.replace("{tmp}", str(bad_folder)) for argument in arguments])
    except SystemExit as exit_:
        code = exit_.code
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert (code, captured.out) == (2, "")
    command = [name for name in arguments[:1] if name in ("sparsity", "rate-reduction")]
    assert line.startswith(" ".join(["python -m sparsight.analysis", *command]) + ": error: ")
    assert message.replace("{tmp}", str(bad_folder)) in line
    assert snapshot(bad_folder) == before


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("sklearn", "argument --dataset: digits come with scikit-learn, which is missing; `pip install scikit-learn`"),
        ("matplotlib", "argument --output: figures need matplotlib, which is missing; `pip install matplotlib`"),
    ],
)
def test_a_missing_package_is_named(missing, message, checkpoints, monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find_spec(name))
    with pytest.raises(SystemExit, match="2"):
        main(["sparsity", checkpoints[0]])
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_images_beyond_the_number_are_not_read(bad_folder, checkpoints):
    Image.new("RGB", (8, 8)).save(bad_folder / "images" / "a.png")
    arguments = ["sparsity", checkpoints[0], "--dataset", str(bad_folder / "images")]
    assert main([*arguments, "--num_images", "1"]) == 0
    assert (bad_folder / "sparsity.png").is_file()
    assert main(arguments) == 2

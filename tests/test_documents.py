# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What README and docs promise: examples run, commands are accepted, links lead somewhere, tables are up to date."""

import contextlib
import importlib
import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from accelerate.state import AcceleratorState
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

from helpers import ROOT, TINY_VIT
from sparsight.__main__ import COMMANDS
from sparsight.hub_cards.documents import main as make_tables
from sparsight.training.command_line.recipes import RECIPES
from sparsight.training.data.packing import TextArguments
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.models import ModelArguments
from sparsight.training.engine.run import Run


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/*.md"))]
IDS = [path.stem for path in DOCUMENTS]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(params=DOCUMENTS, ids=IDS)
def document(request) -> str:
    return request.param.read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_readme_is_a_front_door():
    assert len(README.splitlines()) <= 150
    commands = re.findall(r"^(pip install .*)$", README, flags=re.MULTILINE)
    assert commands[:2] == [
        'pip install -e ".[train]" && accelerate launch training/finetune_sparsity.py',
        'pip install -e ".[train,test]" && pytest',
    ]
    assert commands[1] in README[:1500]
    for page in ROOT.glob("docs/*.md"):
        assert f"](docs/{page.name})" in README, page


@pytest.mark.parametrize("path", DOCUMENTS, ids=IDS)
def test_links_and_files_are_there(path):
    text = path.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
        target, _, anchor = link.partition("#")
        target = path.parent / target if target else path
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in {heading.lower().replace(" ", "-") for heading in headings}, link
    rooms = "training|benchmarks|metrics|analysis|modeling|hub_cards|configuration"
    for name in re.findall(rf"`((?:{rooms})/[\w/]+\.(?:py|yaml))`", text):
        assert (ROOT / name).is_file(), name


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with what the examples load, in small: a ViT, an image, and the metrics."""
    config = ViTConfig(**{**TINY_VIT, "image_size": 224, "patch_size": 32})
    ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    ViTImageProcessor().save_pretrained(tmp_path / "vit")
    pixels = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "cat.jpg")
    (tmp_path / "metrics").symlink_to(ROOT / "metrics")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    AcceleratorState._reset_state(reset_partial_state=True)


def test_examples_run(document, place):
    """All Python blocks of a document, one after the other, with the checkpoint of the Hub replaced by a small one."""
    code = "\n".join(blocks(document, "python")).replace("google/vit-base-patch16-224", "vit")
    exec(compile(code, "<example>", "exec"), {"__name__": "example"})


def test_the_observer_of_the_docs_is_ten_lines_and_resumes_with_the_run(place):
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    example = next(block for block in blocks(text, "python") if "class HeadNorm" in block)
    body = re.search(r"class HeadNorm.*?(?=\nrun =)", example, flags=re.DOTALL)[0]
    assert sum(bool(line.strip()) for line in body.splitlines()) <= 11  # the class line and ten
    namespace = {"__name__": "example"}
    exec(compile(example, "<example>", "exec"), namespace)
    assert len(json.loads((place / "head-norm" / "head_norm.json").read_text())["norms"]) == 20


def find_commands(program: str) -> list[str]:
    text = "\n".join(block for path in DOCUMENTS for block in blocks(path.read_text(encoding="utf-8"), "sh"))
    return re.findall(rf"^{program} (.*)$", text, flags=re.MULTILINE)


class Accepted(Exception):
    """A command line came as far as its work."""


def test_training_commands_are_accepted(monkeypatch, tmp_path):
    """Every command line of ours, by its script, up to where the output folder would be looked at."""

    def accept(self, loop, settings, accelerator=None):
        settings.check()
        raise Accepted

    monkeypatch.setattr(Run, "__init__", accept)
    monkeypatch.chdir(tmp_path)
    commands = sorted(set(find_commands("accelerate launch")))
    assert len(commands) > 15
    for command in commands:
        script, *args = command.split()
        module = importlib.import_module(f"sparsight.training.{Path(script).stem}")
        with pytest.raises(Accepted):
            module.main(args)


def test_commands_of_sparsight_are_accepted(monkeypatch, tmp_path, capsys):
    """Each names a command, and its options are in that command's help."""
    commands = sorted(set(find_commands("sparsight")))
    assert {command.split()[0] for command in commands} == set(COMMANDS)
    for command in commands:
        name, *args = command.split()
        module = importlib.import_module(COMMANDS[name].module)
        subcommand = args[:1] if name == "analyze" else []
        with contextlib.suppress(SystemExit):
            module.main([*subcommand, "--help"])
        text = capsys.readouterr().out
        for flag in (arg for arg in args if arg.startswith("--")):
            assert flag in text, command


def test_benchmark_commands_are_accepted():
    """Their options are the benchmark's, the protocol's, or, for T5, those of pretraining."""
    pretraining = {field.name for part in (ModelArguments, TextArguments, LoopArguments) for field in fields(part)}
    commands = re.findall(r"python benchmarks/(\w+)\.py([^`\n]*)", "\n".join(map(Path.read_text, DOCUMENTS)))
    assert {script for script, _ in commands} == {path.stem for path in ROOT.glob("benchmarks/bench_*.py")}
    for script, line in commands:
        text = "".join((ROOT / "benchmarks" / f"{name}.py").read_text() for name in (script, "protocol"))
        for flag in (word for word in line.split() if word.startswith("--")):
            assert f'"{flag}"' in text or (script == "bench_t5_data" and flag[2:] in pretraining), (script, flag)


def test_every_recipe_is_in_the_docs():
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(\w+)`", text)) | {
        "crate_small_imagenet",
        "crate_base_imagenet",
    }  # between the two named
    assert {path.stem for path in RECIPES.glob("*.yaml")} <= listed


def test_tables_are_up_to_date():
    assert make_tables([*map(str, DOCUMENTS), "--check"]) == 0


# --- the command that makes them -------------------------------------------------------------------------------------


PLACE = "before\n<!-- sparsight tables: results {models}-->\nold\n<!-- end -->\nafter\n"


@pytest.fixture
def page(tmp_path):
    (tmp_path / "results").mkdir()
    for seed, accuracy in enumerate((0.5, 0.7)):
        model = {"accuracy": accuracy, "loss": 1.0 + seed, "nonzero_share_per_layer": [0.25, 0.5]}
        values = {**model, "before": model, "lora": {**model, "accuracy": 1.0}}
        (tmp_path / "results" / f"seed-{seed}.json").write_text(json.dumps(values))
    return tmp_path / "page.md"


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_mean_and_deviation_over_seeds(page, capsys):
    page.write_text(PLACE.format(models="before lora "))
    assert make_tables([str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- sparsight tables: results before lora -->\n| ")
    assert text.endswith("|\n<!-- end -->\nafter\n")
    deviation = np.std([0.5, 0.7], ddof=1)
    header, rule, *body = rows(text)
    assert header == ["", "before", "LoRA"]
    assert all(re.fullmatch("-+:?", cell) for cell in rule)
    assert body == [
        ["accuracy", f"60.00% ± {deviation:.2%}", "100.00% ± 0.00%"],
        ["loss", "1.5000 ± 0.7071", "1.5000 ± 0.7071"],
        ["layer 1", "25.00% ± 0.00%", "25.00% ± 0.00%"],
        ["layer 2", "50.00% ± 0.00%", "50.00% ± 0.00%"],
    ]
    assert make_tables([str(page), "--check"]) == 0


def test_results_of_one_model(page):
    page.write_text(PLACE.format(models=""))
    assert make_tables([str(page)]) == 0
    assert rows(page.read_text())[0] == ["", "model"]


def test_check_writes_nothing(page, capsys):
    text = PLACE.format(models="")
    page.write_text(text)
    assert make_tables([str(page), "--check"]) == 1
    assert "is out of date" in capsys.readouterr().out
    assert page.read_text() == text


BAD = {
    "no results": ("<!-- sparsight tables: nowhere -->\n<!-- end -->\n", "nowhere: has no results"),
    "no such model": (PLACE.format(models="after "), "is no results.json of after (KeyError('after'))"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(case, page, capsys):
    text, message = BAD[case]
    page.write_text(text)
    assert make_tables([str(page)], prog="sparsight tables") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sparsight tables: error: ")
    assert message in line
    assert page.read_text() == text

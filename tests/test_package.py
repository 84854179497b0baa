# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The package as a whole: its floors, its import and the wheel."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import ROOT, TINY_VIT, run_python


FLOORS = {
    "configuration": {"configuration"},
    "modeling": {"configuration", "modeling"},
    "analysis": {"configuration", "modeling", "analysis"},
    "metrics": set(),
    "hub_cards": {"configuration", "modeling", "hub_cards"},
    "training": {"configuration", "modeling", "analysis", "hub_cards", "metrics", "training"},
}


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_run_downwards_only(floor):
    for path in (ROOT / floor).rglob("*.py"):
        found = imports(path)
        own = {name.split(".")[1] for name in found if name.startswith("sparsight.")}
        assert own & FLOORS.keys() <= FLOORS[floor], path
        if floor in ("configuration", "modeling"):
            assert not {name.split(".")[0] for name in found} & {"peft", "accelerate", "datasets", "timm"}, path


def test_no_script_shadows_a_library():
    """`python training/x.py` puts training/ first on the path."""
    libraries = {name.split(".")[0] for path in ROOT.rglob("training/*.py") for name in imports(path)}
    assert not {path.stem for path in (ROOT / "training").iterdir()} & (libraries | sys.stdlib_module_names)


def test_import_warns_of_nothing_and_registers_the_families():
    code = (
        "import sparsight, transformers\n"
        "assert transformers.AutoConfig.for_model('sparse_vit').__class__ is sparsight.SparseViTConfig\n"
        "assert all(hasattr(sparsight, name) for name in sparsight.__all__)\n"
    )
    done = run_python("-W", "error", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_import_and_inference_need_the_core_dependencies_only():
    """The extras are blocked, as they would be missing after `pip install sparsight`."""
    code = (
        "import sys\n"
        "for name in ('torchvision', 'timm', 'sklearn', 'matplotlib', 'tensorboard', 'yaml'):\n"
        "    if name != 'yaml': sys.modules[name] = None\n"
        "import torch, sparsight\n"
        f"config = sparsight.SparseViTConfig(**{TINY_VIT!r})\n"
        "model = sparsight.SparseViTForImageClassification(config)\n"
        "print(model(torch.randn(1, 3, 8, 8)).logits.shape)\n"
        "import sparsight.analysis.sparsity\n"
    )
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "[1, 10]" in done.stdout


def test_the_wheel_holds_all_that_the_scripts_need(tmp_path):
    """Built, installed away from the checkout, and a script started from it."""
    ignored = shutil.ignore_patterns(".git", "build", "*.egg-info", "outputs")  # an old build would mix in
    source = shutil.copytree(ROOT, tmp_path / "source", ignore=ignored)
    build = run_python("-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", source)
    assert build.returncode == 0, build.stderr[-2000:]
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    site = tmp_path / "site"
    pip = run_python("-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", site, wheel)
    assert pip.returncode == 0, pip.stderr
    environment = {"PYTHONPATH": str(site)}
    where = run_python("-c", "import sparsight; print(sparsight.__file__)", cwd=tmp_path, **environment)
    assert where.stdout.strip() == str(site / "sparsight" / "__init__.py")

    module = "sparsight.training.train_image_classification"
    args = ["--output_dir", "run", "--max_steps", "2", "--max_train_samples", "64", "--max_eval_samples", "32"]
    done = run_python("-m", module, "--recipe", "vit_digits", *args, cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "run" / "results.json").is_file()
    for source, target in (("training/recipes", "*.yaml"), ("metrics", "*/*.py"), ("hub_cards/templates", "*.md")):
        expected = {path.relative_to(ROOT / source) for path in (ROOT / source).glob(target)}
        installed = site / "sparsight" / source
        assert expected
        assert expected == {path.relative_to(installed) for path in installed.glob(target)}


def test_every_file_has_its_licence():
    files = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in files.split():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not text or "SPDX-License-Identifier: Apache-2.0" in text[:200], name
    assert "Apache License" in (ROOT / "LICENSE").read_text()

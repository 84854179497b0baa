# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The code that a checkpoint carries: what it is, and that it runs where sparsight is not installed."""

import ast
import json
import re
import sys

import pytest
import torch
from transformers import AutoModelForImageClassification
from transformers.dynamic_module_utils import check_imports, get_relative_import_files

import sparsight
from helpers import ROOT, snapshot
from hub_testing import FAMILIES, client_environment, publish, run_code, tensors, tiny_config, tiny_inputs, tiny_models
from loopback_hub import LoopbackHub
from sparsight.modeling import remote_code


AUTO_CLASSES = {
    "crate": {"AutoModel", "AutoModelForImageClassification", "AutoBackbone"},
    "sparse_vit": {"AutoModel", "AutoModelForImageClassification", "AutoModelForMaskedImageModeling"},
    "sparse_t5": {"AutoModel", "AutoModelForSeq2SeqLM", "AutoModelForTextEncoding"},
}
FILES = {
    "crate": {"configuration_crate.py", "losses.py", "modeling_crate.py", "overrides.py", "remote_code.py"},
    "sparse_vit": {
        "activations.py",
        "configuration_sparse_vit.py",
        "losses.py",
        "modeling_sparse_vit.py",
        "overrides.py",
        "remote_code.py",
        "sparse_config.py",
        "sparse_model.py",
        "zeroth_bias.py",
    },
}


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture
def saved(family, tmp_path):
    """A folder of each family."""
    next(iter(tiny_models(family).values())).save_pretrained(tmp_path / family)
    return tmp_path / family


def code_of(folder) -> dict[str, bytes]:
    return {name: content for name, content in snapshot(folder).items() if name.endswith(".py")}


def test_only_what_is_needed_lies_beside_the_weights(family, saved):
    code = code_of(saved)
    assert set(code) == FILES.get(family, set(code))
    needed = {f"configuration_{family}.py", f"modeling_{family}.py"}
    for name in list(needed):
        needed |= {path.rpartition("/")[2] for path in get_relative_import_files(saved / name)}
    assert set(code) == needed


def test_the_config_points_at_every_auto_class(family, saved):
    auto_map = json.loads((saved / "config.json").read_text())["auto_map"]
    assert set(auto_map) == {"AutoConfig"} | AUTO_CLASSES[family]
    for reference in auto_map.values():
        module, _, name = reference.partition(".")
        classes = {node.name for node in ast.parse((saved / f"{module}.py").read_text()).body if hasattr(node, "name")}
        assert name in classes


def test_transformers_accepts_the_files_and_a_reader_too(saved):
    for name in code_of(saved):
        text = (saved / name).read_text(encoding="utf-8")
        relative = check_imports(saved / name)  # raises where a package is missing
        assert all((saved / f"{module}.py").is_file() for module in relative)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                assert node.level or node.module.split(".")[0] != "sparsight"
            elif isinstance(node, ast.Import):
                assert all(alias.name.split(".")[0] != "sparsight" for alias in node.names)
        header, origin = text.splitlines()[1:3]
        assert header == "# SPDX-License-Identifier: Apache-2.0"
        (path,) = re.findall(rf"sparsight/(\w+/{name}) of sparsight {re.escape(sparsight.__version__)} ", origin)
        assert (ROOT / path).is_file()
        assert "register(" not in re.sub(r'"""(.|\n)*?"""', "", text).replace("def register", "")


def test_the_same_sources_give_the_same_bytes(family, saved, tmp_path):
    model = list(tiny_models(family).values())[-1]
    model.save_pretrained(tmp_path / "again")
    assert code_of(tmp_path / "again") == code_of(saved)


def test_saving_leaves_the_config_as_it_was(family, saved, tmp_path):
    """Also one that came with an `auto_map`."""
    model_class = type(next(iter(tiny_models(family).values())))
    model = model_class.from_pretrained(saved)
    before = dict(model.config.auto_map)
    model.save_pretrained(tmp_path / "without", include_code=False)
    assert model.config.auto_map == before
    assert not code_of(tmp_path / "without")
    assert "auto_map" not in json.loads((tmp_path / "without" / "config.json").read_text())
    fresh = model_class(tiny_config(family))
    fresh.save_pretrained(tmp_path / "fresh")
    assert not hasattr(fresh.config, "auto_map")
    assert code_of(tmp_path / "fresh")


def test_only_the_main_process_writes_code(family, tmp_path):
    model = next(iter(tiny_models(family).values()))
    model.save_pretrained(tmp_path / "model", is_main_process=False)
    assert not code_of(tmp_path / "model")


def test_a_users_subclass_brings_the_code_of_its_family(tmp_path):
    class Louder(sparsight.CrateForImageClassification):
        pass

    Louder(tiny_config("crate")).save_pretrained(tmp_path)
    assert set(code_of(tmp_path)) == FILES["crate"]
    assert type(AutoModelForImageClassification.from_pretrained(tmp_path)) is sparsight.CrateForImageClassification


def test_references_to_another_repository_become_the_checkpoints_own(monkeypatch):
    """As transformers has written them on loading a model that runs from a repository's code."""
    monkeypatch.setattr(remote_code, "_INSTALLED", False)
    config = tiny_config("crate")
    config.auto_map = {"AutoModel": "org/crate--modeling_crate.CrateModel"}
    assert remote_code.find_auto_map(type(config), config) == {"AutoModel": "modeling_crate.CrateModel"}


def test_the_required_transformers_is_the_packages():
    assert f'"{remote_code.TRANSFORMERS_REQUIREMENT},' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("from fake_package.parts import blocks", "import single modules"),
        ("from fake_package.parts.model import Block", "of different file names"),
    ],
)
def test_what_cannot_lie_flat_is_refused(tmp_path, monkeypatch, line, message):
    files = {"__init__.py": "", "parts/__init__.py": "", "parts/blocks.py": "", "parts/model.py": "Block = None\n"}
    files |= {"config.py": "class Config: pass\n", "model.py": f"{line}\nclass Model: pass\n"}
    for name, text in files.items():
        path = tmp_path / "fake_package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(remote_code, "PACKAGE", "fake_package")
    monkeypatch.setitem(sys.modules, "fake_package", type(sys)("fake_package"))
    sys.modules["fake_package"].__version__ = "1"
    sys.modules["fake_package"].__path__ = [str(tmp_path / "fake_package")]
    config = type("Config", (), {"__module__": "fake_package.config"})
    model = type("Model", (), {"__module__": "fake_package.model", "config_class": config})
    with pytest.raises(ValueError, match=message):
        remote_code.collect_source_files(model)


# --- where sparsight is not installed --------------------------------------------------------------------------------


LOAD_TRAIN_SAVE = """
import torch, transformers
from pathlib import Path
from torch.utils._pytree import tree_leaves

def tensors(model, inputs):
    return [leaf for leaf in tree_leaves(model(**inputs).to_tuple()) if isinstance(leaf, torch.Tensor)]

folder = Path(sys.argv[1])
for name, (inputs, expected) in torch.load(folder / "expected.pt").items():
    auto_class = getattr(transformers, name)
    model = auto_class.from_pretrained(f"org/{name}", trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    with torch.no_grad():  # as in the other process: with gradients, attention rounds otherwise
        outputs = tensors(model, inputs)
    for actual, value in zip(outputs, expected, strict=True):
        assert torch.equal(actual, value), name

    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sum(tensor.float().square().mean() for tensor in tensors(model, inputs)).backward()
    optimizer.step()
    assert any(not torch.equal(value, before[key]) for key, value in model.state_dict().items())

    model.eval().save_pretrained(folder / "again" / name)
    if name != "AutoBackbone":  # of transformers, which takes any folder for a name on the Hub
        again = auto_class.from_pretrained(folder / "again" / name, trust_remote_code=True).eval()
        for actual, value in zip(tensors(again, inputs), tensors(model, inputs), strict=True):
            assert torch.equal(actual, value), name
    model.save_pretrained(folder / "without" / name, include_code=False)
assert not [name for name in sys.modules if name.partition(".")[0] == "sparsight"]
"""


def test_every_auto_class_without_sparsight(family, tmp_path):
    """Same outputs, trains, and saves again with its code."""
    (tmp_path / "blobs").mkdir()
    hub = LoopbackHub(tmp_path / "blobs", tokens={})
    expected = {}
    for name, model in tiny_models(family).items():
        model.save_pretrained(tmp_path / name)
        publish(hub, f"org/{name}", tmp_path / name)
        expected[name] = (tiny_inputs(model), tensors(model, tiny_inputs(model)))
    torch.save(expected, tmp_path / "expected.pt")
    done = run_code(LOAD_TRAIN_SAVE, tmp_path, **client_environment(hub, tmp_path / "home", token=None))
    hub.stop()
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(expected) == AUTO_CLASSES[family]
    for name in expected:
        assert code_of(tmp_path / "again" / name) == code_of(tmp_path / name)
        configs = [json.loads((tmp_path / where / "config.json").read_text()) for where in (name, f"again/{name}")]
        assert configs[0]["auto_map"] == configs[1]["auto_map"]
        assert not code_of(tmp_path / "without" / name)
    assert not hub.unknown


def test_an_older_transformers_is_named(tmp_path):
    sparsight.CrateModel(tiny_config("crate")).save_pretrained(tmp_path)
    code = """
import importlib.metadata, transformers
installed = importlib.metadata.version
importlib.metadata.version = lambda name: "4.57.1" if name == "transformers" else installed(name)
try:
    transformers.AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True)
except ImportError as error:
    print(error)
"""
    done = run_code(code, tmp_path, HF_HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "transformers>=5.17 is required" in done.stdout
    assert "found transformers==4.57.1" in done.stdout


def test_each_checkpoint_runs_with_its_own_code_until_sparsight_is_imported(tmp_path):
    """Also two of one family and of different code in one process."""
    saved, other = tmp_path / "first", tmp_path / "second"
    sparsight.SparseViTModel(tiny_config("sparse_vit")).save_pretrained(saved)
    other.mkdir()
    for name, content in snapshot(saved).items():
        (other / name).write_bytes(content + b"\nNEWER = True\n" if name.startswith("modeling_") else content)
    code = """
import importlib, sys, transformers
from pathlib import Path
first, second = sys.argv[1:]
models = [transformers.AutoModel.from_pretrained(folder, trust_remote_code=True) for folder in (first, second)]
assert [hasattr(sys.modules[type(model).__module__], "NEWER") for model in models] == [False, True]
try:
    transformers.AutoModel.from_pretrained(first, trust_remote_code=False)
except ValueError as error:
    assert "trust_remote_code" in str(error)
else:
    raise AssertionError("code ran without the flag")
import sparsight
for options in ({}, {"trust_remote_code": True}):
    model = transformers.AutoModel.from_pretrained(first, **options)
    assert type(model).__module__.startswith("sparsight."), type(model)
"""
    done = run_code(code, saved, other, hidden=False, HF_HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr[-3000:]

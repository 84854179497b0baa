# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""transformers' own common tests: fetched for the installed version, unpacked into a cache folder, and imported.

The source distribution has the mixins that lie at the top of its `tests` folder. Of the sub-modules that these import
it has none; stand-ins without tests take their place. Nothing of it is copied into this repository.
"""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from filelock import FileLock


CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sparsight" / "upstream"
# Not `tests`, which is the name of our own folder.
PACKAGE = f"transformers_tests_{transformers.__version__.replace('.', '_')}"

_STAND_INS = {
    "exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "utils/test_configuration_utils.py": "config_common_kwargs = {}\n",
}


class NoSourceDistribution(Exception):
    """The source distribution of the installed transformers is not to be had."""


def fetch() -> Path:
    """The folder of the unpacked tests, downloaded at the first call.

    Raises:
        NoSourceDistribution: if pip does not get it.
    """
    target = CACHE / PACKAGE
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(CACHE / f"{PACKAGE}.lock"):
        if not target.is_dir():
            _unpack(_download(), target)
    return target


def _download() -> Path:
    folder = CACHE / f"{PACKAGE}.download"
    requirement = f"transformers=={transformers.__version__}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    done = subprocess.run([*command, "--dest", folder, requirement], capture_output=True, text=True, check=False)
    archives = list(folder.glob("*.tar.gz"))
    if not archives:
        raise NoSourceDistribution(f"pip download of {requirement}: {done.stderr.strip()[-300:]}")
    return archives[0]


def _unpack(archive: Path, target: Path) -> None:
    temporary = target.with_name(f"{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            path = Path(member.name)
            if member.isfile() and path.match("transformers-*/tests/*.py"):
                (temporary / path.name).write_bytes(tar.extractfile(member).read())
    for name, text in _STAND_INS.items():
        stand_in = temporary / name
        stand_in.parent.mkdir(exist_ok=True)
        stand_in.write_text(text)
        (stand_in.parent / "__init__.py").touch()
    (temporary / "__init__.py").touch()
    temporary.rename(target)
    shutil.rmtree(archive.parent)


def load(module: str) -> ModuleType:
    """A module of transformers' tests, such as `test_modeling_common`.

    Raises:
        NoSourceDistribution: see [`fetch`].
    """
    folder = str(fetch().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(f"{PACKAGE}.{module}")


def marks() -> set[str]:
    """The pytest marks that transformers' tests put on themselves."""
    sources = [*fetch().glob("*.py"), Path(transformers.__file__).parent / "testing_utils.py"]
    return {mark for source in sources for mark in re.findall(r"\bmark\.(\w+)", source.read_text(encoding="utf-8"))}


def load_or_skip(*modules: str) -> list[ModuleType]:
    """The modules; where there is no source distribution, the test file that asks for them is skipped."""
    try:
        return [load(module) for module in modules]
    except NoSourceDistribution as error:
        pytest.skip(f"the source distribution of transformers is not to be had: {error}", allow_module_level=True)


def skipping(reasons: dict[str, str]):
    """A decorator that skips tests of a class: why, by the start of their names.

    Raises:
        ValueError: if the class has no test whose name starts so.
    """

    def decorate(test_class: type) -> type:
        for prefix, reason in reasons.items():
            names = [name for name in dir(test_class) if name.startswith(prefix)]
            if not names:
                raise ValueError(f"{test_class.__name__} has no test that starts with {prefix}")
            for name in names:
                setattr(test_class, name, unittest.skip(reason)(getattr(test_class, name)))
        return test_class

    return decorate


class ImageModelTester:
    """What transformers' mixins ask of a model tester, for models of 8×8 images in patches of 2×2."""

    batch_size = 3
    num_channels = 3
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    is_training = True
    num_labels = 10

    def __init__(self, config_class: type, image_size: int | tuple[int, int] = 8, **fields: Any):
        self.config_class, self.fields = config_class, fields
        self.image_size, self.patch_size = image_size, 2
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        self.shape = (self.batch_size, self.num_channels, height, width)
        num_patches = (height // 2) * (width // 2)
        self.seq_length = num_patches + 1
        self.mask_length, self.num_masks = num_patches, num_patches // 2
        self.num_attention_heads = fields.get("num_attention_heads", self.num_attention_heads)

    def get_config(self):
        sizes = {
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "image_size": self.image_size,
            "patch_size": self.patch_size,
            "num_channels": self.num_channels,
            "num_labels": self.num_labels,
        }
        return self.config_class(**sizes | self.fields)

    def prepare_config_and_inputs_for_common(self):
        generator = torch.Generator().manual_seed(0)
        return self.get_config(), {"pixel_values": torch.rand(self.shape, generator=generator)}

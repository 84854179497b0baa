# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint carries its own code: the source files that a model needs, written beside its weights.

This file is among them, so that a model which runs from its checkpoint's code saves it again.
"""

import ast
import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.models.auto import modeling_auto


PACKAGE = "sparsight"
# What the code needs, as `pyproject.toml` says it.
TRANSFORMERS_REQUIREMENT = "transformers>=5.17"
_REQUIREMENT_CHECK = f'''\
from transformers.utils.versions import require_version


require_version("{TRANSFORMERS_REQUIREMENT}", "Run `pip install -U transformers` to use this checkpoint's code.")

'''
_INSTALLED = __name__.partition(".")[0] == PACKAGE


def find_auto_map(config_class: type[PreTrainedConfig], config: PreTrainedConfig) -> dict[str, str]:
    """`auto_map` of a checkpoint: `module.Class` of its config and of every Auto class that its family serves.

    Args:
        config_class: the family's.
        config: where the model runs from a checkpoint's code, its `auto_map` says what the family serves.
    """
    if not _INSTALLED:
        return {name: reference.rpartition("--")[2] for name, reference in getattr(config, "auto_map", {}).items()}
    classes = {"AutoConfig": config_class}
    for name, auto_class in sorted(vars(modeling_auto).items()):
        mapping = getattr(auto_class, "_model_mapping", None) if isinstance(auto_class, type) else None
        if mapping is not None and auto_class.__name__ == name and config_class in mapping:
            classes[name] = mapping[config_class]
    return {name: f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}" for name, cls in classes.items()}


def find_model_class(model_class: type) -> type[PreTrainedModel]:
    """The class of ours that `model_class` is or derives from: FSDP and users make subclasses."""
    return next(cls for cls in model_class.__mro__ if cls.__module__.rpartition(".")[0] == __package__)


def collect_source_files(model_class: type[PreTrainedModel]) -> dict[str, str]:
    """The text of each file that a model class of ours needs, by the name it has beside the weights.

    The imports inside sparsight are followed from the class's module and turned into imports of sibling files, which
    is what transformers can load. Registrations with the Auto classes are left out: `auto_map` stands in for them, and
    a process that loads two checkpoints runs each with its own code.

    Raises:
        ValueError: if a module imports a package rather than a module, or two modules have the same file name.
    """
    if not _INSTALLED:
        file = sys.modules[model_class.__module__].__file__
        return {Path(path).name: _read(path) for path in sorted({file, *get_relative_import_files(file)})}
    modules, files = [model_class.config_class.__module__, model_class.__module__], {}
    for module in modules:
        spec = importlib.util.find_spec(module)
        name = Path(spec.origin).name
        if spec.submodule_search_locations is not None or name in files:
            raise ValueError(f"{module} cannot lie beside weights: import single modules, of different file names")
        source = _read(spec.origin)
        modules += [found for found in _imported_modules(source) if found not in modules]
        files[name] = _as_sibling(module, source)
    return dict(sorted(files.items()))


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def _is_ours(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.level == 0 and node.module.partition(".")[0] == PACKAGE


def _imported_modules(source: str) -> list[str]:
    return sorted({node.module for node in ast.walk(ast.parse(source)) if _is_ours(node)})


def _is_registration(node: ast.stmt) -> bool:
    """`AutoModel.register(…)` and its like."""
    function = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "register"
        and isinstance(function.value, ast.Name)
        and function.value.id.startswith("Auto")
    )


def _as_sibling(module: str, source: str) -> str:
    """The text of a module as it lies beside the weights."""
    tree, lines = ast.parse(source), source.splitlines(keepends=True)
    kept = [node for node in tree.body if not _is_registration(node)]
    used = {name.id for node in kept for name in ast.walk(node) if isinstance(name, ast.Name)}
    changes = {(node.lineno, node.end_lineno): "" for node in tree.body if _is_registration(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (_is_ours(node) or node in tree.body):
            origin = f".{node.module.rpartition('.')[2]}" if _is_ours(node) else node.module
            names = [ast.unparse(alias) for alias in node.names if (alias.asname or alias.name) in used]
            changes[node.lineno, node.end_lineno] = _import_statement(origin, names, indent=" " * node.col_offset)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for (first, last), text in changes.items():
        lines[first - 1 : last] = [text, *[""] * (last - first)]
    if any(isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "transformers" for node in imports):
        lines[imports[0].lineno - 1] = _REQUIREMENT_CHECK + lines[imports[0].lineno - 1]
    header = next(index for index, line in enumerate(lines) if not line.startswith("#"))
    version = sys.modules[PACKAGE].__version__
    lines.insert(header, f"# Copied from {module.replace('.', '/')}.py of sparsight {version} by `save_pretrained`.\n")
    return re.sub(r"\n{4,}", "\n\n\n", "".join(lines).rstrip()) + "\n"


def _import_statement(module: str, names: list[str], indent: str) -> str:
    if not names:
        return ""
    statement = f"{indent}from {module} import {', '.join(names)}\n"
    if len(statement) <= 120:
        return statement
    return "\n".join((f"{indent}from {module} import (", *(f"{indent}    {name}," for name in names), f"{indent})\n"))


@contextlib.contextmanager
def _saved_with(config: PreTrainedConfig, auto_map: dict[str, str] | None) -> Iterator[None]:
    """Has `config` saved with this `auto_map`, without a copy of its code by transformers, and then as it was."""
    names = ("auto_map", "_auto_class")
    before = {name: vars(config)[name] for name in names if name in vars(config)}
    vars(config).pop("auto_map", None)
    vars(config).update({"_auto_class": None} | ({} if auto_map is None else {"auto_map": auto_map}))
    try:
        yield
    finally:
        for name in names:
            vars(config).pop(name, None)
        vars(config).update(before)


class RemoteCodeMixin:
    """Puts the code that a model needs beside its weights, so that `trust_remote_code=True` loads the checkpoint where
    sparsight is not installed. For the `…PreTrainedModel` of a family, before transformers' own base."""

    def save_pretrained(
        self,
        save_directory: str | os.PathLike,
        is_main_process: bool = True,
        *args,
        include_code: bool = True,
        **kwargs,
    ) -> None:
        """[`PreTrainedModel.save_pretrained`], which this adds to:

        Args:
            include_code: write the source files beside the weights and fill in the config's `auto_map`. Without them
                the checkpoint needs sparsight to be imported.
        """
        auto_map = None
        # Adapters in transformers' own PEFT format are saved without the config that would point at the code.
        if include_code and not getattr(self, "_hf_peft_config_loaded", False):
            model_class = find_model_class(type(self))
            auto_map = find_auto_map(model_class.config_class, self.config)
            if is_main_process:
                Path(save_directory).mkdir(parents=True, exist_ok=True)
                for name, text in collect_source_files(model_class).items():
                    Path(save_directory, name).write_bytes(text.encode())
        with _saved_with(self.config, auto_map):
            super().save_pretrained(save_directory, is_main_process, *args, **kwargs)

    def _get_files_timestamps(self, working_dir: str | os.PathLike) -> dict[str, float]:
        # `save_pretrained(push_to_hub=True)` uploads what is newer than this; the code is written just before.
        code = collect_source_files(find_model_class(type(self)))
        return {name: time for name, time in super()._get_files_timestamps(working_dir).items() if name not in code}

    @classmethod
    def register_for_auto_class(cls, auto_class: str | type = "AutoModel") -> None:
        """Does nothing: what transformers would copy for a registered class, `save_pretrained` here copies anyway."""


__all__ = ["RemoteCodeMixin"]

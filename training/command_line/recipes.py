# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Recipes: YAML files that set any of a script's arguments, and the fields of the model's config under `model`."""

from pathlib import Path
from typing import Any

import yaml

from sparsight.configuration.messages import nearest, single_line
from sparsight.training.command_line.errors import UsageError


RECIPES = Path(__file__).parents[1] / "recipes"


def load_recipe(name: str) -> dict[str, Any]:
    """The fields of a recipe: a name from `training/recipes`, or the path of a YAML file.

    Raises:
        UsageError: if there is no such recipe, or the file is not a mapping.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else RECIPES / f"{name}.yaml"
    if not path.is_file():
        raise UsageError(f"--recipe: no recipe {name!r}; {nearest(name, (p.stem for p in RECIPES.glob('*.yaml')))}")
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"--recipe: {path} is not YAML ({single_line(error)}); mend it") from error
    if not isinstance(recipe, dict):
        raise UsageError(f"--recipe: {path} must hold a mapping of argument names to values")
    if not isinstance(recipe.get("model") or {}, dict):
        raise UsageError(f"--recipe: {path}: `model` must hold a mapping of config fields to values")
    return recipe

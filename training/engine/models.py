# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Models of any task, fresh or from a checkpoint."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedModel

import sparsight  # noqa: F401  (registers the families)
from sparsight.configuration.messages import nearest, single_line
from sparsight.training.command_line.arguments import argument
from sparsight.training.engine.places import is_here


@dataclass
class ModelArguments:
    """What to train."""

    recipe: str | None = argument(
        "A recipe by name, or a YAML file. Default: <model_type>_<data set> on the embedded data, else none.",
        on_card=True,
    )
    model_type: str | None = argument("Family to train from scratch. Default: the sparse one of the task.")
    model_name_or_path: str | None = argument("Start from this checkpoint in place of scratch.")
    model: dict[str, Any] = field(default_factory=dict, init=False)


def find_families(auto_class: type) -> list[str]:
    """The model types of sparsight that an Auto class has a model for."""
    return sorted(config.model_type for config in auto_class._model_mapping._extra_content)


def check_model_fields(config_class: type, model: dict[str, Any]) -> None:
    """Check the names of config fields that a user gave.

    Raises:
        ValueError: if the config does not have one.
    """
    known = {field.name for field in fields(config_class)}
    for name in model.keys() - known:
        raise ValueError(f"model.{name}: {config_class.model_type} has no such field; {nearest(name, known)}")


def make_config(families: list[str], model_type: str, model: dict[str, Any], **kwargs: Any) -> PreTrainedConfig:
    """The config of a model to train from scratch.

    Args:
        families: model types to choose from.
        model_type: the family.
        model: fields of its config, as the user gave them.
        kwargs: more of them.

    Raises:
        ValueError: if the family or a field is not there, or a value is nonsense.
    """
    if model_type not in families:
        raise ValueError(f"model_type: unknown {model_type!r}; {nearest(model_type, families)}")
    check_model_fields(CONFIG_MAPPING[model_type], model)
    try:
        return AutoConfig.for_model(model_type, **{**kwargs, **model})
    except StrictDataclassError as error:  # the end of its message names the field
        raise ValueError(f"model: {str(error).strip().splitlines()[-1].strip()}") from error


def check_mismatches(name: str, mismatched: Iterable[tuple[str, Any, Any]], head: str) -> None:
    """Check that of a checkpoint's parameters only the head has another shape than the model's, which draws it anew.

    Args:
        name: what `--model_name_or_path` gave.
        mismatched: names of parameters with their shapes in the checkpoint and in the model.
        head: what the names of its parameters begin with.

    Raises:
        ValueError: if any other has.
    """
    for key, stored, wanted in sorted(mismatched, key=lambda entry: entry[0]):
        if not key.startswith(head):
            raise ValueError(
                f"model_name_or_path: {key} is {tuple(stored)} in {name}, and the model asked for has "
                f"{tuple(wanted)}; leave the sizes of a checkpoint as they are, or train from scratch"
            )


def load_pretrained(name: str, auto_class: type, **kwargs: Any) -> PreTrainedModel:
    """A model from a folder or the Hub.

    Args:
        name: what `--model_name_or_path` gave.
        auto_class: the class whose `from_pretrained` loads the model, given `kwargs`.

    Raises:
        ValueError: if there is no such checkpoint, or it cannot be loaded so.
    """
    flag = "model_name_or_path"
    is_here(flag, name, "folder", "one with a checkpoint, or a model of the Hub")
    try:
        return auto_class.from_pretrained(name, **kwargs)
    except (OSError, ValueError, RuntimeError, SafetensorError, StrictDataclassError) as error:
        raise ValueError(
            f"{flag}: cannot load {name} ({single_line(error)}); give a folder or a model of the Hub"
        ) from error

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Models of any task, fresh or from a checkpoint, with one-line errors."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedModel

from sparsight.training.arguments import UsageError, nearest, single_line


def check_model_fields(config_class: type, model: dict[str, Any]) -> None:
    """
    Raises:
        UsageError: if `model` has a field that the config does not have.
    """
    known = {field.name for field in fields(config_class)}
    for name in model.keys() - known:
        raise UsageError(f"--model.{name}: {config_class.model_type} has no such field; {nearest(name, known)}")


def make_config(auto_class: type, model_type: str, model: dict[str, Any], **kwargs: Any) -> PreTrainedConfig:
    """The config of one of sparsight's families.

    Args:
        auto_class: the Auto class that the family has to have a model for.
        model_type: the family.
        model: fields of its config, as the user gave them.
        kwargs: more of them.

    Raises:
        UsageError: if the family or a field is not there, or a value is nonsense.
    """
    families = sorted(config.model_type for config in auto_class._model_mapping._extra_content)
    if model_type not in families:
        raise UsageError(f"--model_type: unknown {model_type!r}; {nearest(model_type, families)}")
    check_model_fields(CONFIG_MAPPING[model_type], model)
    try:
        return AutoConfig.for_model(model_type, **{**kwargs, **model})
    except StrictDataclassError as error:  # its message names the field
        raise UsageError(f"--model: {str(error).strip().splitlines()[-1].strip()}") from error


def load_pretrained(name: str, auto_class: type, **kwargs: Any) -> PreTrainedModel:
    """A model from a folder or the Hub.

    Args:
        name: what `--model_name_or_path` gave.
        auto_class: the class whose `from_pretrained` loads the model, given `kwargs`.

    Raises:
        UsageError: if there is no such checkpoint, or it cannot be loaded so.
    """
    flag = "--model_name_or_path"
    if not Path(name).is_dir() and (name.startswith((".", "/", "~")) or name.count("/") != 1):
        raise UsageError(f"{flag}: there is no folder {name}; give one with a checkpoint, or a model of the Hub")
    try:
        return auto_class.from_pretrained(name, **kwargs)
    except (OSError, ValueError, RuntimeError, StrictDataclassError) as error:
        raise UsageError(
            f"{flag}: cannot load {name} ({single_line(error)}); give a folder or a model of the Hub"
        ) from error

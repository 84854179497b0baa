# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The model card of a checkpoint, made from the files that lie in its folder.

`config.json` says what the model is, `arguments.json` how it was trained, `results.json` what was measured. What none
of them says is left out of the card. `shown_on_card` in `arguments.json` lists the names of those arguments that the
card's table of settings shows.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.pipelines import SUPPORTED_TASKS

import sparsight
from sparsight.configuration.messages import single_line
from sparsight.hub_cards.results import METRICS
from sparsight.hub_cards.tables import is_number, layers_table, metrics_table
from sparsight.modeling.files import written_beside
from sparsight.modeling.remote_code import find_auto_map


TEMPLATES = Path(__file__).parent / "templates"
FIGURE = "sparsity.png"


class CardError(Exception):
    """A folder that no card can be made for. The message is one line with the way out."""


# Tasks that transformers has no pipeline for, as the Hub's results call them.
TASKS = {"AutoModelForSeq2SeqLM": "text2text-generation"}
# What `results.json` of the finetuning script calls the models that it measures; `recipe` was once `method`'s name.
LABELS = {"before": "before finetuning", "lora": "plain LoRA", "method": "this model", "recipe": "this model"}
# What a family is made for, as tags on the Hub.
_SPARSE = "activation-sparsity"
TAGS = {"crate": ["white-box"], "sparse_vit": [_SPARSE], "sparse_t5": [_SPARSE]}


@dataclass(frozen=True)
class Checkpoint:
    """What the files of `save_pretrained` say of a model.

    Attributes:
        config_class, model_class: of the family; the base model's, where this is an adapter.
        config: None for an adapter, which is saved without one.
    """

    config_class: type[PreTrainedConfig]
    model_class: str
    config: PreTrainedConfig | None = None

    @property
    def auto_class(self) -> str:
        """The Auto class that loads the model as it was saved."""
        auto_map = find_auto_map(self.config_class, self.config)
        return next((k for k, v in auto_map.items() if v.endswith(f".{self.model_class}")), "AutoModel")

    @property
    def task(self) -> str | None:
        """The model's task on the Hub, by transformers' pipelines."""
        kind = "image" if hasattr(self.config_class, "image_size") else "text"
        tasks = (task for task, entry in SUPPORTED_TASKS.items() if entry["type"] == kind)
        return next((t for t in tasks if self.auto_class in {c.__name__ for c in SUPPORTED_TASKS[t]["pt"]}), None)


def make_model_card(folder: str | Path) -> ModelCard:
    """The card of the checkpoint, or the LoRA adapter, in `folder`.

    Raises:
        CardError: if the folder holds neither, or one of its files is not what it should be.
    """
    folder = Path(folder)
    checkpoint = _read_checkpoint(folder)
    model_type, config = checkpoint.config_class.model_type, checkpoint.config
    arguments, results = _read_arguments(folder / "arguments.json"), _read_json(folder / "results.json")
    tags = TAGS.get(model_type, [])
    evaluations = _evaluations(results)
    own = next(reversed(evaluations.values()), {})
    layers = layers_table([evaluations])
    dataset, base_model = arguments.get("dataset"), arguments.get("model_name_or_path")
    name = (arguments.get("hub_model_id") or arguments.get("recipe") or model_type).rpartition("/")[2]
    metrics = [metric for metric in METRICS if is_number(own.get(metric.key))]
    sparsity_measured = bool(layers) or any(metric.type == "activation_sparsity" for metric in metrics)
    result_task = checkpoint.task or TASKS.get(checkpoint.auto_class)
    eval_results = [
        EvalResult(
            task_type=result_task,
            dataset_type=_hub_id(dataset) or Path(dataset).name,
            dataset_name=_dataset_name(dataset),
            dataset_split=results.get("eval_split"),
            metric_type=metric.type,
            metric_name=metric.name,
            metric_value=own[metric.key],
        )
        for metric in metrics
        if result_task and dataset  # the Hub takes no result without them
    ]
    card_data = ModelCardData(
        library_name="transformers" if config else "peft",
        # The weights of a finetuned model are under the terms of the one it comes from, which are not known here.
        license=None if base_model else "apache-2.0",
        pipeline_tag=checkpoint.task,
        datasets=[_hub_id(dataset)] if _hub_id(dataset) else None,
        base_model=_hub_id(base_model),
        base_model_relation=("finetune" if config else "adapter") if _hub_id(base_model) else None,
        tags=["sparsight", model_type, *tags],
        metrics=sorted({metric.type for metric in metrics}) or None,
        model_name=name if eval_results else None,
        eval_results=eval_results or None,
    )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    template = environment.select_template([f"{model_type}.md" if config else "adapter.md", "model_card.md"])
    content = template.render(
        card_data=card_data.to_yaml(),
        name=name,
        config=config,
        model_class=checkpoint.model_class,
        auto_class=checkpoint.auto_class,
        has_code=bool(getattr(config, "auto_map", None)),
        repo_id=arguments.get("hub_model_id") or "path/to/this/folder",
        base_model=_hub_id(base_model),
        base_fields=arguments.get("model") or {},
        dataset=_dataset_name(dataset) if dataset else None,
        eval_split=results.get("eval_split"),
        num_examples=own.get("num_examples"),
        num_parameters=results.get("num_parameters"),
        command=arguments.get("command"),
        settings=_settings(arguments, results),
        results=metrics_table([evaluations]),
        layers=layers,
        made_for_sparsity=_SPARSE in tags,
        sparsity_measured=sparsity_measured,
        figure=FIGURE if sparsity_measured and (folder / FIGURE).is_file() else None,
    )
    return ModelCard(re.sub(r"\n{3,}", "\n\n", content).strip() + "\n")


def write_model_card(folder: str | Path) -> Path:
    """Write the card of the checkpoint in `folder` to its README.md, whole or not at all, and return that path.

    Raises:
        CardError: see [`make_model_card`].
    """
    path, card = Path(folder) / "README.md", make_model_card(folder)
    with written_beside(path) as new:
        card.save(new)
    return path


# --- what lies in the folder -----------------------------------------------------------------------------------------


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CardError(f"{path}: is not JSON ({error}); write it anew") from error
    if not isinstance(values, dict):
        raise CardError(f"{path}: must hold an object, and holds a {type(values).__name__}")
    return values


def _read_arguments(path: Path) -> dict[str, Any]:
    arguments = _read_json(path)
    shown = arguments.get("shown_on_card", [])
    if not isinstance(shown, list) or not all(isinstance(name, str) for name in shown):
        raise CardError(f"{path}: shown_on_card must be a list of names of its other keys, and is {shown!r}")
    return arguments


def _read_checkpoint(folder: Path) -> Checkpoint:
    values, adapter = _read_json(folder / "config.json"), _read_json(folder / "adapter_config.json")
    if adapter and not values:
        model_class = (adapter.get("auto_mapping") or {}).get("base_model_class")
        if model_class not in sparsight.__all__:
            raise CardError(f"{folder}: is an adapter of {model_class}, which is no model of sparsight")
        return Checkpoint(getattr(sparsight, model_class).config_class, model_class)
    if not values:
        raise CardError(f"{folder}: has no config.json; give a folder that `save_pretrained` wrote")
    try:
        config = CONFIG_MAPPING[values["model_type"]].from_dict(values)
    except KeyError as error:
        raise CardError(f"{folder}: config.json is of no known model type ({error}); give another folder") from error
    except StrictDataclassError as error:
        message = single_line(error.__cause__ or error)
        raise CardError(f"{folder}: config.json is not valid ({message}); save the model anew") from error
    return Checkpoint(type(config), (config.architectures or [type(config).__name__])[0], config)


def _evaluations(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The models that were measured, by their label; this one comes last."""
    nested = {k: v for k, v in results.items() if isinstance(v, dict) and "num_examples" in v}
    if "method" in nested:
        nested.pop("recipe", None)
    return {LABELS.get(k, k): v for k, v in nested.items()} or ({"this model": results} if results else {})


def _hub_id(name: str | None) -> str | None:
    """`name` where it is one of the Hub, not a folder or what comes with the package."""
    return name if name and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) and not Path(name).exists() else None


def _dataset_name(dataset: str) -> str:
    return {"digits": "the handwritten digits of scikit-learn"}.get(dataset, _hub_id(dataset) or Path(dataset).name)


# --- what the card shows ---------------------------------------------------------------------------------------------


def _settings(arguments: Mapping[str, Any], results: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What the table of settings shows: the number of steps, what `shown_on_card` names, and the seed."""
    if "shown_on_card" not in arguments:
        return []
    values = {"num_steps": None, **{name: arguments.get(name) for name in arguments["shown_on_card"]}}
    values |= {name: results[name] for name in ("num_steps", "seed") if name in results}
    if arguments.get("max_steps"):
        values.pop("num_epochs", None)  # counts for nothing then
    return [(name, value) for name, value in values.items() if value is not None and value is not False]

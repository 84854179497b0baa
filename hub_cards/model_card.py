# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The model card of a checkpoint, made from the files that lie in its folder.

`config.json` says what the model is, `arguments.json` how it was trained, `results.json` what was measured. What none
of them says is left out of the card.
"""

import json
import math
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

import sparsight  # noqa: F401  (registers the families)
from sparsight.modeling.remote_code import find_auto_map


TEMPLATES = Path(__file__).parent / "templates"
FIGURE = "sparsity.png"


class CardError(Exception):
    """A folder that no card can be made for. The message is one line with the way out."""


@dataclass(frozen=True)
class Metric:
    """
    Attributes:
        key: in `results.json`.
        type: identifier of the metric on the Hub.
        name: what a reader calls it.
        format: of a value in tables.
    """

    key: str
    type: str
    name: str
    format: str


METRICS = (
    Metric("accuracy", "accuracy", "accuracy", "{:.2%}"),
    Metric("accuracy_top5", "accuracy", "accuracy among the five highest scores", "{:.2%}"),
    Metric("perplexity", "perplexity", "perplexity", "{:.3f}"),
    Metric("loss", "loss", "loss", "{:.4f}"),
    Metric("nonzero_share", "activation_sparsity", "non-zero activations", "{:.2%}"),
    Metric("derivative_nonzero_share", "activation_sparsity", "non-zero derivatives of activations", "{:.2%}"),
    Metric("training_nonzero_share", "activation_sparsity", "non-zero activations over all of training", "{:.2%}"),
)
# Tasks that transformers has no pipeline for, as the Hub's results call them.
TASKS = {"AutoModelForSeq2SeqLM": "text2text-generation"}
# What `results.json` of the finetuning script calls the models that it measures.
LABELS = {"before": "before finetuning", "lora": "plain LoRA", "recipe": "this model"}
# What a reader wants to know of a training, in the order of the table.
HYPERPARAMETERS = (
    "recipe",
    "num_steps",
    "num_epochs",
    "batch_size",
    "optimizer",
    "learning_rate",
    "weight_decay",
    "lr_scheduler",
    "label_smoothing",
    "mixed_precision",
    "lora_rank",
    "restrict_layer_norms",
    "seed",
)


def make_model_card(folder: str | Path) -> ModelCard:
    """The card of the checkpoint in `folder`.

    Raises:
        CardError: if the folder holds no checkpoint of sparsight, or one of its files is no JSON object.
    """
    folder = Path(folder)
    config = _read_config(folder)
    arguments, results = (_read_json(folder / name) for name in ("arguments.json", "results.json"))
    evaluations = _evaluations(results)
    own = next(reversed(evaluations.values()), {})
    auto_class = _find_auto_class(config)
    dataset, base_model = arguments.get("dataset"), arguments.get("model_name_or_path")
    name = (arguments.get("hub_model_id") or arguments.get("recipe") or config.model_type).rpartition("/")[2]
    task = _find_task(auto_class, config)
    card_data = ModelCardData(
        library_name="transformers",
        # The weights of a finetuned model are under the terms of the one it comes from, which are not known here.
        license=None if base_model else "apache-2.0",
        pipeline_tag=task,
        datasets=[_hub_id(dataset)] if _hub_id(dataset) else None,
        base_model=_hub_id(base_model),
        base_model_relation="finetune" if _hub_id(base_model) else None,
        tags=["sparsight", config.model_type, "activation-sparsity"],
        metrics=sorted({metric.type for metric in METRICS if _is_number(own.get(metric.key))}) or None,
        model_name=name,
        eval_results=_eval_results(own, task or TASKS.get(auto_class), dataset, results.get("eval_split")) or None,
    )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    template = environment.select_template([f"{config.model_type}.md", "model_card.md"])
    content = template.render(
        card_data=card_data.to_yaml(),
        name=name,
        config=config,
        model_class=(config.architectures or [config.model_type])[0],
        auto_class=auto_class,
        has_code=bool(getattr(config, "auto_map", None)),
        repo_id=arguments.get("hub_model_id") or "path/to/this/folder",
        base_model=_hub_id(base_model),
        dataset=_dataset_name(dataset) if dataset else None,
        eval_split=results.get("eval_split"),
        num_examples=own.get("num_examples"),
        num_parameters=results.get("num_parameters"),
        command=arguments.get("command"),
        hyperparameters=_hyperparameters(arguments, results),
        results=_results_table(evaluations),
        layers=_layers_table(evaluations),
        figure=FIGURE if (folder / FIGURE).is_file() else None,
    )
    return ModelCard(re.sub(r"\n{3,}", "\n\n", content).strip() + "\n")


def write_model_card(folder: str | Path) -> Path:
    """Write the card of the checkpoint in `folder` to its README.md, and return that path.

    Raises:
        CardError: see [`make_model_card`].
    """
    path = Path(folder) / "README.md"
    make_model_card(folder).save(path)
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


def _read_config(folder: Path) -> PreTrainedConfig:
    values = _read_json(folder / "config.json")
    if not values:
        raise CardError(f"{folder}: has no config.json; give a folder that `save_pretrained` wrote")
    try:
        return CONFIG_MAPPING[values["model_type"]].from_dict(values)
    except KeyError as error:
        raise CardError(f"{folder}: config.json is of no known model type ({error}); give another folder") from error
    except StrictDataclassError as error:
        message = " ".join(str(error.__cause__ or error).split())
        raise CardError(f"{folder}: config.json is not valid ({message}); save the model anew") from error


def _find_auto_class(config: PreTrainedConfig) -> str:
    """The Auto class that loads the model as it was saved."""
    ending = f".{(config.architectures or [''])[0]}"
    return next((k for k, v in find_auto_map(type(config), config).items() if v.endswith(ending)), "AutoModel")


def _find_task(auto_class: str, config: PreTrainedConfig) -> str | None:
    """The task of the model on the Hub, by transformers' pipelines."""
    kind = "image" if hasattr(config, "image_size") else "text"
    tasks = (task for task, entry in SUPPORTED_TASKS.items() if entry["type"] == kind)
    return next((t for t in tasks if auto_class in {cls.__name__ for cls in SUPPORTED_TASKS[t]["pt"]}), None)


def _evaluations(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The models that were measured, by their label; this one comes last."""
    nested = {k: v for k, v in results.items() if isinstance(v, dict) and "num_examples" in v}
    return {LABELS.get(k, k): v for k, v in nested.items()} or ({"this model": results} if results else {})


def _hub_id(name: str | None) -> str | None:
    """`name` where it is one of the Hub, not a folder or what comes with the package."""
    return name if name and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) and not Path(name).exists() else None


def _dataset_name(dataset: str) -> str:
    return {"digits": "the handwritten digits of scikit-learn"}.get(dataset, _hub_id(dataset) or Path(dataset).name)


# --- what the card shows ---------------------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _eval_results(
    own: Mapping[str, Any], task: str | None, dataset: str | None, split: str | None
) -> list[EvalResult]:
    if task is None or dataset is None:  # the Hub takes no result without them
        return []
    return [
        EvalResult(
            task_type=task,
            dataset_type=_hub_id(dataset) or Path(dataset).name,
            dataset_name=_dataset_name(dataset),
            dataset_split=split,
            metric_type=metric.type,
            metric_name=metric.name,
            metric_value=own[metric.key],
        )
        for metric in METRICS
        if _is_number(own.get(metric.key))
    ]


def _hyperparameters(arguments: Mapping[str, Any], results: Mapping[str, Any]) -> list[tuple[str, Any]]:
    values = {**arguments, **{name: results[name] for name in ("num_steps", "seed") if name in results}}
    return [(name, values[name]) for name in HYPERPARAMETERS if values.get(name) not in (None, False)]


def _results_table(evaluations: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Rows of cells with a header row; empty where nothing was measured."""
    rows = []
    for metric in METRICS:
        values = [evaluation.get(metric.key) for evaluation in evaluations.values()]
        if any(map(_is_number, values)):
            rows.append([metric.name, *(metric.format.format(v) if _is_number(v) else "" for v in values)])
    return [["", *evaluations], *rows] if rows else []


def _layers_table(evaluations: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    shares = {name: values.get("nonzero_share_per_layer") or [] for name, values in evaluations.items()}
    depth = max(map(len, shares.values()), default=0)
    rows = [
        [str(layer + 1), *(f"{share[layer]:.2%}" if layer < len(share) else "" for share in shares.values())]
        for layer in range(depth)
    ]
    return [["layer", *shares], *rows] if rows else []

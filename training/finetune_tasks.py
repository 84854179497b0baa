# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What differs from task to task when a checkpoint is finetuned for sparsity."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModelForImageClassification, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel

from sparsight import SparseT5ForConditionalGeneration, SparseViTForImageClassification
from sparsight.training import (
    image_classification,
    image_data,
    language_modeling,
    pretrain_t5,
    text_data,
    text_examples,
    train_image_classification,
)
from sparsight.training.arguments import LoopArguments, require


@dataclass
class PreparedTask:
    """What the training loop takes, for the data and the processor at hand.

    Attributes:
        train_loader: endless batches.
        compute_loss: `(model, batch)` to the mean loss.
        evaluate: measures an unwrapped model.
    """

    train_loader: DataLoader
    compute_loss: Callable[[nn.Module, dict[str, torch.Tensor]], torch.Tensor]
    evaluate: Callable[[nn.Module], Any]


class Task(ABC):
    """A kind of model and data to finetune.

    Attributes:
        arguments_class: the dataclass of its data arguments.
        script: what trains a vanilla model, with `ModelArguments`, `default_recipe` and `run`.
        model_noun: what a user is asked for.
        families: the model types that the recipe is for.
        auto_class: loads any of them; `sparse_class` loads them as the sparse family.
        lora_targets: the matrices of attention and MLP, by the end of their names.
        embedded_dataset: the data set that a vanilla model is trained on; `vanilla_recipe` does so, and
            `finetune_recipe` is the default there.
        rows: of the table: label, field of the evaluation, format.
    """

    arguments_class: ClassVar[type]
    script: ClassVar[ModuleType]
    model_noun: ClassVar[str]
    families: ClassVar[tuple[str, ...]]
    auto_class: ClassVar[type]
    sparse_class: ClassVar[type[PreTrainedModel]]
    lora_targets: ClassVar[tuple[str, ...]]
    embedded_dataset: ClassVar[str]
    vanilla_recipe: ClassVar[str]
    finetune_recipe: ClassVar[str]
    rows: ClassVar[tuple[tuple[str, str, str], ...]]

    @abstractmethod
    def load_data(self, arguments: Any) -> Any:
        """The data, with `eval_split`."""

    @abstractmethod
    def load_processor(self, name: str, config: PreTrainedConfig) -> Any:
        """The image processor or tokenizer of a checkpoint."""

    @abstractmethod
    def make_vanilla(self, arguments: Any, data_arguments: Any, data: Any) -> tuple[PreTrainedModel, Any]:
        """A fresh model and its processor, as `script` will train it."""

    @abstractmethod
    def check(self, name: str, model: PreTrainedModel, processor: Any, data: Any) -> None:
        """
        Raises:
            UsageError: if the data do not fit the checkpoint `name`.
        """

    @abstractmethod
    def prepare(
        self,
        config: PreTrainedConfig,
        processor: Any,
        data: Any,
        arguments: Any,
        loop: LoopArguments,
        accelerator: Accelerator,
    ) -> PreparedTask:
        """Loaders, loss and evaluation."""

    @abstractmethod
    def score(self, evaluation: Any) -> float:
        """What is to be high."""

    @abstractmethod
    def sparse_fields(self, config: PreTrainedConfig) -> dict[str, Any]:
        """Fields of the config that make a checkpoint sparse."""

    @abstractmethod
    def layer_shares(self, result: dict[str, Any]) -> dict[str, float]:
        """Non-zero share of each layer in an evaluation, by the label of the layer."""


class ImageTask(Task):
    """Image classification with a ViT."""

    arguments_class = image_data.ImageArguments
    script = train_image_classification
    model_noun = "classifier"
    families = ("vit", "sparse_vit")
    auto_class = AutoModelForImageClassification
    sparse_class = SparseViTForImageClassification
    lora_targets = ("q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2")
    embedded_dataset = "digits"
    vanilla_recipe = "vit_digits"
    finetune_recipe = "vit_digits_finetune"
    rows = (
        ("accuracy@1", "accuracy", "{:.2%}"),
        ("accuracy@5", "accuracy_top5", "{:.2%}"),
        ("loss", "loss", "{:.4f}"),
        ("non-zero share", "nonzero_share", "{:.2%}"),
    )

    def load_data(self, arguments):
        return image_data.load_images(arguments)

    def load_processor(self, name, config):
        return image_classification.load_image_processor(name, config)

    def make_vanilla(self, arguments, data_arguments, data):
        return train_image_classification.make_model(arguments, data_arguments, data.class_names)

    def check(self, name, model, processor, data):
        require(
            model.config.num_labels == len(data.class_names),
            "dataset",
            f"it has {len(data.class_names)} classes, but {name} has {model.config.num_labels}; give a checkpoint "
            "that was trained on it (training/train_image_classification.py trains a new head)",
        )

    def prepare(self, config, processor, data, arguments, loop, accelerator):
        images = image_data.TrainingImages(data.train, config, processor, arguments, loop.seed)
        eval_loader = image_data.make_eval_loader(data.eval, config, processor, accelerator, loop)
        return PreparedTask(
            image_data.make_train_loader(images, accelerator, loop, arguments.repeated_augmentation),
            image_classification.make_compute_loss(loop, arguments, len(data.class_names), accelerator.num_processes),
            lambda model: image_classification.evaluate_classifier(accelerator, model, eval_loader),
        )

    def score(self, evaluation):
        return evaluation.accuracy

    def sparse_fields(self, config):
        return {"hidden_act": "jsrelu", "zeroth_bias": True}

    def layer_shares(self, result):
        return {f"layer {index}": share for index, share in enumerate(result["nonzero_share_per_layer"], start=1)}


class T5Task(Task):
    """Span corruption with a T5, T5 v1.1 or Flan-T5."""

    arguments_class = text_data.TextArguments
    script = pretrain_t5
    model_noun = "T5"
    families = ("t5", "sparse_t5")
    auto_class = AutoModelForSeq2SeqLM
    sparse_class = SparseT5ForConditionalGeneration
    lora_targets = ("q", "k", "v", "o", "wi", "wi_0", "wi_1", "wo")
    embedded_dataset = "stdlib"
    vanilla_recipe = "t5_stdlib"
    finetune_recipe = "t5_stdlib_finetune"
    rows = (
        ("loss", "loss", "{:.4f}"),
        ("perplexity", "perplexity", "{:.2f}"),
        ("non-zero share", "nonzero_share", "{:.2%}"),
    )

    def load_data(self, arguments):
        arguments.check()
        return text_data.load_texts(arguments)

    def load_processor(self, name, config):
        return text_examples.load_tokenizer(name, "model_name_or_path")

    def make_vanilla(self, arguments, data_arguments, data):
        return pretrain_t5.make_model(arguments, data_arguments, data)

    def check(self, name, model, processor, data):
        pretrain_t5.check_vocabulary(model, processor)

    def prepare(self, config, processor, data, arguments, loop, accelerator):
        eval_loader = text_examples.make_eval_loader(data, processor, arguments, accelerator, loop)
        return PreparedTask(
            text_examples.make_train_loader(data, processor, arguments, accelerator, loop),
            language_modeling.make_compute_loss(loop),
            lambda model: language_modeling.evaluate_language_model(accelerator, model, eval_loader),
        )

    def score(self, evaluation):
        return -evaluation.loss

    def sparse_fields(self, config):
        return {"feed_forward_proj": "gated-jsrelu" if config.is_gated_act else "jsrelu", "zeroth_bias": True}

    def layer_shares(self, result):
        return {
            f"{side} {index}": share
            for side in ("encoder", "decoder")
            for index, share in enumerate(result[f"{side}_nonzero_share_per_layer"], start=1)
        }


TASKS: dict[str, Task] = {"image": ImageTask(), "t5": T5Task()}

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Image classification, of any model that `AutoModelForImageClassification` makes."""

from typing import Any

import torch
from timm.data import Mixup
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import AutoModelForImageClassification, BaseImageProcessor, PreTrainedConfig, PreTrainedModel

from sparsight.metrics.topk_accuracy.topk_accuracy import label_ranks
from sparsight.training.data.images import DIGITS, ImageSource, LabelledImages, load_images
from sparsight.training.data.pixels import (
    ImageArguments,
    TrainingImages,
    load_image_processor,
    make_eval_loader,
    make_image_processor,
    make_train_loader,
)
from sparsight.training.engine.models import ModelArguments, check_mismatches, load_pretrained, make_config
from sparsight.training.engine.task import Task


class ImageClassification(Task):
    """Cross-entropy of the class, with label smoothing, mixup and cutmix; accuracy decides which model is best."""

    arguments_class = ImageArguments
    source_class = ImageSource
    auto_class = AutoModelForImageClassification
    default_model_type = "sparse_vit"
    embedded_dataset = DIGITS
    metric, higher_is_better = "accuracy", True
    sums = ("correct", "correct_top5", "loss", "num_examples")

    arguments: ImageArguments
    data: LabelledImages
    mixup: Mixup | None = None

    def load_data(self) -> LabelledImages:
        return load_images(self.arguments)

    def make_model(self, start: ModelArguments) -> tuple[PreTrainedModel, BaseImageProcessor]:
        """A fresh model of a family, or a checkpoint with a fresh head; and the image processor that goes with it.

        Raises:
            ValueError: if the family, a field of its config or the checkpoint is not there, or a value is nonsense.
        """
        class_names = self.data.class_names
        labels = {"id2label": dict(enumerate(class_names)), "label2id": {n: i for i, n in enumerate(class_names)}}
        if start.model_name_or_path is None:
            config = make_config(self.families(), start.model_type, start.model, **labels)
            return self.auto_class.from_config(config), make_image_processor(config, self.arguments)
        name = start.model_name_or_path
        model, found = load_pretrained(
            name, self.auto_class, ignore_mismatched_sizes=True, output_loading_info=True, **labels, **start.model
        )
        *_, (head_name, head) = (
            (module_name, module)
            for module_name, module in model.named_modules()
            if isinstance(module, nn.Linear) and module.out_features == len(class_names)
        )
        check_mismatches(name, found["mismatched_keys"], f"{head_name}.")
        head.reset_parameters()
        return model, self.load_processor(name, model.config)

    def load_processor(self, name: str, config: PreTrainedConfig) -> BaseImageProcessor:
        return load_image_processor(name, config)

    def check_model(self, name: str, model: PreTrainedModel, processor: BaseImageProcessor) -> None:
        num_classes = len(self.data.class_names)
        if model.config.num_labels != num_classes:
            raise ValueError(
                f"dataset: it has {num_classes} classes, but {name} has {model.config.num_labels}; give a checkpoint "
                "that was trained on it (training/train_image_classification.py trains a new head)"
            )
        self.data.in_order_of(self._class_names(model))

    @staticmethod
    def _class_names(model: PreTrainedModel) -> list[str]:
        return [str(model.config.id2label[index]) for index in range(model.config.num_labels)]

    def make_loaders(self, model: PreTrainedModel, processor: BaseImageProcessor) -> tuple[DataLoader, DataLoader]:
        """Set up mixup as well, and label the images as the model's config names its classes.

        Raises:
            ValueError: if mixup or cutmix is on and a batch has an odd number of images, or the model has other
                classes.
        """
        arguments, loop, accelerator = self.arguments, self.loop, self.accelerator
        self.data = self.data.in_order_of(self._class_names(model))
        if arguments.mixup > 0 or arguments.cutmix > 0:
            per_process = loop.micro_batch_size // accelerator.num_processes
            if per_process % 2:
                raise ValueError(f"batch_size: mixup and cutmix mix pairs, and {per_process} a process is odd")
            self.mixup = Mixup(
                mixup_alpha=arguments.mixup,
                cutmix_alpha=arguments.cutmix,
                label_smoothing=loop.label_smoothing,
                num_classes=len(self.data.class_names),
            )
        images = TrainingImages(self.data.train, model.config, processor, arguments, loop.seed)
        return (
            make_train_loader(images, accelerator, loop, arguments.repeated_augmentation),
            make_eval_loader(self.data.eval, model.config, processor, accelerator, loop),
        )

    def compute_loss(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        pixel_values, targets = batch["pixel_values"], batch["labels"]
        smoothing = self.loop.label_smoothing
        if self.mixup is not None:  # which smooths the labels itself
            pixel_values, targets = self.mixup(pixel_values, targets)
            smoothing = 0.0
        return F.cross_entropy(model(pixel_values=pixel_values).logits.float(), targets, label_smoothing=smoothing)

    def measure(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        logits, labels = model(pixel_values=batch["pixel_values"]).logits.float(), batch["labels"]
        ranks = label_ranks(logits, labels)
        loss = F.cross_entropy(logits, labels, reduction="sum")
        return (ranks < 1).sum(), (ranks < 5).sum(), loss, labels.new_tensor(len(labels))

    def summarize(self, sums: dict[str, float]) -> dict[str, Any]:
        """Summarize an evaluation.

        Returns:
            `accuracy` and `accuracy_top5`: share of images whose label scores highest, is among the five highest;
            `loss`: mean cross-entropy in nats; `num_examples`.
        """
        number = sums["num_examples"]
        return {
            "accuracy": sums["correct"] / number,
            "accuracy_top5": sums["correct_top5"] / number,
            "loss": sums["loss"] / number,
            "num_examples": int(number),
        }

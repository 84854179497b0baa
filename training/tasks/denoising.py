# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Denoising of text: an encoder-decoder fills in the spans that were masked, as T5 is pretrained."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from sparsight.modeling.losses import IGNORED
from sparsight.training.data.corrupted_text import make_eval_loader, make_train_loader
from sparsight.training.data.packing import TextArguments
from sparsight.training.data.texts import STDLIB, Texts, TextSource, iterate_checked, load_texts
from sparsight.training.data.tokenization import load_tokenizer, train_tokenizer_on_rows
from sparsight.training.engine.models import ModelArguments, load_pretrained, make_config
from sparsight.training.engine.task import Task


class TextDenoising(Task):
    """Cross-entropy of the target tokens, with label smoothing; the loss decides which model is best."""

    arguments_class = TextArguments
    source_class = TextSource
    auto_class = AutoModelForSeq2SeqLM
    default_model_type = "sparse_t5"
    embedded_dataset = STDLIB
    metric, higher_is_better = "loss", False
    sums = ("loss", "num_target_tokens", "num_examples")

    arguments: TextArguments
    data: Texts

    def load_data(self) -> Texts:
        return load_texts(self.arguments)

    def make_model(self, start: ModelArguments) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """A fresh model of a family or a checkpoint, and the tokenizer that goes with it.

        Raises:
            ValueError: if the family, a field of its config, the checkpoint or the tokenizer is not there, a value is
                nonsense, a row is no text, or model and tokenizer do not fit.
        """
        named = self.arguments.tokenizer_name
        if start.model_name_or_path is not None:
            model = load_pretrained(start.model_name_or_path, self.auto_class, **start.model)
            if named is None:
                tokenizer = self.load_processor(start.model_name_or_path, model.config)
            else:
                tokenizer = load_tokenizer(named)
        else:
            if named is None:
                rows = iterate_checked(self.data.train, self.arguments)
                tokenizer = train_tokenizer_on_rows(rows, self.arguments.vocab_size)
            else:
                tokenizer = load_tokenizer(named)
            token_ids = {
                "pad_token_id": tokenizer.pad_token_id,
                "eos_token_id": tokenizer.eos_token_id,
                "decoder_start_token_id": tokenizer.pad_token_id,
            }
            fields = {"vocab_size": len(tokenizer), **start.model}
            model = self.auto_class.from_config(make_config(self.families(), start.model_type, fields, **token_ids))
        self.check_model("the model", model, tokenizer)
        return model, tokenizer

    def load_processor(self, name: str, config: PreTrainedConfig) -> PreTrainedTokenizerBase:
        return load_tokenizer(name, "model_name_or_path")

    def check_model(self, name: str, model: PreTrainedModel, processor: PreTrainedTokenizerBase) -> None:
        size = model.config.vocab_size
        if len(processor) > size:
            raise ValueError(
                f"tokenizer_name: the tokenizer has {len(processor)} tokens, and {name} {size}; give the one that "
                "belongs to the model, or a larger --model.vocab_size"
            )

    def make_loaders(
        self, model: PreTrainedModel, processor: PreTrainedTokenizerBase
    ) -> tuple[DataLoader, DataLoader]:
        common = (self.data, processor, self.arguments, self.accelerator, self.loop)
        return make_train_loader(*common), make_eval_loader(*common)

    def compute_loss(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(
            self._logits(model, batch),
            batch["labels"].flatten(),
            ignore_index=IGNORED,
            label_smoothing=self.loop.label_smoothing,
        )

    def measure(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        labels = batch["labels"]
        logits = self._logits(model, batch)
        loss = F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum")
        return loss, labels.ne(IGNORED).sum(), labels.new_tensor(len(labels))

    @staticmethod
    def _logits(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """`(batch · target_length, vocab_size)`. Packed examples have no padding; what has brings its masks along."""
        return model(**batch, use_cache=False).logits.float().flatten(0, 1)

    def summarize(self, sums: dict[str, float]) -> dict[str, Any]:
        """Summarize an evaluation; padding counts nowhere.

        Returns:
            `loss`: mean cross-entropy of the target tokens in nats; `perplexity`: its exponential; `num_examples`;
            `num_target_tokens`.
        """
        loss = sums["loss"] / sums["num_target_tokens"]
        try:
            perplexity = math.exp(loss)
        except OverflowError:
            perplexity = math.inf
        return {
            "loss": loss,
            "perplexity": perplexity,
            "num_examples": int(sums["num_examples"]),
            "num_target_tokens": int(sums["num_target_tokens"]),
        }

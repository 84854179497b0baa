# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What the tests of training have in common: the scripts, each with a tiny recipe and numbers to compare with.

Run as a program in several processes, it starts scripts one after the other: `run_jobs`.
"""

import importlib
import json
import math
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn import functional as F
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
)

from helpers import ROOT, TINY_RECIPE, TINY_T5_RECIPE
from sparsight.training.data.corrupted_text import make_corruption
from sparsight.training.data.images import load_images
from sparsight.training.data.packing import TextArguments, make_blocks
from sparsight.training.data.pixels import EvalCollator, ImageArguments
from sparsight.training.data.texts import load_texts
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.models import ModelArguments
from sparsight.training.engine.observers import Observer, Training
from sparsight.training.tasks.modular_addition import AdditionArguments, ModularAddition


TINY_ADDITION_RECIPE = """
task: modular_addition
model_type: gpt2
modulus: 11
model:
  n_embd: 16
  n_layer: 2
  n_head: 2
  n_inner: 32
  activation_function: relu
batch_size: 40
eval_batch_size: 64
max_steps: 12
eval_epochs: 2
learning_rate: 1.0e-2
weight_decay: 0.01
"""
# Models are saved without their code, which takes longer than they do; tests of what is saved ask for it.
NO_CODE, CODE = "no_code: true\n", ("--no_code", "false")
TINY_TEXTS = {"input_length": 32, "vocab_size": 400, "max_train_samples": 4, "max_eval_samples": 3}
STREAM = ("--streaming", "--shuffle_buffer", "3")
Batch = dict[str, torch.Tensor]


def image_batch(model: PreTrainedModel, folder: Path) -> Batch:
    """The evaluation images of TINY_RECIPE."""
    data = load_images(ImageArguments(max_eval_samples=100))
    return EvalCollator(model.config, AutoImageProcessor.from_pretrained(folder))(list(data.eval))


def measure_images(model: PreTrainedModel, batch: Batch) -> dict[str, float]:
    logits, labels = model(batch["pixel_values"]).logits, batch["labels"]
    return {
        "accuracy": (logits.argmax(-1) == labels).double().mean().item(),
        "accuracy_top5": (logits.topk(5).indices == labels[:, None]).any(-1).double().mean().item(),
        "loss": F.cross_entropy(logits, labels).item(),
        "num_examples": 100,
        "num_tokens": 500,
    }


def text_batch(model: PreTrainedModel, folder: Path) -> Batch:
    """The corrupted evaluation texts of TINY_T5_RECIPE, with the tokenizer that lies in `folder`."""
    arguments = TextArguments(vocab_size=300, input_length=24, max_train_samples=4, max_eval_samples=1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    blocks = make_blocks(load_texts(arguments).eval, tokenizer, arguments)
    inputs, targets = make_corruption(arguments, tokenizer)(blocks, [(0, 0, index) for index in range(len(blocks))])
    return {"input_ids": torch.from_numpy(inputs), "labels": torch.from_numpy(targets)}


def measure_text(model: PreTrainedModel, batch: Batch) -> dict[str, float]:
    loss = model(**batch).loss.item()
    return {
        "loss": loss,
        "perplexity": math.exp(loss),
        "num_examples": len(batch["labels"]),
        "num_target_tokens": batch["labels"].numel(),
        "num_encoder_tokens": batch["input_ids"].numel(),
        "num_decoder_tokens": batch["labels"].numel(),
    }


def addition_batch(model: PreTrainedModel, folder: Path) -> Batch:
    """The held-out pairs of TINY_ADDITION_RECIPE."""
    tokens, _ = ModularAddition(AdditionArguments(modulus=11), LoopArguments()).data.eval.tensors
    return {"input_ids": tokens, "labels": (tokens[:, 0] + tokens[:, 1]) % 11}


def measure_addition(model: PreTrainedModel, batch: Batch) -> dict[str, float]:
    logits, labels = model(batch["input_ids"]).logits[:, -1], batch["labels"]
    return {
        "accuracy": (logits.argmax(-1) == labels).double().mean().item(),
        "loss": F.cross_entropy(logits, labels).item(),
        "num_examples": len(labels),
        "num_tokens": 3 * len(labels),
    }


@dataclass(frozen=True)
class Script:
    """A script with a recipe that takes milliseconds a step.

    Attributes:
        module: its name in `training/`.
        recipe: in YAML.
        auto_class: loads its models.
        model_class: of the recipe, by name.
        make_batch: from a model and its folder to all evaluation examples.
        measure: from a model and those examples to numbers of `results.json`, by other means than the engine's.
        metric: that the script prints.
        layers: names of the MLPs.
        steps: arguments of a run of twelve steps.
        no_dropout: arguments that turn off what the recipe has of it.
    """

    module: str
    recipe: str
    auto_class: type
    model_class: str
    make_batch: Callable[[PreTrainedModel, Path], Batch]
    measure: Callable[[PreTrainedModel, Batch], dict[str, float]]
    metric: str
    layers: tuple[str, ...]
    steps: tuple[str, ...] = ()
    no_dropout: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return ROOT / "training" / f"{self.module}.py"

    def main(self, args: Sequence[str], observers: Sequence[Observer] = ()) -> dict[str, Any]:
        return importlib.import_module(f"sparsight.training.{self.module}").main([*map(str, args)], observers)

    def load(self, folder: Path) -> PreTrainedModel:
        return self.auto_class.from_pretrained(folder).eval()


SCRIPTS = {
    "images": Script(
        module="train_image_classification",
        recipe=TINY_RECIPE + NO_CODE,
        model_class="SparseViTForImageClassification",
        auto_class=AutoModelForImageClassification,
        make_batch=image_batch,
        measure=measure_images,
        metric="accuracy",
        layers=("vit.layers.0.mlp", "vit.layers.1.mlp"),
        steps=("--num_epochs", "3"),
    ),
    "t5": Script(
        module="pretrain_t5",
        recipe=TINY_T5_RECIPE + NO_CODE,
        auto_class=AutoModelForSeq2SeqLM,
        model_class="SparseT5ForConditionalGeneration",
        make_batch=text_batch,
        measure=measure_text,
        metric="perplexity",
        layers=(
            *(f"encoder.block.{layer}.layer.1.DenseReluDense" for layer in range(2)),
            *(f"decoder.block.{layer}.layer.2.DenseReluDense" for layer in range(2)),
        ),
        no_dropout=("--model.dropout_rate", "0.0"),
    ),
    "addition": Script(
        module="train",
        recipe=TINY_ADDITION_RECIPE + NO_CODE,
        auto_class=AutoModelForCausalLM,
        model_class="GPT2LMHeadModel",
        make_batch=addition_batch,
        measure=measure_addition,
        metric="accuracy",
        layers=("transformer.h.0.mlp", "transformer.h.1.mlp"),
        no_dropout=("--model.resid_pdrop=0.0", "--model.embd_pdrop=0.0", "--model.attn_pdrop=0.0"),
    ),
}


@dataclass
class Runs:
    """Runs of a script in subfolders of a folder."""

    script: Script
    folder: Path

    def __post_init__(self):
        # Beside the folder, which a test may expect to stay empty.
        name = f"{self.folder.name}.{self.script.module}.{self.script.auto_class.__name__}.yaml"
        self.recipe = self.folder.parent / name
        self.recipe.write_text(self.script.recipe)

    def args(self, name: str, *args: object) -> list[str]:
        """The command line of the run `name`."""
        return ["--recipe", str(self.recipe), "--output_dir", str(self.folder / name), *map(str, args)]

    def __call__(self, name: str, *args: object, observers: Sequence[Observer] = ()) -> dict[str, Any]:
        """Run it here, and return its `results.json`."""
        returned = self.script.main(self.args(name, *args), observers)
        reset_accelerator()
        results = self.results(name)
        assert returned == results
        return results

    def results(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / name / "results.json").read_text())

    def weights(self, name: str, model: str = "model") -> dict[str, torch.Tensor]:
        return load_file(self.folder / name / model / "model.safetensors")

    def assert_same_weights(self, name: str, other: str, atol: float = 0) -> None:
        torch.testing.assert_close(self.weights(name), self.weights(other), rtol=0, atol=atol)

    def refuse(self, name: str, *args: object) -> None:
        """Run it, and see it end with exit code 2."""
        with pytest.raises(SystemExit) as exit_info:
            self(name, *args)
        assert exit_info.value.code == 2


def starting_from(model_type: str | None = None, checkpoint: object = None, **fields: Any) -> ModelArguments:
    """What to train: a family from scratch or a checkpoint, with these fields of its config."""
    name = None if checkpoint is None else str(checkpoint)
    arguments = ModelArguments(model_type=model_type, model_name_or_path=name)
    arguments.model = fields
    return arguments


def reset_accelerator() -> None:
    """Forget the accelerator, which is one a process."""
    AcceleratorState._reset_state(reset_partial_state=True)


def error_line(capsys) -> str:
    """The one line on stderr that says what is wrong."""
    lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(lines) == 1, lines
    return lines[0]


def read_scalars(folder: Path) -> dict[str, list[int]]:
    """The steps of each number that tensorboard shows of a run in `folder`."""
    events = EventAccumulator(str(folder / folder.name))
    events.Reload()
    return {tag: [event.step for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


class StopAt(Observer):
    """Interrupts a training after a step, as Ctrl-C would."""

    def __init__(self, step: int):
        self.step = step

    def after_step(self, training: Training) -> None:
        if training.step == self.step:
            raise KeyboardInterrupt


# --- in processes of their own ---------------------------------------------------------------------------------------


def start_script(path: str, args: Sequence[str], log: str) -> None:
    """Do in this process what `python PATH ARGS` does; stdout and stderr go to `log`.out and `log`.err."""
    for descriptor, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{log}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    sys.argv = [path, *args]
    runpy.run_path(path, run_name="__main__")


def run_jobs(file: str) -> None:
    """Start one script after the other in this process, one of several; beside each log goes their number.

    Args:
        file: JSON, a list of what [`start_script`] takes.
    """
    for path, args, log in json.loads(Path(file).read_text()):
        log = f"{log}.{os.environ['RANK']}"
        start_script(path, args, log)
        sys.stdout.flush()
        Path(f"{log}.processes").write_text(str(PartialState().num_processes))
        reset_accelerator()


if __name__ == "__main__":
    run_jobs(sys.argv[1])

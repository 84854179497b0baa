# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""transformers' `Trainer` on our models: resuming, the best model, and accumulated gradients."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)

from helpers import TINY_T5, TINY_VIT, randomize
from sparsight import (
    SparseT5Config,
    SparseT5ForConditionalGeneration,
    SparseViTConfig,
    SparseViTForImageClassification,
    SparseViTForMaskedImageModeling,
    SparseViTModel,
)
from sparsight.training.methods.activation_sparsity import ActivationMixing, SparsityCallback


FAMILIES = {
    "sparse_vit": TINY_VIT,
    "crate": {name: value for name, value in TINY_VIT.items() if name != "intermediate_size"},
}


def make_images(problem_type: str = "single_label_classification", num_images: int = 16) -> list[dict]:
    generator = torch.Generator().manual_seed(0)
    pixel_values = torch.randn(num_images, 3, 8, 8, generator=generator)
    if problem_type == "single_label_classification":
        labels = torch.arange(num_images) % 10
    else:
        labels = (torch.randn(num_images, 10, generator=generator) > 0).float()
    return [{"pixel_values": image, "labels": label} for image, label in zip(pixel_values, labels, strict=True)]


def make_texts(num_texts: int = 16) -> list[dict]:
    """Rows of equal length whose targets are from 1 to 8 tokens long, and one that is all padding."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, 90, (num_texts, 8), generator=generator)
    for index, row in enumerate(labels):
        row[index % 8 + 1 :] = -100
    labels[5] = -100
    input_ids = torch.randint(2, 90, (num_texts, 6), generator=generator)
    return [{"input_ids": row, "labels": target} for row, target in zip(input_ids, labels, strict=True)]


def make_model(family: str, **fields) -> PreTrainedModel:
    if family == "sparse_t5":
        return randomize(SparseT5ForConditionalGeneration(SparseT5Config(**TINY_T5, dropout_rate=0.0)), std=0.1)
    config = AutoConfig.for_model(family, **FAMILIES[family], **fields)
    return randomize(AutoModelForImageClassification.from_config(config), std=0.1)


def make_trainer(model, data, folder, callbacks=None, **arguments) -> Trainer:
    defaults = {
        "output_dir": folder,
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "learning_rate": 1e-2,
        "save_steps": 2,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "max_grad_norm": 0.0,
    }
    return Trainer(
        model, TrainingArguments(**defaults | arguments), train_dataset=data, eval_dataset=data, callbacks=callbacks
    )


def weights(model) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same(found, expected) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


# --- resuming, and the best model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("resumed_at", [2, 4])
@pytest.mark.parametrize("family", ["sparse_vit", "crate", "sparse_t5"])
def test_resumed_is_uninterrupted(family, resumed_at, tmp_path):
    data = make_texts() if family == "sparse_t5" else make_images()
    model, again = make_model(family), make_model(family)
    make_trainer(model, data, tmp_path).train()
    make_trainer(again, data, tmp_path).train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{resumed_at}"))
    assert_same(weights(again), weights(model))


def test_resumes_from_shards(tmp_path, monkeypatch):
    save = PreTrainedModel.save_pretrained
    monkeypatch.setattr(
        PreTrainedModel, "save_pretrained", lambda *args, **kwargs: save(*args, **kwargs, max_shard_size="50KB")
    )
    model, again = make_model("sparse_vit"), make_model("sparse_vit")
    make_trainer(model, make_images(), tmp_path).train()
    assert (tmp_path / "checkpoint-4" / "model.safetensors.index.json").exists()
    make_trainer(again, make_images(), tmp_path).train(resume_from_checkpoint=True)
    assert_same(weights(again), weights(model))


def evaluates_to(trainer: Trainer, losses: dict[int, float]) -> None:
    """Has the evaluation after each step find this loss."""
    trainer.evaluate = lambda *args, **kwargs: {"eval_loss": losses[trainer.state.global_step]}


@pytest.mark.parametrize("family", ["sparse_vit", "crate", "sparse_t5"])
def test_best_model_is_loaded_whole(family, tmp_path):
    data = make_texts() if family == "sparse_t5" else make_images()
    model, after_one_step = make_model(family), make_model(family)
    schedule = {"lr_scheduler_type": "constant", "save_steps": 1}
    make_trainer(after_one_step, data, tmp_path / "one", max_steps=1, **schedule).train()
    best = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    trainer = make_trainer(model, data, tmp_path / "best", **schedule, **best)
    evaluates_to(trainer, {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0})
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-1")
    assert_same(weights(model), weights(after_one_step))


def test_best_model_has_its_portion_of_jsrelu(tmp_path):
    """The best of those that were saved: after step 3, which was better still, nothing was."""
    model = make_model("sparse_vit")
    trainer = make_trainer(
        model, make_images(), tmp_path, callbacks=[SparsityCallback(ActivationMixing(model, num_steps=4))],
        eval_strategy="steps", eval_steps=1, load_best_model_at_end=True,
    )  # fmt: skip
    evaluates_to(trainer, {1: 4.0, 2: 3.0, 3: 2.0, 4: 5.0})
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2")
    assert trainer.state.best_global_step == 3
    assert model.config.activation_mix == model.vit.layers[0].mlp.activation_fn.portion.item() == 0.5


@pytest.mark.parametrize(
    "model_class", [SparseViTModel, SparseViTForImageClassification, SparseViTForMaskedImageModeling]
)
def test_state_dict_under_older_names_loads(model_class, tmp_path):
    """What `save_pretrained` wrote, strictly, and with it each name of the model's own."""
    config = SparseViTConfig(**TINY_VIT, encoder_stride=2)
    model = randomize(model_class(config))
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    names = set(saved)
    assert any("attention.attention.query" in name for name in names)
    for state_dict in (saved, model.state_dict()):
        fresh = model_class(config)
        fresh.load_state_dict(state_dict)
        assert_same(fresh.state_dict(), model.state_dict())
    assert set(saved) == names
    copied = copy.deepcopy(model_class(config))
    copied.load_state_dict(saved)
    assert_same(copied.state_dict(), model.state_dict())
    wrapped = torch.nn.ModuleDict({"module": model_class(config)})
    wrapped.load_state_dict({f"module.{name}": value for name, value in saved.items()})
    assert_same(wrapped["module"].state_dict(), model.state_dict())


# --- accumulated gradients -------------------------------------------------------------------------------------------


CASES = {
    "sparse_t5": ("sparse_t5", None),
    **{
        f"{family} {problem}": (family, problem)
        for family in FAMILIES
        for problem in ("single_label_classification", "multi_label_classification", "regression")
    },
}


@pytest.mark.parametrize("case", CASES)
def test_accumulation_changes_neither_loss_nor_gradient(case, tmp_path):
    """8 rows at once, in 4 micro-batches of 2, and the mean over them that a plain forward pass gives."""
    family, problem = CASES[case]
    data = make_texts(8) if family == "sparse_t5" else make_images(problem, 8)
    fields = {} if problem is None else {"problem_type": problem}

    def train(batch_size, accumulation):
        model = make_model(family, **fields)
        trainer = make_trainer(
            model, data, tmp_path / str(accumulation), max_steps=1, per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation, save_strategy="no", optim="sgd", learning_rate=1.0,
            lr_scheduler_type="constant", weight_decay=0.0,
        )  # fmt: skip
        before = weights(model)
        loss = trainer.train().training_loss
        return loss, {name: before[name] - after for name, after in weights(model).items()}

    model = make_model(family, **fields).train()
    batch = {name: torch.stack([row[name] for row in data]) for name in data[0]}
    expected = model(**batch).loss
    expected.backward()
    gradient = {name: parameter.grad for name, parameter in model.named_parameters()}
    for batch_size, accumulation in ((8, 1), (2, 4)):
        loss, step = train(batch_size, accumulation)
        assert loss == pytest.approx(expected.item(), rel=1e-5)
        torch.testing.assert_close(step, gradient, rtol=1e-3, atol=1e-6)


def test_evaluation_of_texts_counts_tokens(tmp_path):
    """Evaluated in batches of unequal numbers of tokens, the loss is the same mean."""
    model, data = make_model("sparse_t5"), make_texts(8)
    batch = {name: torch.stack([row[name] for row in data]) for name in data[0]}
    plain = model(**batch)
    given = model(**batch, num_items_in_batch=torch.tensor(10))
    num_tokens = batch["labels"].ne(-100).sum()
    torch.testing.assert_close(given.loss, plain.loss * num_tokens / 10)
    assert_same(given.logits, plain.logits)
    assert model(**batch, num_items_in_batch=10, return_dict=False)[0] == given.loss
    all_padding = {**batch, "labels": torch.full_like(batch["labels"], -100)}
    assert model(**all_padding, num_items_in_batch=10).loss == 0

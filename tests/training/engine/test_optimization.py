# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from helpers import randomize
from sparsight import CrateConfig, CrateForImageClassification
from sparsight.training.engine.batches import EpochBatches
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.optimization import Plan, make_accelerator, make_optimizer


def decayed_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> set[str]:
    """The parameters that an optimizer step without a gradient shrinks, as they should."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    found = set()
    for name in names.values():
        after = model.get_parameter(name)
        if not torch.equal(after, before[name]):
            torch.testing.assert_close(after, before[name] * (1 - 0.1 * 0.5))
            found.add(name)
    return found


DECAY = {"learning_rate": 0.1, "weight_decay": 0.5}


# --- weight decay ----------------------------------------------------------------------------------------------------


def test_norm_scales_biases_and_zeroth_biases_of_a_vit_do_not_decay(sparse_vit):
    layer = "vit.layers.{}."
    matrices = ("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj", "mlp.fc1", "mlp.fc2")
    assert decayed_names(sparse_vit, make_optimizer(sparse_vit, LoopArguments(**DECAY))) == {
        "vit.embeddings.cls_token",
        "vit.embeddings.position_embeddings",
        "vit.embeddings.patch_embeddings.projection.weight",
        *(f"{layer.format(index)}{name}.weight" for index in range(2) for name in matrices),
        "classifier.weight",
    }


def test_norm_scales_and_zeroth_biases_of_a_t5_do_not_decay(sparse_t5):
    block = "{}.block.{}.layer.{}.{}.weight"
    attention = [(0, f"SelfAttention.{name}") for name in "qkvo"]
    cross = [(1, f"EncDecAttention.{name}") for name in "qkvo"]
    matrices = {
        "encoder": [*attention, *((1, f"DenseReluDense.{name}") for name in ("wi", "wo"))],
        "decoder": [*attention, *cross, *((2, f"DenseReluDense.{name}") for name in ("wi", "wo"))],
    }
    assert decayed_names(sparse_t5, make_optimizer(sparse_t5, LoopArguments(**DECAY))) == {
        "shared.weight",
        *(block.format(side, 0, 0, "SelfAttention.relative_attention_bias") for side in matrices),
        *(block.format(side, index, *m) for side in matrices for index in range(2) for m in matrices[side]),
    }


def test_norm_scales_and_biases_of_a_crate_do_not_decay(tiny_vit):
    del tiny_vit["intermediate_size"]
    model = randomize(CrateForImageClassification(CrateConfig(**tiny_vit)))
    found = decayed_names(model, make_optimizer(model, LoopArguments(**DECAY)))
    expected = {name for name, parameter in model.named_parameters() if parameter.ndim > 1}
    assert found == expected
    assert len(found) < len(list(model.parameters()))


def test_copies_that_peft_trains_do_not_decay_either(sparse_vit):
    trained = ["zeroth_bias", "layernorm_after"]
    model = get_peft_model(sparse_vit, LoraConfig(r=2, target_modules=["fc1"], modules_to_save=trained))
    found = decayed_names(model, make_optimizer(model, LoopArguments(**DECAY)))
    # LoRA's B begins with zeros, which decay to zeros.
    layer = "base_model.model.vit.layers.{}.mlp.fc1.lora_A.default.weight"
    assert found == {layer.format(index) for index in range(2)}
    copies = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert sum("zeroth_bias.modules_to_save.default.weight" in name for name in copies) == 2


def test_without_weight_decay_nothing_decays(sparse_vit):
    assert not decayed_names(sparse_vit, make_optimizer(sparse_vit, LoopArguments(weight_decay=0.0)))


# --- optimizers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "betas"),
    [
        ("adamw", (0.8, 0.95)),
        ("lion", (0.8, 0.95)),
        ("lamb", (0.8, 0.95)),
        ("sgd", None),
        ("adan", (0.98, 0.92, 0.99)),
    ],
)
def test_momenta_are_for_optimizers_that_have_two(name, betas):
    """Adan has three, and keeps its own."""
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    arguments = LoopArguments(optimizer=name, adam_beta1=0.8, adam_beta2=0.95, learning_rate=0.01, weight_decay=0.1)
    optimizer = make_optimizer(model, arguments)
    assert len(optimizer.param_groups) == 2
    for group in optimizer.param_groups:
        assert group["lr"] == 0.01
        assert group.get("betas") == betas
    assert sorted(group["weight_decay"] for group in optimizer.param_groups) == [0.0, 0.1]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model(torch.randn(5, 4)).square().mean().backward()
    optimizer.step()
    assert not any(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))


# --- the steps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "plan"),
    [
        ({}, Plan(50, 5, 0)),
        ({"num_epochs": 2.5}, Plan(13, 5, 0)),  # of begun steps, all
        ({"num_epochs": 0.01}, Plan(1, 5, 0)),
        ({"max_steps": 7}, Plan(7, 5, 0)),
        ({"max_steps": 7, "num_epochs": 0.0}, Plan(7, 5, 0)),
        ({"eval_epochs": 1.75}, Plan(50, 9, 0)),
        ({"eval_epochs": 0.01}, Plan(50, 1, 0)),
        # Warm-up in epochs is not in steps.
        ({"warmup_epochs": 2.0}, Plan(50, 5, 10)),
        ({"warmup_epochs": 0.5}, Plan(50, 5, 2)),
        ({"warmup_steps": 2}, Plan(50, 5, 2)),
        ({"warmup_steps": 3, "warmup_epochs": 2.0}, Plan(50, 5, 3)),
        # A step is a step, however many micro-batches it has.
        ({"gradient_accumulation_steps": 4, "warmup_epochs": 1.0}, Plan(50, 5, 5)),
    ],
)
def test_plan(fields, plan):
    """Of 40 examples in batches of 8."""
    loop = LoopArguments(batch_size=8, **fields)
    loader = SimpleNamespace(batch_sampler=EpochBatches(range(43), loop))
    assert Plan.of(loader, loop) == plan


# --- the accelerator, see test_accelerator.py too --------------------------------------------------------------------


def test_the_loop_accumulates_and_not_accelerate(tmp_path):
    accelerator = make_accelerator(LoopArguments(output_dir=str(tmp_path), gradient_accumulation_steps=4))
    assert accelerator.gradient_accumulation_steps == 1
    assert str(accelerator.project_dir) == str(tmp_path)
    assert accelerator.log_with == []


def test_there_is_one_precision_a_process():
    make_accelerator(LoopArguments(mixed_precision="bf16"))
    with pytest.raises(ValueError, match=r"^mixed_precision: .* already been initialized"):
        make_accelerator(LoopArguments(mixed_precision="no"))

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The method's parts: invariants of algorithms 1 and 2, mixing, PEFT, and transformers' Trainer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import Trainer, TrainingArguments, ViTConfig, ViTModel

from helpers import randomize
from sparsight import SparseViTConfig, SparseViTForImageClassification
from sparsight.training.methods.activation_sparsity import (
    ActivationMixing,
    LayerNormUplift,
    SparsityCallback,
    find_blocks,
    restrict_layer_norms,
)


def make_model(tiny_vit, **fields) -> SparseViTForImageClassification:
    return randomize(SparseViTForImageClassification(SparseViTConfig(**tiny_vit, **fields)), std=0.7)


def add_lora(model) -> nn.Module:
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"]
    return get_peft_model(
        model, LoraConfig(r=4, target_modules=targets, modules_to_save=["zeroth_bias", "layernorm_after"])
    )


def scales(model) -> list[torch.Tensor]:
    return [block.mlp_norm.weight.detach().clone() for block in find_blocks(model)]


def assert_clamped(model, clip: float = 0.1) -> None:
    for block in find_blocks(model):
        bound = clip * block.mlp_norm.weight.abs()
        assert (block.zeroth_bias.weight.abs() <= bound).all()


def disturb(model, size: float = 0.02) -> None:
    """What an optimizer step does, for the parameters that are trained."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * size)


# --- algorithm 1 -----------------------------------------------------------------------------------------------------


def test_restriction(tiny_vit):
    model = make_model(tiny_vit)
    before = scales(model)
    part = restrict_layer_norms(model)
    for old, block in zip(before, find_blocks(model), strict=True):
        torch.testing.assert_close(block.mlp_norm.weight, old.clamp(min=1))
        assert not block.mlp_norm.bias.any()
        assert not block.mlp_norm.bias.requires_grad
    for _ in range(5):
        disturb(model, size=0.5)
        part.step()
        assert all((scale >= 1).all() for scale in scales(model))
        assert_clamped(model)
        assert not any(block.mlp_norm.bias.any() for block in find_blocks(model))
    # No other parameter is touched.
    others = {n: p.clone() for n, p in model.named_parameters() if "layernorm_after" not in n and "zeroth" not in n}
    part.step()
    torch.testing.assert_close({n: model.get_parameter(n) for n in others}, others, rtol=0, atol=0)


def test_restriction_clamps_columnwise(tiny_vit):
    model = make_model(tiny_vit, zeroth_bias_clip=0.5)
    part = restrict_layer_norms(model)
    block = find_blocks(model)[0]
    with torch.no_grad():
        block.mlp_norm.weight[:] = torch.arange(1, 33)
        block.zeroth_bias.weight[:] = 100.0
        block.zeroth_bias.weight[3] = -100.0
    part.step()
    expected = 0.5 * torch.arange(1.0, 33)
    torch.testing.assert_close(block.zeroth_bias.weight[0], expected)
    torch.testing.assert_close(block.zeroth_bias.weight[3], -expected)


def test_restriction_without_bias_and_without_zeroth_bias(tiny_vit):
    model = make_model(tiny_vit, mlp_norm_bias=False, zeroth_bias=False)
    part = restrict_layer_norms(model)
    disturb(model)
    part.step()
    assert all((scale >= 1).all() for scale in scales(model))


# --- algorithm 2 -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(
    weights=st.lists(st.floats(-3, 3, width=32), min_size=32, max_size=32),
    num_steps=st.integers(0, 7),
)
def test_uplift_invariants(weights, num_steps):
    """Against the algorithm as the paper writes it, one scale at a time."""
    config = SparseViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=8, image_size=4, patch_size=2
    )
    model = SparseViTForImageClassification(config)
    block = find_blocks(model)[0]
    with torch.no_grad():
        block.mlp_norm.weight.copy_(torch.tensor(weights))
        block.mlp_norm.bias.fill_(0.3)
        block.zeroth_bias.weight.normal_()
    part = LayerNormUplift(model, num_steps)
    start = block.mlp_norm.weight.detach().clone() if num_steps == 0 else torch.tensor(weights)
    for step in range(1, num_steps + 3):
        part.step()
        scale = block.mlp_norm.weight.detach()
        for was, now in zip(weights, scale.tolist(), strict=True):
            was = float(torch.tensor(was))
            sign = -1 if was < 0 else 1
            if abs(was) >= 1:
                assert now == was  # nothing beyond ±1 is moved
            elif step >= num_steps:
                assert now == sign  # lifted, and kept
            else:
                assert now == pytest.approx(sign * min(1, abs(was) + step / num_steps), abs=1e-5)
        assert_clamped(model)
        assert block.mlp_norm.bias.eq(0.3).all()
        assert not block.mlp_norm.bias.requires_grad
    if num_steps == 0:
        assert (start.abs() >= 1).all()


def test_uplift_while_scales_are_trained(tiny_vit):
    model = make_model(tiny_vit)
    signs = [torch.where(scale < 0, -1.0, 1.0) for scale in scales(model)]
    part = LayerNormUplift(model, 10)
    biases = [block.mlp_norm.bias.clone() for block in find_blocks(model)]
    for step in range(1, 16):
        disturb(model, size=0.03)
        part.step()
        for scale, sign in zip(scales(model), signs, strict=True):
            assert (torch.where(scale < 0, -1.0, 1.0) == sign).all()
            if step >= 10:
                assert (scale.abs() >= 1).all()
        assert_clamped(model)
    for bias, block in zip(biases, find_blocks(model), strict=True):
        torch.testing.assert_close(block.mlp_norm.bias, bias, rtol=0, atol=0)


def test_uplift_moves_negative_scales_and_zero_upwards(tiny_vit):
    model = make_model(tiny_vit)
    block = find_blocks(model)[0]
    with torch.no_grad():
        block.mlp_norm.weight[:4] = torch.tensor([-0.5, 0.0, -0.0, 0.5])
    part = LayerNormUplift(model, 4)
    part.step()
    torch.testing.assert_close(block.mlp_norm.weight[:4], torch.tensor([-0.75, 0.25, 0.25, 0.75]))


def test_uplift_resumes(tiny_vit):
    model, copy = make_model(tiny_vit), make_model(tiny_vit)
    part = LayerNormUplift(model, 8)
    for _ in range(3):
        part.step()
    copy.load_state_dict(model.state_dict())
    resumed = LayerNormUplift(copy, 8)
    resumed.load_state_dict(part.state_dict())
    for _ in range(6):
        part.step()
        resumed.step()
        torch.testing.assert_close(scales(copy), scales(model), rtol=0, atol=0)


# --- mixing ----------------------------------------------------------------------------------------------------------


def test_mixing_rises_linearly(tiny_vit):
    model = make_model(tiny_vit)
    part = ActivationMixing(model, 4)
    seen = [model.activation_mix]
    for _ in range(6):
        part.step()
        seen.append(model.activation_mix)
        assert {layer.mlp.activation_fn.portion.item() for layer in model.vit.layers} == {seen[-1]}
    assert seen == [0, 0.25, 0.5, 0.75, 1, 1, 1]
    resumed = ActivationMixing(model, 4)
    resumed.load_state_dict({"num_steps_done": 3})
    assert model.activation_mix == 0.75
    ActivationMixing(model, 0)
    assert model.activation_mix == 1


# --- finding what is in use ------------------------------------------------------------------------------------------


def test_peft_copies_are_what_moves(tiny_vit, pixel_values):
    base = make_model(tiny_vit)
    original = {name: parameter.clone() for name, parameter in base.named_parameters()}
    model = add_lora(base)
    parts = [LayerNormUplift(model, 2), ActivationMixing(model, 2)]
    for _ in range(2):
        disturb(model)
        for part in parts:
            part.step()
    for index, layer in enumerate(base.vit.layers):
        wrapped, copy = layer.layernorm_after, layer.layernorm_after.modules_to_save["default"]
        assert (copy.weight.abs() >= 1).all()
        assert not copy.bias.requires_grad
        torch.testing.assert_close(copy.bias, original[f"vit.layers.{index}.layernorm_after.bias"])
        torch.testing.assert_close(
            wrapped.original_module.weight, original[f"vit.layers.{index}.layernorm_after.weight"]
        )
        zeroth = layer.mlp.zeroth_bias.modules_to_save["default"].weight
        assert zeroth.requires_grad
        assert (zeroth.abs() <= 0.1 * copy.weight.abs()).all()
    assert base.activation_mix == 1
    # The merged model carries the copies, and gives the same logits.
    logits = model.eval()(pixel_values=pixel_values).logits
    merged = model.merge_and_unload()
    assert all((scale.abs() >= 1).all() for scale in scales(merged))
    torch.testing.assert_close(merged(pixel_values).logits, logits, atol=1e-5, rtol=1e-5)


def test_lora_may_come_after_the_parts(tiny_vit):
    base = make_model(tiny_vit)
    part = LayerNormUplift(base, 1)
    add_lora(base)
    part.step()
    assert all((layer.layernorm_after.modules_to_save["default"].weight.abs() >= 1).all() for layer in base.vit.layers)


def test_wrapped_models(tiny_vit):
    model = make_model(tiny_vit)
    wrapped = nn.Sequential(model)
    assert find_blocks(wrapped) == find_blocks(model) == list(model.vit.layers)


def test_models_without_the_parts_are_refused(tiny_vit):
    vit = ViTModel(ViTConfig(**tiny_vit))
    with pytest.raises(ValueError, match="no doubly biased MLP"):
        restrict_layer_norms(vit)
    with pytest.raises(ValueError, match="no doubly biased MLP"):
        LayerNormUplift(vit, 3)
    with pytest.raises(ValueError, match="jsrelu"):
        ActivationMixing(make_model(tiny_vit, hidden_act="relu"), 3)
    with pytest.raises(ValueError, match="num_steps"):
        LayerNormUplift(make_model(tiny_vit), -1)
    with pytest.raises(ValueError, match="num_steps"):
        ActivationMixing(make_model(tiny_vit), -1)


# --- transformers' Trainer -------------------------------------------------------------------------------------------


class Examples(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"pixel_values": torch.randn(3, 8, 8, generator=generator), "labels": index % 10}


def run_trainer(model, parts, folder, max_steps, **kwargs) -> None:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=max_steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        save_steps=3,
        lr_scheduler_type="constant",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=Examples(), callbacks=[SparsityCallback(*parts)]).train(**kwargs)


def test_trainer_steps_after_optimizer_steps_and_resumes(tiny_vit, tmp_path):
    model = make_model(tiny_vit)
    uplift, mixing = LayerNormUplift(model, 6), ActivationMixing(model, 6)
    run_trainer(model, [uplift, mixing], tmp_path / "whole", 6)
    assert uplift.num_steps_done == mixing.num_steps_done == 6  # of 12 micro-batches
    assert all((scale.abs() >= 1).all() for scale in scales(model))
    assert model.activation_mix == 1

    half = make_model(tiny_vit)
    run_trainer(half, [LayerNormUplift(half, 6), ActivationMixing(half, 6)], tmp_path / "parted", 3)
    assert half.activation_mix == 0.5
    again = make_model(tiny_vit)
    parts = [LayerNormUplift(again, 6), ActivationMixing(again, 6)]
    run_trainer(again, parts, tmp_path / "parted", 6, resume_from_checkpoint=True)
    assert again.activation_mix == 1
    assert [part.num_steps_done for part in parts] == [6, 6]
    # The Trainer itself resumes to about this, without any callback too.
    torch.testing.assert_close(scales(again), scales(model), rtol=0, atol=1e-3)

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

from crate_testing import make_model
from helpers import randomize
from sparsight import JSReLU
from sparsight.analysis.sparsity import SparsityMeter, TrainingSparsity, find_mlp_activations, make_meter


LAYERS = ["vit.layers.0.mlp", "vit.layers.1.mlp"]


def pre_activations(model, pixel_values) -> list[torch.Tensor]:
    """What goes into each activation, by a plain hook on the matrix before it."""
    seen = []
    handles = [
        layer.mlp.fc1.register_forward_hook(lambda module, args, output: seen.append(output))
        for layer in model.vit.layers
    ]
    with torch.no_grad():
        model(pixel_values)
    for handle in handles:
        handle.remove()
    return seen


def test_counts_of_a_sparse_vit(sparse_vit, pixel_values):
    with SparsityMeter(sparse_vit) as meter:
        sparse_vit(pixel_values)
    sparsity = meter.compute()
    positive = [float((x > 0).double().mean()) for x in pre_activations(sparse_vit, pixel_values)]
    assert list(sparsity.nonzero_share_per_layer) == LAYERS
    assert list(sparsity.nonzero_share_per_layer.values()) == positive
    assert list(sparsity.derivative_nonzero_share_per_layer.values()) == positive
    assert sparsity.nonzero_share == pytest.approx(sum(positive) / 2)
    assert 0.1 < sparsity.nonzero_share < 0.9
    assert sparsity.num_tokens == dict.fromkeys(LAYERS, 3 * 17)


@pytest.mark.parametrize("activation", ["relu", "gelu", "relu6", "jsrelu"])
def test_activations_and_derivatives_of_a_transformers_vit(tiny_vit, pixel_values, activation):
    model = randomize(ViTForImageClassification(ViTConfig(**tiny_vit, hidden_act=activation)), std=2.0)
    with SparsityMeter(model) as meter:
        model(pixel_values)
    sparsity = meter.compute()
    function = model.vit.layers[0].mlp.activation_fn.forward
    for name, x in zip(LAYERS, pre_activations(model, pixel_values), strict=True):
        x = x.detach().requires_grad_()
        y = function(x)
        (derivative,) = torch.autograd.grad(y.sum(), x)
        assert sparsity.nonzero_share_per_layer[name] == (y != 0).double().mean().item()
        assert sparsity.derivative_nonzero_share_per_layer[name] == (derivative != 0).double().mean().item()
    if activation == "relu6":  # flat above 6, where it is not zero
        assert sparsity.derivative_nonzero_share < sparsity.nonzero_share


@settings(deadline=None, max_examples=20)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_exact_over_uneven_batches(sizes):
    """The share over a data set is the share over all of it at once, however it is cut into batches."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Sequential(nn.Linear(4, 6), nn.ReLU())])
    model.forward = model[0].forward
    batches = [torch.randn(size, 3, 4) for size in sizes]
    with SparsityMeter(model) as meter:
        for batch in batches:
            model(batch)
    whole = model[0](torch.cat(batches))
    assert meter.compute().nonzero_share == (whole != 0).double().mean().item()


def test_padding_is_left_out():
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        hidden_act="relu",
    )
    model = randomize(BertModel(config))
    ids = torch.randint(1, 50, (2, 7))
    mask = torch.ones_like(ids)
    mask[0, 4:] = 0
    mask[1, 6:] = 0
    with SparsityMeter(model) as meter:
        model(input_ids=ids, attention_mask=mask)
        by_keyword = meter.compute()
        meter.reset()
        model(ids, mask)
        by_position = meter.compute()
        meter.reset()
        model(ids[:1, :4])
        model(ids[1:, :6])
    alone = meter.compute()
    assert by_keyword == by_position
    assert by_keyword.num_tokens == {f"encoder.layer.{layer}.intermediate": 10 for layer in range(2)}
    assert by_keyword.nonzero_share == pytest.approx(alone.nonzero_share, abs=2 / (10 * 24 * 2))


def test_encoder_and_decoder_have_their_own_masks():
    config = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0)
    model = randomize(T5ForConditionalGeneration(config))
    source, target = torch.randint(1, 50, (2, 6)), torch.randint(1, 50, (2, 4))
    source_mask, target_mask = torch.ones_like(source), torch.ones_like(target)
    source_mask[0, 3:] = 0
    target_mask[1, 1:] = 0
    with SparsityMeter(model) as meter:
        model(
            input_ids=source, attention_mask=source_mask, decoder_input_ids=target, decoder_attention_mask=target_mask
        )
    tokens = meter.compute().num_tokens
    assert {name.split(".")[0]: count for name, count in tokens.items()} == {"encoder": 9, "decoder": 5}


def test_results_of_one_stack(sparse_vit, pixel_values):
    with SparsityMeter(sparse_vit) as meter:
        sparse_vit(pixel_values)
    sparsity = meter.compute()
    assert sparsity.to_results() == {
        "nonzero_share": sparsity.nonzero_share,
        "nonzero_share_per_layer": [sparsity.nonzero_share_per_layer[name] for name in LAYERS],
        "derivative_nonzero_share": sparsity.derivative_nonzero_share,
        "derivative_nonzero_share_per_layer": [sparsity.derivative_nonzero_share_per_layer[name] for name in LAYERS],
        "num_tokens": 51,
    }


@pytest.mark.parametrize("activation", ["relu", "relu6"])
def test_results_of_an_encoder_decoder(activation):
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 1}
    config = T5Config(**sizes, num_heads=2, decoder_start_token_id=0, feed_forward_proj=activation)
    model = randomize(T5ForConditionalGeneration(config), std=2.0)
    with SparsityMeter(model) as meter:
        model(input_ids=torch.randint(1, 50, (2, 6)), decoder_input_ids=torch.randint(1, 50, (2, 4)))
    sparsity = meter.compute()
    layers = {
        "encoder": [f"encoder.block.{index}.layer.1.DenseReluDense" for index in range(2)],
        "decoder": ["decoder.block.0.layer.2.DenseReluDense"],
    }
    expected = {
        "nonzero_share": sparsity.nonzero_share,
        "derivative_nonzero_share": sparsity.derivative_nonzero_share,
        "num_encoder_tokens": 12,
        "num_decoder_tokens": 8,
    }
    for side, names in layers.items():
        expected[f"{side}_nonzero_share_per_layer"] = [sparsity.nonzero_share_per_layer[name] for name in names]
        derivatives = [sparsity.derivative_nonzero_share_per_layer[name] for name in names]
        expected[f"{side}_derivative_nonzero_share_per_layer"] = derivatives
    assert sparsity.to_results() == expected
    assert (sparsity.nonzero_share == sparsity.derivative_nonzero_share) == (activation == "relu")


def test_results_of_a_wrapped_encoder_decoder(sparse_t5):
    model = get_peft_model(sparse_t5, LoraConfig(r=2, target_modules=["wi"]))
    with SparsityMeter(model) as meter:
        model(input_ids=torch.randint(1, 50, (2, 6)), decoder_input_ids=torch.randint(1, 50, (2, 4)))
    results = meter.compute().to_results()
    assert [len(results[f"{side}_nonzero_share_per_layer"]) for side in ("encoder", "decoder")] == [2, 2]
    assert "nonzero_share_per_layer" not in results


@pytest.mark.parametrize(
    ("activation", "counted"),
    [("relu", True), ("jsrelu", True), ("relu6", False), ("gelu", False), ("silu", False)],
)
def test_meters_without_derivatives_watch_rectifiers_only(tiny_vit, pixel_values, activation, counted):
    model = randomize(ViTForImageClassification(ViTConfig(**tiny_vit, hidden_act=activation)))
    assert list(make_meter(model).activations) == LAYERS
    meter = make_meter(model, derivatives=False)
    assert (meter is not None) == counted
    if counted:
        whole = make_meter(model)
        with meter, whole:
            model(pixel_values)
        assert meter.compute() == whole.compute()


def test_meters_without_derivatives_of_our_families(sparse_vit):
    crate = make_model()  # the output of ISTA is a rectifier's
    for model in (sparse_vit, crate):
        assert list(make_meter(model, derivatives=False).activations) == list(make_meter(model).activations)
    mixed = nn.ModuleList([nn.Sequential(nn.Linear(4, 6), activation()) for activation in (nn.ReLU, nn.GELU)])
    assert list(make_meter(mixed, derivatives=False).activations) == ["0"]


@pytest.mark.parametrize("derivatives", [True, False])
def test_models_without_activations_have_no_meter(derivatives):
    assert make_meter(nn.Sequential(nn.Linear(3, 4)), derivatives) is None


def test_finds_mlps_of_other_architectures(tiny_vit):
    small = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "vocab_size": 10}
    assert len(find_mlp_activations(GPT2Model(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=10)))) == 2
    assert len(find_mlp_activations(LlamaModel(LlamaConfig(**small, intermediate_size=8)))) == 2
    with_pooler = ViTModel(ViTConfig(**tiny_vit))
    assert list(find_mlp_activations(with_pooler)) == ["layers.0.mlp", "layers.1.mlp"]


def test_sees_through_peft(sparse_vit, pixel_values):
    plain = SparsityMeter(sparse_vit)
    with plain:
        sparse_vit(pixel_values)
    model = get_peft_model(sparse_vit, LoraConfig(r=2, target_modules=["fc1", "fc2", "q_proj"]))
    with SparsityMeter(model) as meter:
        model(pixel_values=pixel_values)
    assert meter.compute() == plain.compute()  # LoRA starts as the identity


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputed_activations_count_once(sparse_vit, pixel_values, use_reentrant):
    sparse_vit.train()
    sparse_vit.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    with SparsityMeter(sparse_vit) as meter:
        sparse_vit(pixel_values.requires_grad_(), labels=torch.tensor([0, 1, 2])).loss.backward()
    assert meter.compute().num_tokens == dict.fromkeys(LAYERS, 51)


def test_counts_only_inside_the_block(sparse_vit, pixel_values):
    meter = SparsityMeter(sparse_vit)
    with pytest.raises(RuntimeError, match="nothing was counted"):
        meter.compute()
    with meter:
        sparse_vit(pixel_values)
    sparse_vit(pixel_values)
    assert meter.compute().num_tokens == dict.fromkeys(LAYERS, 51)
    with meter:
        sparse_vit(pixel_values)
    assert meter.compute().num_tokens == dict.fromkeys(LAYERS, 102)
    assert not any(module._forward_hooks for module in sparse_vit.modules())


def test_does_not_change_the_model(sparse_vit, pixel_values):
    labels = torch.tensor([0, 1, 2])
    sparse_vit(pixel_values, labels=labels).loss.backward()
    plain = {name: parameter.grad.clone() for name, parameter in sparse_vit.named_parameters()}
    sparse_vit.zero_grad()
    with SparsityMeter(sparse_vit):
        sparse_vit(pixel_values, labels=labels).loss.backward()
    torch.testing.assert_close({n: p.grad for n, p in sparse_vit.named_parameters()}, plain, rtol=0, atol=0)


def test_chosen_activations():
    model = nn.Sequential(nn.Linear(3, 4), JSReLU())
    with pytest.raises(ValueError, match="nothing to count"):
        SparsityMeter(model)
    with SparsityMeter(model, {"mine": model[1]}) as meter:
        model(torch.tensor([[1.0, 2, 3]]))
    assert list(meter.compute().nonzero_share_per_layer) == ["mine"]


def test_training_sparsity_is_the_integral_over_steps():
    training = TrainingSparsity()
    with pytest.raises(RuntimeError, match="undefined"):
        training.compute()
    training.update(0.5, num_steps=10)
    training.update(0.2, num_steps=30)
    resumed = TrainingSparsity()
    resumed.load_state_dict(training.state_dict())
    resumed.update(0.0, num_steps=10)
    assert training.compute() == pytest.approx((0.5 * 10 + 0.2 * 30) / 40)
    assert resumed.compute() == pytest.approx((0.5 * 10 + 0.2 * 30) / 50)

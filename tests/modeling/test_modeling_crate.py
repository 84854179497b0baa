# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AttentionInterface,
)

from crate_testing import NUM_TOKENS, images, make_config, make_model
from sparsight import CrateBackbone, CrateConfig, CrateForImageClassification, CrateModel
from sparsight.modeling.modeling_crate import CrateISTA


def reference(model: CrateForImageClassification, pixel_values: torch.Tensor) -> torch.Tensor:
    """The logits by the paper's equations in float64, token by token."""
    config, weights = model.config, {name: value.double() for name, value in model.state_dict().items()}

    def norm(x, name):
        x = (x - x.mean()) / (((x - x.mean()) ** 2).mean() + config.layer_norm_eps).sqrt()
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    (patch_height, patch_width), (rows, columns) = config.patch_size, config.image_grid
    outputs = []
    for image in pixel_values.double():
        tokens = [weights["crate.embeddings.cls_token"][0, 0]]
        for row in range(rows):
            for column in range(columns):
                patch = torch.stack(
                    [
                        image[channel, row * patch_height + i, column * patch_width + j]
                        for i in range(patch_height)
                        for j in range(patch_width)
                        for channel in range(config.num_channels)
                    ]
                )
                name = "crate.embeddings.patch_embeddings"
                patch = norm(patch, f"{name}.layernorm_before")
                patch = weights[f"{name}.projection.weight"] @ patch + weights[f"{name}.projection.bias"]
                tokens.append(norm(patch, f"{name}.layernorm_after"))
        z = torch.stack(tokens) + weights["crate.embeddings.position_embeddings"][0]
        for layer in range(config.num_hidden_layers):
            name = f"crate.layers.{layer}"
            normed = torch.stack([norm(token, f"{name}.layernorm_before") for token in z])
            heads = []
            for basis in weights[f"{name}.attention.subspace_proj.weight"].split(config.head_dim):
                w = normed @ basis.T
                heads.append((w @ w.T / math.sqrt(config.head_dim)).softmax(-1) @ w)
            mssa = torch.cat(heads, dim=1)
            if f"{name}.attention.o_proj.weight" in weights:
                mssa = mssa @ weights[f"{name}.attention.o_proj.weight"].T + weights[f"{name}.attention.o_proj.bias"]
            y = torch.stack([norm(token, f"{name}.layernorm_after") for token in z + mssa])
            dictionary = weights[f"{name}.ista.weight"]
            codes = []
            for token in y:  # columns, as in the paper
                code = token + config.ista_step_size * (dictionary.T @ token - dictionary.T @ (dictionary @ token))
                threshold = config.ista_step_size * config.ista_lambda
                if config.nonnegative:
                    codes.append((code - threshold).clamp(min=0))
                else:
                    codes.append(code.sign() * (code.abs() - threshold).clamp(min=0))
            z = torch.stack(codes)
        pooled = z[0] if config.pooling == "cls" else z.mean(0)
        outputs.append(weights["classifier.weight"] @ norm(pooled, "layernorm") + weights["classifier.bias"])
    return torch.stack(outputs)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"head_dim": 5},
        {"pooling": "mean", "num_channels": 1},
        {"num_attention_heads": 1},
        {"num_attention_heads": 1, "head_dim": 7},
        {"nonnegative": False, "ista_step_size": 0.3, "ista_lambda": 0.7},
        {"layer_norm_eps": 0.1},
        {"image_size": (32, 12), "patch_size": (8, 4)},
    ],
)
def test_logits_are_those_of_the_equations(overrides):
    model = make_model(**overrides)
    pixel_values = images(channels=model.config.num_channels, size=model.config.image_size)
    expected = reference(model, pixel_values)
    torch.testing.assert_close(model(pixel_values).logits.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.double()(pixel_values).logits, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_golden_logits_and_activations(golden_crate, dtype):
    model, golden = golden_crate.model(dtype), golden_crate.tensors
    seen = {}
    for index, layer in enumerate(model.crate.layers):
        layer.attention.subspace_proj.register_forward_hook(
            lambda module, args, output, index=index: seen.update({f"layer.{index}.subspace_projection": output})
        )
        layer.layernorm_after.register_forward_pre_hook(
            lambda module, args, index=index: seen.update({f"layer.{index}.after_mssa": args[0]})
        )
    outputs = model(golden["pixel_values"], output_hidden_states=True)
    seen["logits"] = outputs.logits
    for index, hidden_states in enumerate(outputs.hidden_states[1:]):
        seen[f"layer.{index}.after_ista"] = hidden_states
    assert seen.keys() == {key for key in golden if key.startswith("layer.") or key == "logits"}
    for name, value in seen.items():
        torch.testing.assert_close(value, golden[name].to(dtype), rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    for hidden_states, share in zip(outputs.hidden_states[1:], golden_crate.facts["zero_fraction"], strict=True):
        assert (hidden_states == 0).sum().item() == round(share * hidden_states.numel())


@pytest.mark.parametrize(
    ("size", "expected"), [("tiny", 6_090_856), ("small", 13_116_328), ("base", 22_796_008), ("large", 77_641_192)]
)
def test_parameter_counts(size, expected):
    with torch.device("meta"):
        model = CrateForImageClassification(CrateConfig.preset(size, num_labels=1000))
    assert model.num_parameters() == expected


@pytest.mark.parametrize(
    ("overrides", "present"),
    [
        ({"num_attention_heads": 1}, False),
        ({"num_attention_heads": 1, "head_dim": 7}, True),
        ({"num_attention_heads": 3}, True),
    ],
)
def test_one_full_subspace_has_no_output_projection(overrides, present):
    names = {name for name, _ in make_model(**overrides).named_parameters()}
    assert ("crate.layers.0.attention.o_proj.weight" in names) == present


def test_outputs():
    model = make_model(CrateModel)
    outputs = model(images(), output_hidden_states=True)
    assert len(outputs.hidden_states) == model.config.num_hidden_layers + 1
    assert outputs.last_hidden_state.shape == (2, NUM_TOKENS, 24)
    assert outputs.hidden_states[-1] is outputs.last_hidden_state
    torch.testing.assert_close(outputs.hidden_states[0], model.embeddings(images()))
    torch.testing.assert_close(outputs.pooler_output, outputs.last_hidden_state[:, 0])
    assert outputs.last_hidden_state.min() == 0
    assert (outputs.last_hidden_state > 0).any()
    pooled, last_hidden_state = model(images(), return_dict=False)[::-1]
    assert pooled.shape == (2, 24)
    assert last_hidden_state.shape == (2, NUM_TOKENS, 24)


@pytest.mark.parametrize("model_class", [CrateModel, CrateForImageClassification, CrateBackbone])
def test_config_may_ask_for_tuples(model_class):
    model = make_model(model_class, return_dict=False)
    assert isinstance(model(images()), tuple)


def test_sign_preserving_code_has_both_signs_and_zeros():
    code = make_model(CrateModel, nonnegative=False, ista_lambda=3.0)(images()).last_hidden_state
    assert (code > 0).any()
    assert (code < 0).any()
    assert (code == 0).any()


def test_mean_pooling_counts_the_class_token():
    outputs = make_model(CrateModel, pooling="mean")(images())
    torch.testing.assert_close(outputs.pooler_output, outputs.last_hidden_state.sum(1) / NUM_TOKENS)


@pytest.mark.parametrize(
    ("problem_type", "labels", "loss"),
    [
        ("single_label_classification", torch.tensor([1, 4]), F.cross_entropy),
        ("multi_label_classification", torch.eye(5)[:2], F.binary_cross_entropy_with_logits),
        ("regression", torch.arange(10.0).view(2, 5), F.mse_loss),
    ],
)
def test_losses(problem_type, labels, loss):
    model = make_model(problem_type=problem_type)
    outputs = model(images(), labels=labels)
    torch.testing.assert_close(outputs.loss, loss(outputs.logits, labels))


def test_every_parameter_gets_a_gradient():
    model = make_model().train()
    model(images(), labels=torch.tensor([1, 4])).loss.backward()
    assert [name for name, parameter in model.named_parameters() if not parameter.grad.abs().max() > 0] == []


def test_gradient_checkpointing_gives_the_same_gradients():
    model = make_model().train()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        calls = []
        handle = model.crate.layers[0].attention.register_forward_hook(lambda *args, calls=calls: calls.append(1))
        model.zero_grad()
        model(images(), labels=torch.tensor([1, 4])).loss.backward()
        handle.remove()
        # Checkpointing runs the layer a second time.
        assert len(calls) == 1 + checkpointing
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropout_acts_in_training_only(name):
    model = make_model(**{name: 0.5})
    plain = make_model()(images()).logits
    torch.testing.assert_close(model(images()).logits, plain)
    assert not torch.allclose(model.train()(images()).logits, plain)


def test_dropout_spares_the_residual_stream():
    layer = make_model(hidden_dropout_prob=0.5).crate.layers[0].train()
    tokens, after_mssa = torch.randn(2, NUM_TOKENS, 24), []
    layer.layernorm_after.register_forward_pre_hook(lambda module, args: after_mssa.append(args[0]))
    layer(tokens)
    kept = after_mssa[0] == tokens
    assert 0.4 < kept.double().mean() < 0.6


def test_one_projection_is_query_key_and_value():
    calls = []

    def spy(module, query, key, value, attention_mask, scaling, dropout, **kwargs):
        calls.append((query is key is value, tuple(query.shape), attention_mask, scaling))
        return query.transpose(1, 2), None

    AttentionInterface.register("spy", spy)
    try:
        model = make_model()
        model.set_attn_implementation("spy")
        model(images())
    finally:
        AttentionInterface._global_mapping.pop("spy")
    assert calls == [(True, (2, 3, NUM_TOKENS, 8), None, 8**-0.5)] * 2


def test_attentions_are_recorded():
    model = make_model()
    model.set_attn_implementation("eager")
    attentions = model(images(), output_attentions=True).attentions
    assert [tuple(attention.shape) for attention in attentions] == [(2, 3, NUM_TOKENS, NUM_TOKENS)] * 2
    torch.testing.assert_close(attentions[1].sum(-1), torch.ones(2, 3, NUM_TOKENS))


class _Shapes(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        self.seen |= {tuple(leaf.shape) for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)}
        return output


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_sdpa_never_forms_the_matrix_of_all_pairs(implementation):
    model = make_model().train()
    model.set_attn_implementation(implementation)
    with _Shapes() as shapes:
        model(images(), labels=torch.tensor([1, 4])).loss.backward()
    quadratic = {shape for shape in shapes.seen if shape[-2:] == (NUM_TOKENS, NUM_TOKENS)}
    assert bool(quadratic) == (implementation == "eager")


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), penalty=st.floats(0, 2), share=st.floats(0.05, 1))
def test_ista_step_descends_on_the_lasso_objective(seed, penalty, share):
    """A proximal gradient step of at most 1/‖D‖² never increases ½‖Y − Dz‖² + λ‖z‖₁, started at z = Y."""
    generator = torch.Generator().manual_seed(seed)
    dictionary = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    step_size = share / torch.linalg.matrix_norm(dictionary, 2).item() ** 2
    config = make_config(
        hidden_size=6, nonnegative=False, ista_step_size=step_size, ista_lambda=penalty, layer_norm_eps=1e-5
    )
    ista = CrateISTA(config).double()
    ista.weight.data = dictionary
    y = torch.randn(4, 6, generator=generator, dtype=torch.float64)

    def objective(z):
        return ((y - z @ dictionary.T) ** 2).sum(-1) / 2 + penalty * z.abs().sum(-1)

    assert (objective(ista(y)) <= objective(y) + 1e-9).all()


def _ista_flops(model) -> int:
    with FlopCounterMode(display=False) as counter:
        model.crate.layers[0].ista(torch.randn(2, NUM_TOKENS, 24))
    return counter.get_total_flops()


def test_ista_costs_two_products_and_fused_one():
    model = make_model()
    product = 2 * 2 * NUM_TOKENS * 24 * 24
    assert _ista_flops(model) == 2 * product
    model.fuse_ista()
    assert _ista_flops(model) == product
    model.unfuse_ista()
    assert _ista_flops(model) == 2 * product


@pytest.mark.parametrize("nonnegative", [True, False])
def test_fusing_changes_neither_logits_nor_checkpoint(tmp_path, nonnegative):
    model = make_model(nonnegative=nonnegative, ista_step_size=0.4)
    expected, state = model(images()).logits, {name: value.clone() for name, value in model.state_dict().items()}
    model.save_pretrained(tmp_path / "plain")
    model.fuse_ista()
    torch.testing.assert_close(model(images()).logits, expected, rtol=0, atol=1e-5)
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    model.save_pretrained(tmp_path / "fused")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "fused" / name).read_bytes()
    model.unfuse_ista()
    assert torch.equal(model(images()).logits, expected)


def test_fusing_is_refused_in_training():
    with pytest.raises(RuntimeError, match=r"model\.eval\(\)"):
        make_model().train().fuse_ista()


def test_training_mode_undoes_the_fold():
    model = make_model()
    model.fuse_ista()
    assert _ista_flops(model) == 2 * 2 * NUM_TOKENS * 24 * 24
    model.train()
    model(images(), labels=torch.tensor([1, 4])).loss.backward()
    assert model.crate.layers[0].ista.weight.grad.abs().max() > 0


def test_loading_weights_undoes_the_fold():
    model, other = make_model(), make_model()
    torch.nn.init.normal_(other.crate.layers[1].ista.weight)
    model.fuse_ista()
    model.load_state_dict(other.state_dict())
    assert torch.equal(model(images()).logits, other(images()).logits)


def test_fold_follows_the_precision_of_the_model():
    model = make_model()
    model.fuse_ista()
    expected = model(images()).logits
    torch.testing.assert_close(model.to(torch.bfloat16)(images()).logits.float(), expected, rtol=0.1, atol=0.1)


def test_fold_is_rounded_once():
    ista = CrateISTA(make_config(hidden_size=64, head_dim=8)).to(torch.bfloat16).eval()
    torch.nn.init.normal_(ista.weight, generator=torch.Generator().manual_seed(0))
    ista.fuse()
    weight = ista.weight.double()
    fold = torch.eye(64) + 0.1 * (weight.T - weight.T @ weight)
    assert (ista.fused_weight == fold.to(torch.bfloat16)).double().mean() > 0.99

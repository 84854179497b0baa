# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import json
import re

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForMaskedImageModeling,
    ViTConfig,
    ViTForImageClassification,
    ViTForMaskedImageModeling,
    ViTImageProcessor,
    ViTModel,
    pipeline,
)

from helpers import randomize
from sparsight import (
    MixedActivation,
    SparseViTConfig,
    SparseViTForImageClassification,
    SparseViTForMaskedImageModeling,
    SparseViTModel,
)


def zeroth_bias_keys(num_layers: int = 2) -> set[str]:
    return {f"vit.layers.{layer}.mlp.zeroth_bias.weight" for layer in range(num_layers)}


def to_hub_key(key: str) -> str:
    """The name that a ViT parameter has in google/vit-base-patch16-224 as it lies on the Hub."""
    key = re.sub(r"^vit\.layers\.", "vit.encoder.layer.", key)
    key = re.sub(r"attention\.(q|k|v)_proj", lambda m: f"attention.attention.{_LONG[m[1]]}", key)
    key = key.replace("attention.o_proj", "attention.output.dense")
    return key.replace("mlp.fc1", "intermediate.dense").replace("mlp.fc2", "output.dense")


_LONG = {"q": "query", "k": "key", "v": "value"}


@pytest.fixture(params=["hub keys", "new keys", "saved by transformers", "own"])
def vanilla_checkpoint(request, tmp_path, tiny_vit, vanilla_vit):
    """A folder with a vanilla checkpoint in each form it comes in, and the parent model."""
    if request.param == "own":
        own = SparseViTForImageClassification(SparseViTConfig(**tiny_vit, hidden_act="gelu", zeroth_bias=False))
        own.load_state_dict(vanilla_vit.state_dict())
        own.save_pretrained(tmp_path)
    elif request.param == "saved by transformers":
        vanilla_vit.save_pretrained(tmp_path)
    else:
        rename = to_hub_key if request.param == "hub keys" else lambda key: key
        state_dict = {rename(key): value for key, value in vanilla_vit.state_dict().items()}
        save_file(state_dict, tmp_path / "model.safetensors", metadata={"format": "pt"})
        vanilla_vit.config.save_pretrained(tmp_path)
    return tmp_path, vanilla_vit


def test_hub_keys_are_the_real_ones(vanilla_vit):
    keys = {to_hub_key(key) for key in vanilla_vit.state_dict()}
    layer = "vit.encoder.layer.0."
    assert {
        layer + "attention.attention.query.weight",
        layer + "attention.output.dense.bias",
        layer + "intermediate.dense.weight",
        layer + "output.dense.weight",
        layer + "layernorm_after.bias",
    } <= keys
    assert not any(("proj" in key and "projection" not in key) or "fc1" in key for key in keys)


@pytest.mark.parametrize("zeroth_bias", [True, False])
def test_vanilla_checkpoint_gives_the_parents_logits(vanilla_checkpoint, pixel_values, zeroth_bias):
    folder, parent = vanilla_checkpoint
    model, info = SparseViTForImageClassification.from_pretrained(
        folder, zeroth_bias=zeroth_bias, output_loading_info=True
    )
    assert model.config.hidden_act == "gelu"
    assert info["missing_keys"] == (zeroth_bias_keys() if zeroth_bias else set())
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    assert all(not model.state_dict()[key].any() for key in info["missing_keys"])
    torch.testing.assert_close(model.eval()(pixel_values).logits, parent(pixel_values).logits, atol=1e-5, rtol=0)


def test_vanilla_checkpoint_becomes_sparse(vanilla_checkpoint, pixel_values):
    folder, parent = vanilla_checkpoint
    model, info = SparseViTForImageClassification.from_pretrained(
        folder, hidden_act="jsrelu", zeroth_bias=True, output_loading_info=True
    )
    assert info["missing_keys"] == zeroth_bias_keys()
    assert isinstance(model.vit.layers[0].mlp.activation_fn, MixedActivation)
    for name, parameter in parent.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), parameter, rtol=0, atol=0)
    assert model(pixel_values).logits.isfinite().all()


def test_checkpoint_of_ours_without_sparse_parts_loads_as_a_vit(tmp_path, tiny_vit, pixel_values):
    own = randomize(SparseViTForImageClassification(SparseViTConfig(**tiny_vit, hidden_act="relu", zeroth_bias=False)))
    own.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "vit"}))
    vit = ViTForImageClassification.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(vit(pixel_values).logits, own(pixel_values).logits)


def test_mlp_against_the_equation(sparse_vit):
    """y = W₂ σ(W₁(x + D) + b₁) + b₂, a token at a time in float64."""
    mlp = sparse_vit.double().vit.layers[0].mlp
    x = torch.randn(1, 17, 32, dtype=torch.float64)
    expected = torch.empty_like(x)
    for token in range(17):
        pre = mlp.fc1.weight @ (x[0, token] + mlp.zeroth_bias.weight[token]) + mlp.fc1.bias
        post = torch.where(pre > 0, ((pre + 1) ** 2 - 1) / 2, 0)
        expected[0, token] = mlp.fc2.weight @ post + mlp.fc2.bias
    torch.testing.assert_close(mlp(x), expected)


def test_only_the_mlp_block_differs_from_vit(tiny_vit, pixel_values):
    model = randomize(SparseViTForImageClassification(SparseViTConfig(**tiny_vit, hidden_act="relu")))
    vit = ViTForImageClassification(ViTConfig(**tiny_vit, hidden_act="relu")).eval()
    report = vit.load_state_dict(model.state_dict(), strict=False)
    assert set(report.unexpected_keys) == zeroth_bias_keys()
    assert not report.missing_keys

    def add_zeroth_bias(index):
        bias = model.vit.layers[index].mlp.zeroth_bias.weight
        return lambda module, args: (args[0] + bias,)

    for index, layer in enumerate(vit.vit.layers):
        layer.mlp.register_forward_pre_hook(add_zeroth_bias(index))
    torch.testing.assert_close(model(pixel_values).logits, vit(pixel_values).logits)


def test_mlp_norm_bias(tiny_vit, tmp_path):
    model = SparseViTForImageClassification(SparseViTConfig(**tiny_vit, mlp_norm_bias=False))
    assert not any("layernorm_after.bias" in name for name, _ in model.named_parameters())
    model.save_pretrained(tmp_path)
    _, info = AutoModelForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))


@pytest.mark.parametrize("attention", ["eager", "sdpa", "flex_attention"])
@torch.no_grad()  # flex attention has no backward on the CPU
def test_attention_implementations_agree(sparse_vit, pixel_values, attention, tmp_path):
    sparse_vit.save_pretrained(tmp_path)
    model = SparseViTForImageClassification.from_pretrained(tmp_path, attn_implementation=attention).eval()
    assert model.config._attn_implementation == attention
    torch.testing.assert_close(model(pixel_values).logits, sparse_vit(pixel_values).logits, atol=1e-5, rtol=1e-4)


def test_hidden_states_and_attentions(sparse_vit, pixel_values):
    sparse_vit.set_attn_implementation("eager")
    outputs = sparse_vit(pixel_values, output_hidden_states=True, output_attentions=True)
    assert [tuple(state.shape) for state in outputs.hidden_states] == [(3, 17, 32)] * 3
    assert [tuple(attention.shape) for attention in outputs.attentions] == [(3, 4, 17, 17)] * 2
    torch.testing.assert_close(outputs.attentions[0].sum(-1), torch.ones(3, 4, 17))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradients(sparse_vit, pixel_values, use_reentrant):
    labels = torch.tensor([1, 2, 3])

    def gradients():
        sparse_vit.zero_grad()
        sparse_vit(pixel_values, labels=labels).loss.backward()
        return {name: parameter.grad.clone() for name, parameter in sparse_vit.named_parameters()}

    sparse_vit.train()
    plain = gradients()
    sparse_vit.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    assert plain["vit.layers.0.mlp.zeroth_bias.weight"].any()
    torch.testing.assert_close(gradients(), plain)


@pytest.mark.parametrize("size", [(12, 12), (8, 16), (16, 6)])
def test_interpolated_zeroth_bias(sparse_vit, size):
    """Each column of D, resampled alone as an image of one channel; then the whole model at that size."""
    bias = sparse_vit.vit.layers[1].mlp.zeroth_bias
    grid = (size[0] // 2, size[1] // 2)
    resampled = bias(torch.zeros(1, grid[0] * grid[1] + 1, 32), grid)[0]
    torch.testing.assert_close(resampled[0], bias.weight[0])
    for column in (0, 7, 31):
        image = bias.weight[1:, column].reshape(1, 1, 4, 4)
        expected = nn.functional.interpolate(image, grid, mode="bicubic", align_corners=False).flatten()
        torch.testing.assert_close(resampled[1:, column], expected)
    logits = sparse_vit(torch.randn(2, 3, *size), interpolate_pos_encoding=True).logits
    assert logits.shape == (2, 10)


def test_zeroth_bias_interpolates_like_the_position_embedding(sparse_vit):
    """With D set to the position embedding, both must give the same rows for another image size."""
    embeddings, bias = sparse_vit.vit.embeddings, sparse_vit.vit.layers[0].mlp.zeroth_bias
    with torch.no_grad():
        bias.weight.copy_(embeddings.position_embeddings[0])
    tokens = torch.zeros(1, 6 * 3 + 1, 32)
    expected = embeddings.interpolate_pos_encoding(tokens, 12, 6)
    torch.testing.assert_close(bias(tokens, (6, 3)), expected)
    # At the native size, interpolation is the identity.
    native = torch.zeros(1, 17, 32)
    torch.testing.assert_close(bias(native, (4, 4))[0], bias.weight, rtol=0, atol=0)


def test_wrong_image_size_is_refused(sparse_vit):
    with pytest.raises(ValueError, match="doesn't match model"):
        sparse_vit(torch.randn(1, 3, 12, 12))


def test_rectangular_images(tiny_vit):
    config = SparseViTConfig(**{**tiny_vit, "image_size": [8, 12], "patch_size": [2, 4]})
    model = SparseViTForImageClassification(config)
    assert model.vit.layers[0].mlp.zeroth_bias.weight.shape == (13, 32)
    assert model(torch.randn(2, 3, 8, 12)).logits.shape == (2, 10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(sparse_vit, pixel_values, dtype, tmp_path):
    sparse_vit.save_pretrained(tmp_path)
    model = AutoModelForImageClassification.from_pretrained(tmp_path, dtype=dtype).eval()
    logits = model(pixel_values).logits
    assert logits.dtype == dtype
    expected = sparse_vit(pixel_values).logits
    assert (logits.float() - expected).norm() < 0.05 * expected.norm()


def test_compiles_to_one_graph_that_mixing_does_not_change(sparse_vit, pixel_values):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(sparse_vit, fullgraph=True, backend=counter)
    labels = torch.tensor([1, 2, 3])
    for portion in (0.0, 0.5, 1.0):
        sparse_vit.activation_mix = portion
        expected = sparse_vit(pixel_values, labels=labels)
        outputs = compiled(pixel_values, labels=labels)
        torch.testing.assert_close(outputs.logits, expected.logits)
        outputs.loss.backward()
    assert counter.frame_count == 1


def test_activation_mix(sparse_vit, pixel_values, tmp_path):
    """The portion changes the output linearly at one MLP's end, survives saving, loading and the meta device."""
    logits = {}
    for portion in (0.0, 0.25, 1.0):
        sparse_vit.activation_mix = portion
        assert sparse_vit.config.activation_mix == portion
        logits[portion] = sparse_vit(pixel_values).logits
    assert not torch.allclose(logits[0.0], logits[1.0])
    sparse_vit.activation_mix = 0.25
    sparse_vit.save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path).eval()  # built on the meta device
    assert loaded.activation_mix == 0.25
    assert loaded.vit.layers[1].mlp.activation_fn.portion.item() == 0.25
    torch.testing.assert_close(loaded(pixel_values).logits, logits[0.25])
    assert not any("portion" in key for key in load_file(tmp_path / "model.safetensors"))


def test_activation_mix_zero_is_relu(sparse_vit, pixel_values, tiny_vit):
    relu = SparseViTForImageClassification(SparseViTConfig(**tiny_vit, hidden_act="relu")).eval()
    relu.load_state_dict(sparse_vit.state_dict())
    sparse_vit.activation_mix = 0.0
    torch.testing.assert_close(sparse_vit(pixel_values).logits, relu(pixel_values).logits)
    with pytest.raises(AttributeError, match="jsrelu"):
        relu.activation_mix = 0.5
    with pytest.raises(StrictDataclassError, match="activation_mix"):
        sparse_vit.activation_mix = 1.5
    assert sparse_vit.activation_mix == 0.0


def test_linear_above_reaches_the_activation(tiny_vit):
    model = SparseViTModel(SparseViTConfig(**tiny_vit, jsrelu_linear_above=4.0))
    assert {layer.mlp.activation_fn.linear_above for layer in model.layers} == {4.0}


@pytest.mark.parametrize(
    ("auto_class", "own_class", "parent_class"),
    [
        (AutoModel, SparseViTModel, ViTModel),
        (AutoModelForImageClassification, SparseViTForImageClassification, ViTForImageClassification),
        (AutoModelForMaskedImageModeling, SparseViTForMaskedImageModeling, ViTForMaskedImageModeling),
    ],
)
def test_auto_classes_round_trip(auto_class, own_class, parent_class, tiny_vit, pixel_values, tmp_path):
    config = SparseViTConfig(**tiny_vit, encoder_stride=2)
    model = randomize(auto_class.from_config(config))
    assert type(model) is own_class
    assert isinstance(model, parent_class)
    model.save_pretrained(tmp_path)
    loaded, info = auto_class.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is own_class
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(loaded.eval()(pixel_values)[0], model(pixel_values)[0], rtol=0, atol=0)


def test_fresh_model_is_initialised_as_vit_is(tiny_vit):
    config = SparseViTConfig(**{**tiny_vit, "hidden_size": 256, "intermediate_size": 512})
    model = SparseViTModel(config)
    assert abs(model.layers[0].mlp.fc1.weight.std().item() - config.initializer_range) < 1e-3
    assert not model.layers[0].mlp.zeroth_bias.weight.any()
    assert not model.layers[0].mlp.fc1.bias.any()


def test_masked_image_modeling(tiny_vit, pixel_values):
    model = SparseViTForMaskedImageModeling(SparseViTConfig(**tiny_vit, encoder_stride=2))
    mask = torch.zeros(3, 16, dtype=torch.bool)
    mask[:, ::3] = True
    outputs = model(pixel_values, bool_masked_pos=mask)
    assert outputs.reconstruction.shape == pixel_values.shape
    outputs.loss.backward()
    assert model.vit.layers[0].mlp.zeroth_bias.weight.grad.any()


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_pipeline(sparse_vit, tmp_path, mode):
    sparse_vit.config.id2label = {index: f"digit {index}" for index in range(10)}
    sparse_vit.save_pretrained(tmp_path)
    ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(tmp_path)
    classify = pipeline("image-classification", model=str(tmp_path), top_k=3)
    assert type(classify.model) is SparseViTForImageClassification
    pixels = np.random.default_rng(0).integers(0, 255, (20, 24, 4), dtype=np.uint8)
    image = Image.fromarray(pixels, "RGBA").convert(mode)
    answers = classify([image, image], batch_size=2)
    assert len(answers) == 2
    assert len(answers[0]) == 3
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    inputs = processor(image.convert("RGB"), return_tensors="pt")
    probabilities = sparse_vit(**inputs).logits.softmax(-1)[0]
    assert answers[0][0]["label"] == f"digit {probabilities.argmax().item()}"
    assert answers[0][0]["score"] == pytest.approx(probabilities.max().item(), abs=1e-5)

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import (
    CLIPConfig,
    CLIPForImageClassification,
    Dinov2Config,
    Dinov2ForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

from sparsight import CrateBackbone, CrateConfig, CrateForImageClassification
from sparsight.analysis.data import digits_images, folder_images, image_loader
from sparsight.analysis.rate_reduction import coding_rate, compression_rate, layerwise_rate_reduction, record_layers


def features(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_model(model_class=CrateForImageClassification, **overrides):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 8, "patch_size": 4}
    return model_class(CrateConfig(**sizes | overrides)).eval()


@given(seed=st.integers(0, 2**32 - 1), tokens=st.integers(1, 9), dim=st.integers(1, 9), eps=st.floats(0.05, 5))
def test_coding_rate_is_the_entropy_of_the_spectrum(seed, tokens, dim, eps):
    z = features(seed, tokens, dim)
    expected = sum(
        math.log(1 + dim / (tokens * eps**2) * eigenvalue.clamp(min=0)) / 2
        for eigenvalue in torch.linalg.eigvalsh(z @ z.T)
    )
    assert coding_rate(z, eps).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(seed=st.integers(0, 2**32 - 1))
def test_coding_rate_ignores_rotations_and_grows_with_precision(seed):
    z = features(seed, 5, 7)
    rotation = torch.linalg.qr(features(seed + 1, 7, 7)).Q
    torch.testing.assert_close(coding_rate(z @ rotation), coding_rate(z))
    torch.testing.assert_close(coding_rate(z.flip(0)), coding_rate(z))
    assert 0 < coding_rate(z, 0.2) < coding_rate(z, 0.1)


@given(seed=st.integers(0, 2**32 - 1), heads=st.integers(1, 4), head_dim=st.integers(1, 5))
def test_compression_rate_sums_over_subspaces(seed, heads, head_dim):
    z, bases = features(seed, 2, 6, 8), features(seed + 1, heads, 8, head_dim)
    expected = torch.zeros(2, dtype=torch.float64)
    for image in range(2):
        for basis in bases:
            w = z[image] @ basis
            scale = head_dim / (6 * 0.3**2)
            expected[image] += torch.logdet(torch.eye(6, dtype=torch.float64) + scale * w @ w.T) / 2
    torch.testing.assert_close(compression_rate(z, bases, eps=0.3), expected)


@pytest.mark.parametrize(("shape", "side"), [((197, 64), 64), ((17, 64), 17)])
def test_coding_rate_factorises_the_smaller_gram_matrix(monkeypatch, shape, side):
    sides, cholesky = [], torch.linalg.cholesky
    monkeypatch.setattr(torch.linalg, "cholesky", lambda gram: sides.append(gram.shape[-1]) or cholesky(gram))
    coding_rate(features(0, *shape))
    assert sides == [side]


def test_coding_rate_in_half_precision_is_computed_in_single():
    z = features(0, 20, 8).bfloat16()
    rate = coding_rate(z)
    assert rate.dtype == torch.float32
    torch.testing.assert_close(rate.double(), coding_rate(z.double()), rtol=1e-5, atol=0)


def test_coding_rate_has_a_gradient():
    z = features(0, 4, 3).requires_grad_()
    assert torch.autograd.gradcheck(coding_rate, (z,))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coding_rate(torch.ones(3, 2), eps=0), "`eps` must be positive, got 0"),
        (lambda: coding_rate(torch.ones(3)), r"`features` must be .*got \(3,\)"),
        (lambda: coding_rate(torch.ones(0, 3)), r"got \(0, 3\)"),
        (
            lambda: compression_rate(torch.ones(3, 2), torch.ones(1, 3, 2)),
            r"\(subspaces, 2, dimensions\).*\(1, 3, 2\)",
        ),
    ],
)
def test_rates_refuse_nonsense(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_golden_rates_and_zero_shares(golden_crate, dtype):
    layers = layerwise_rate_reduction(golden_crate.model(dtype), [golden_crate.tensors["pixel_values"]])
    facts = golden_crate.facts
    assert len(layers) == len(facts["coding_rate_mean"])
    for layer, mean, std, share in zip(
        layers, facts["coding_rate_mean"], facts["coding_rate_std"], facts["zero_fraction"], strict=True
    ):
        assert layer.compression_rate_mean == pytest.approx(mean, abs=1e-3)
        assert layer.compression_rate_std == pytest.approx(std, abs=1e-3)
        assert layer.zero_share_mean == pytest.approx(share, abs=1e-12)
        assert layer.nonzero_share_mean == pytest.approx(1 - share, abs=1e-12)


def test_golden_states_come_from_one_forward_pass(golden_crate):
    model, golden = golden_crate.model(), golden_crate.tensors
    with record_layers(model) as layers:
        model(golden["pixel_values"])
    for index, states in enumerate(layers):
        projection = states.projections.transpose(1, 2).flatten(2)
        for value, name in (
            (projection, "subspace_projection"),
            (states.after_attention, "after_mssa"),
            (states.output, "after_ista"),
        ):
            torch.testing.assert_close(value.float(), golden[f"layer.{index}.{name}"], rtol=0, atol=1e-5)
    layers[0].output = None
    model(golden["pixel_values"])
    assert layers[0].output is None  # the hooks are gone


def test_batches_and_their_forms_do_not_matter():
    model, images = make_model(), features(0, 6, 3, 8, 8).float()
    expected = layerwise_rate_reduction(model, [images])
    mappings = [{"pixel_values": images[:2], "labels": None}, {"pixel_values": images[2:], "labels": None}]
    for dataloader in (mappings, [(images[:5], None), (images[5:], None)]):
        for layer, other in zip(expected, layerwise_rate_reduction(model, dataloader), strict=True):
            assert vars(other) == pytest.approx(vars(layer), rel=1e-5)


def test_one_image_has_no_deviation():
    layer, *_ = layerwise_rate_reduction(make_model(), [features(0, 1, 3, 8, 8)])
    assert (layer.compression_rate_std, layer.zero_share_std) == (0, 0)
    assert 0 < layer.zero_share_mean < 1


def test_measuring_leaves_the_model_as_it_was():
    model = make_model(hidden_dropout_prob=0.5).train()
    rates = [layerwise_rate_reduction(model, [features(0, 2, 3, 8, 8)]) for _ in range(2)]
    assert rates[0] == rates[1]  # without dropout
    assert model.training
    assert not any(module._forward_hooks for module in model.crate.layers[0].attention.modules())
    model.eval()
    model.fuse_ista()
    layerwise_rate_reduction(model, [features(0, 2, 3, 8, 8)])
    assert model.crate.layers[0].ista.fused_weight is not None


def test_backbones_are_measured_too():
    classifier, images = make_model(), features(0, 2, 3, 8, 8).float()
    backbone = make_model(CrateBackbone)
    backbone.load_state_dict(classifier.crate.state_dict())
    assert layerwise_rate_reduction(backbone, [images]) == layerwise_rate_reduction(classifier, [images])


@pytest.mark.parametrize("projection", ["query", "key", "value"])
@pytest.mark.parametrize("family", ["vit", "dinov2", "clip"])
def test_vision_transformers_by_their_heads_projections(projection, family):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 8, "patch_size": 4}
    torch.manual_seed(0)
    if family == "vit":
        model = ViTForImageClassification(ViTConfig(intermediate_size=32, **sizes)).eval()
        attentions = [layer.attention for layer in model.vit.layers]
    elif family == "clip":
        vision_config = {"intermediate_size": 32, **sizes}
        model = CLIPForImageClassification(CLIPConfig(vision_config=vision_config)).eval()
        attentions = [layer.self_attn for layer in model.vision_model.encoder.layers]
    else:
        model = Dinov2ForImageClassification(Dinov2Config(**sizes)).eval()
        attentions = [layer.attention for layer in model.dinov2.encoder.layer]
    images = features(0, 3, 3, 8, 8).float()
    inputs = []
    for attention in attentions:
        attention.register_forward_pre_hook(
            lambda module, args, kwargs: inputs.append((*args, *kwargs.values())[0]), with_kwargs=True
        )
    model(images)
    weights = [dict(a.named_parameters()) for a in attentions]
    names = {"query": ("q_proj", "query"), "key": ("k_proj", "key"), "value": ("v_proj", "value")}[projection]
    layers = layerwise_rate_reduction(model, [images], projection=projection)
    for normed, parameters, layer in zip(inputs[:2], weights, layers, strict=True):
        (weight,) = (v for n, v in parameters.items() if n.split(".")[-2] in names and n.endswith("weight"))
        (bias,) = (v for n, v in parameters.items() if n.split(".")[-2] in names and n.endswith("bias"))
        w = (normed @ weight.T + bias).view(3, -1, 4, 4).transpose(1, 2)
        w = w / w.norm(dim=-1, keepdim=True)
        expected = coding_rate(w.detach()).sum(1).mean().item()
        assert layer.compression_rate_mean == pytest.approx(expected, rel=1e-5)
        assert layer.zero_share_mean == 0


def test_models_without_projections_are_refused():
    resnet = ResNetForImageClassification(ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1]))
    with pytest.raises(ValueError, match="ResNetForImageClassification has no layer with a linear value projection"):
        layerwise_rate_reduction(resnet, [])
    with pytest.raises(ValueError, match=r"`projection` must be one of \['query', 'key', 'value'\], got 'output'"):
        layerwise_rate_reduction(make_model(), [], projection="output")
    with pytest.raises(ValueError, match="no batches"):
        layerwise_rate_reduction(make_model(), [])


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    images, labels = digits_images()
    assert len(images) == len(labels) == 1797
    assert {(image.size, image.mode) for image in images} == {((8, 8), "RGB")}
    array = np.asarray(images[5])
    assert (array[..., 0] == array[..., 2]).all()
    assert (np.rint(array[..., 0] * (16 / 255)) == load_digits().images[5]).all()
    assert (array.min(), array.max()) == (0, 255)


def test_folders_are_read_in_order(tmp_path):
    for name, grey in (("b/2.png", 2), ("a/1.PNG", 1), ("c.jpg", 3)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (8, 8), grey).save(tmp_path / name)
    (tmp_path / "a" / "notes.txt").write_text("no image")
    assert [np.asarray(image)[0, 0].tolist() for image in folder_images(tmp_path)] == [[1] * 3, [2] * 3, [3] * 3]
    with pytest.raises(ValueError, match="no images below"):
        folder_images(tmp_path / "none")


def test_only_the_images_asked_for_are_read(tmp_path):
    for number in range(3):
        Image.new("L", (8, 8), number).save(tmp_path / f"{number}.png")
    data = (tmp_path / "2.png").read_bytes()
    (tmp_path / "2.png").write_bytes(data[: len(data) // 2])
    assert len(folder_images(tmp_path, limit=2)) == 2
    with pytest.raises(ValueError, match=rf"{tmp_path / '2.png'}: cannot be read as an image \(.+\); repair or"):
        folder_images(tmp_path)
    (tmp_path / "2.png").write_text("a text")
    with pytest.raises(ValueError, match=rf"{tmp_path / '2.png'}: cannot be read as an image"):
        folder_images(tmp_path, limit=3)


def test_image_loader_keeps_order_and_size():
    processor = ViTImageProcessorPil(size={"height": 8, "width": 8}, do_normalize=False)
    images = [Image.new("RGB", (8, 8), (grey, grey, grey)) for grey in (0, 51, 255)]
    batches = list(image_loader(images, processor, batch_size=2))
    assert [tuple(batch.shape) for batch in batches] == [(2, 3, 8, 8), (1, 3, 8, 8)]
    torch.testing.assert_close(torch.cat(batches)[:, 0, 0, 0], torch.tensor([0, 0.2, 1]))


def test_plots_show_the_matrices_of_the_model():
    from sparsight.analysis.whitebox_plots import plot_dictionaries

    model = make_model(num_attention_heads=2, head_dim=5)
    figure = plot_dictionaries(model, layers=[0, -1])
    shown = [axes.images[0].get_array() for axes in figure.axes[:4]]
    assert [axes.get_title() for axes in figure.axes[:4]] == [
        f"${symbol}$, layer {layer}" for symbol in ("|D^\\top D|", "|U_i^\\top U_j|") for layer in (1, 3)
    ]
    for matrix, layer in zip(shown, [0, 2, 0, 2], strict=True):
        dictionary = model.crate.layers[layer].ista.weight.detach()
        bases = model.crate.layers[layer].attention.subspace_proj.weight.detach().T
        columns = dictionary if matrix.shape == (16, 16) else bases
        columns = columns / columns.norm(dim=0)
        np.testing.assert_allclose(matrix, (columns.T @ columns).abs(), atol=1e-6)
    assert [matrix.shape for matrix in shown] == [(16, 16), (16, 16), (10, 10), (10, 10)]


def test_attention_maps_are_the_class_tokens_attention():
    from sparsight.analysis.whitebox_plots import plot_attention_maps

    model, image = make_model(image_size=(8, 12)), features(0, 3, 8, 12).float()
    figure = plot_attention_maps(model, image, layer=1, heads=[2, 0])
    model.set_attn_implementation("eager")
    attentions = model(image[None], output_attentions=True).attentions[1][0, :, 0, 1:].detach()
    assert [axes.get_title() for axes in figure.axes] == ["image", "head 3", "head 1"]
    for axes, head in zip(figure.axes[1:], [2, 0], strict=True):
        np.testing.assert_allclose(axes.images[-1].get_array(), attentions[head].view(2, 3), atol=1e-6)


def test_rate_plot_has_a_line_a_checkpoint():
    from sparsight.analysis.whitebox_plots import plot_rate_reduction

    rates = {name: layerwise_rate_reduction(make_model(), [features(0, 2, 3, 8, 8)]) for name in ("a", "b")}
    panels = plot_rate_reduction(rates).axes
    assert [line.get_label() for line in panels[0].lines] == ["a", "b"]
    np.testing.assert_allclose(panels[0].lines[1].get_ydata(), [layer.compression_rate_mean for layer in rates["b"]])
    np.testing.assert_allclose(panels[1].lines[0].get_ydata(), [layer.nonzero_share_mean for layer in rates["a"]])
    assert panels[1].lines[0].get_xdata().tolist() == [1, 2, 3]

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from transformers import (
    AutoBackbone,
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
)

from crate_testing import images, make_config, make_model
from sparsight import CrateBackbone, CrateForImageClassification, CrateModel


@torch.no_grad()
def test_attention_implementations_agree():
    model = make_model(head_dim=16)
    logits = {}
    for implementation in ("eager", "sdpa", "flex_attention"):
        model.set_attn_implementation(implementation)
        logits[implementation] = model(images()).logits
    torch.testing.assert_close(logits["sdpa"], logits["eager"], rtol=0, atol=1e-5)
    torch.testing.assert_close(logits["flex_attention"], logits["eager"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fused", [False, True])
def test_half_precision(tmp_path, dtype, fused):
    model = make_model()
    expected = model(images()).logits
    model.save_pretrained(tmp_path)
    model = CrateForImageClassification.from_pretrained(tmp_path, dtype=dtype)
    if fused:
        model.fuse_ista()
    logits = model(images()).logits
    assert logits.dtype == dtype
    assert (logits.float() - expected).abs().max() < 0.1 * expected.abs().max()


def test_autocast_keeps_the_code_in_single_precision():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = make_model()(images(), output_hidden_states=True)
    assert {hidden_states.dtype for hidden_states in outputs.hidden_states} == {torch.float32}


@pytest.mark.parametrize(("fused", "backend"), [(False, "aot_eager"), (True, "inductor")])
def test_compiles_without_graph_breaks(fused, backend):
    model = make_model()
    expected = model(images()).logits
    if fused:
        model.fuse_ista()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(images()).logits, expected, rtol=0, atol=1e-5)


def test_fusing_a_compiled_model_takes_effect():
    model = make_model()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    expected = compiled(images()).logits
    compiled.fuse_ista()
    # Were the unfused graph run again, breaking the fold would go unnoticed.
    torch.testing.assert_close(compiled(images()).logits, expected, rtol=0, atol=1e-5)
    model.crate.layers[0].ista.fused_weight.zero_()
    assert not torch.allclose(compiled(images()).logits, expected, rtol=0, atol=1e-3)


def test_training_step_compiles():
    model = make_model().train()
    labels = torch.tensor([1, 4])
    model(images(), labels=labels).loss.backward()
    expected = model.crate.layers[0].ista.weight.grad.clone()
    model.zero_grad()
    torch._dynamo.reset()
    torch.compile(model, fullgraph=True, backend="aot_eager")(images(), labels=labels).loss.backward()
    torch.testing.assert_close(model.crate.layers[0].ista.weight.grad, expected)


def test_exports():
    model = make_model()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (), {"pixel_values": images()}, dynamic_shapes={"pixel_values": {0: batch}})
    other = images(batch=5)
    torch.testing.assert_close(program.module()(pixel_values=other).logits, model(other).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_onnx_computes_what_eager_computes(tmp_path, fused):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model = make_model()
    expected = model(images()).logits
    if fused:
        model.fuse_ista()
    torch.onnx.export(model, (images(),), tmp_path / "crate.onnx", input_names=["pixel_values"], verbose=False)
    session = runtime.InferenceSession(tmp_path / "crate.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"pixel_values": images().numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=0, atol=1e-5)


def test_auto_classes_load_what_was_saved(tmp_path):
    model = make_model()
    expected = model(images(), output_hidden_states=True)
    model.save_pretrained(tmp_path)
    classifier = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert isinstance(classifier, CrateForImageClassification)
    assert torch.equal(classifier(images()).logits, expected.logits)
    bare = AutoModel.from_pretrained(tmp_path)
    assert isinstance(bare, CrateModel)
    assert torch.equal(bare(images()).last_hidden_state, expected.hidden_states[-1])
    bare.save_pretrained(tmp_path / "bare")
    classifier = AutoModelForImageClassification.from_pretrained(tmp_path / "bare", num_labels=7)
    assert torch.equal(classifier(images(), output_hidden_states=True).hidden_states[-1], expected.hidden_states[-1])
    assert classifier.classifier.weight.shape == (7, 24)


def test_auto_image_processor_knows_the_model_type(tmp_path):
    make_config().save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"height": 12, "width": 32}}')
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    assert processor(torch.zeros(3, 40, 50, dtype=torch.uint8), return_tensors="pt").pixel_values.shape[-2:] == (
        12,
        32,
    )


def test_initialisation_is_the_authors(tmp_path):
    config = make_config(hidden_size=384, num_attention_heads=6)
    torch.manual_seed(0)
    model = CrateForImageClassification(config)
    # A checkpoint with nothing in it, so that every parameter is made on the meta device and initialised afterwards.
    model.save_pretrained(tmp_path, state_dict={"none": torch.zeros(1)})
    torch.manual_seed(0)
    loaded = CrateForImageClassification.from_pretrained(tmp_path)
    for initialised in (model, loaded):
        layer, embeddings = initialised.crate.layers[0], initialised.crate.embeddings
        for weight, bound in (
            (layer.ista.weight, math.sqrt(6 / 384)),
            (layer.attention.subspace_proj.weight, 384**-0.5),
            (layer.attention.o_proj.weight, 384**-0.5),
            (layer.attention.o_proj.bias, 384**-0.5),
            (embeddings.patch_embeddings.projection.weight, 96**-0.5),
        ):
            assert 0.97 * bound < weight.abs().max() <= bound
            assert abs(weight.std() / (bound / math.sqrt(3)) - 1) < 0.1
        for gaussian in (embeddings.cls_token, embeddings.position_embeddings):
            assert abs(gaussian.std() - 1) < 0.15
            assert abs(gaussian.mean()) < 0.15
        assert all((m.weight == 1).all() for m in initialised.modules() if isinstance(m, torch.nn.LayerNorm))


def test_device_map_with_a_layer_on_disk(tmp_path):
    model = make_model()
    expected = model(images()).logits
    model.save_pretrained(tmp_path / "model")
    device_map = {
        "crate.embeddings": "cpu",
        "crate.layers.0": "disk",
        "crate.layers.1": "cpu",
        "layernorm": "cpu",
        "classifier": "cpu",
    }
    model = CrateForImageClassification.from_pretrained(
        tmp_path / "model", device_map=device_map, offload_folder=tmp_path / "offload"
    )
    assert model.crate.layers[0].ista.weight.is_meta
    torch.testing.assert_close(model(images()).logits, expected)


def test_positions_are_interpolated_to_other_images():
    model = make_model(CrateModel)
    larger = images(size=(20, 40))
    with pytest.raises(ValueError, match=r"5\*5 patches, the model has 3\*4 positions.*interpolate_pos_encoding"):
        model(larger)
    assert model(larger, interpolate_pos_encoding=True).last_hidden_state.shape == (2, 26, 24)
    assert torch.equal(
        model(images(), interpolate_pos_encoding=True).last_hidden_state, model(images()).last_hidden_state
    )
    # A ramp along the columns stays a ramp along the columns.
    positions = model.embeddings.position_embeddings
    positions.data = torch.arange(4.0).repeat(3).view(1, 12, 1).expand(1, 12, 24).contiguous()
    positions.data = torch.cat((torch.full((1, 1, 24), 9.0), positions.data), dim=1)
    interpolated = model.embeddings.interpolate_pos_encoding((6, 8))
    assert (interpolated[:, 0] == 9).all()
    ramp = interpolated[0, 1:, 0].view(6, 8)
    assert (ramp[:, 1:] > ramp[:, :-1]).all()
    torch.testing.assert_close(ramp, ramp[:1].expand(6, 8))


@pytest.mark.parametrize(
    ("pixel_values", "message"),
    [
        (torch.zeros(1, 1, 12, 32), "1 channels.*`num_channels` = 3"),
        (torch.zeros(1, 3, 13, 32), r"13\*32.*4\*8"),
        (torch.zeros(1, 3, 32, 12), r"32\*12.*4\*8"),
    ],
)
def test_images_that_do_not_fit(pixel_values, message):
    with pytest.raises(ValueError, match=message):
        make_model()(pixel_values)


def test_backbone_lays_the_codes_out_as_images(tmp_path):
    classifier = make_model()
    hidden_states = classifier(images(), output_hidden_states=True).hidden_states
    classifier.save_pretrained(tmp_path)
    backbone = CrateBackbone.from_pretrained(tmp_path, out_features=["stem", "stage2"])
    assert backbone.channels == [24, 24]
    outputs = backbone(images())
    assert outputs.hidden_states is None
    for feature_map, hidden_state in zip(outputs.feature_maps, (hidden_states[0], hidden_states[2]), strict=True):
        assert feature_map.shape == (2, 24, 3, 4)
        for row in range(3):
            for column in range(4):
                torch.testing.assert_close(feature_map[:, :, row, column], hidden_state[:, 1 + 4 * row + column])


def test_auto_backbone():
    torch.manual_seed(0)
    backbone = AutoBackbone.from_config(make_config(out_indices=[1]))
    assert isinstance(backbone, CrateBackbone)
    outputs = backbone(images(size=(8, 40)), interpolate_pos_encoding=True, output_hidden_states=True)
    assert [tuple(feature_map.shape) for feature_map in outputs.feature_maps] == [(2, 24, 2, 5)]
    assert len(outputs.hidden_states) == 3
    assert len(backbone(images(), return_dict=False)[0]) == 1

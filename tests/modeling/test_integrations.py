# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What people do with a transformers model, on every image classifier of ours: export, shards, half, PEFT, Trainer."""

import datasets
import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from PIL import Image
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    BitsAndBytesConfig,
    Trainer,
    TrainingArguments,
    ViTImageProcessor,
    pipeline,
)

from helpers import TINY_VIT, randomize


FAMILIES = {
    "sparse_vit": TINY_VIT,
    "crate": {name: value for name, value in TINY_VIT.items() if name != "intermediate_size"},
}
LORA_TARGETS = {"sparse_vit": ["q_proj", "v_proj", "fc1", "fc2"], "crate": ["subspace_proj", "o_proj"]}


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture
def model(family):
    return randomize(AutoModelForImageClassification.from_config(AutoConfig.for_model(family, **FAMILIES[family])))


@pytest.fixture
def images() -> list[Image.Image]:
    pixels = np.random.default_rng(0).integers(0, 255, (4, 20, 24, 4), dtype=np.uint8)
    return [Image.fromarray(array, "RGBA") for array in pixels]


def test_sharded_safetensors(model, pixel_values, tmp_path):
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    shards = list(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    loaded, info = AutoModelForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(loaded.eval()(pixel_values).logits, model(pixel_values).logits, rtol=0, atol=0)


def test_device_map(model, pixel_values, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path, device_map="auto").eval()
    torch.testing.assert_close(loaded(pixel_values).logits, model(pixel_values).logits)


def test_loads_in_bfloat16_and_halves(model, pixel_values, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    expected = model(pixel_values).logits
    for half in (loaded, AutoModelForImageClassification.from_pretrained(tmp_path).eval().half()):
        assert {parameter.dtype for parameter in half.parameters()} == {half.dtype}
        logits = half(pixel_values).logits
        assert logits.dtype == half.dtype
        assert (logits.float() - expected).norm() < 0.05 * expected.norm()


def test_torch_export(model, pixel_values):
    exported = torch.export.export(model, (), {"pixel_values": pixel_values}, strict=False)
    torch.testing.assert_close(exported.module()(pixel_values=pixel_values).logits, model(pixel_values).logits)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_torch_jit_trace(model, pixel_values, tmp_path):
    torch.jit.trace(model, (pixel_values,), strict=False).save(tmp_path / "traced.pt")
    traced = torch.jit.load(tmp_path / "traced.pt")
    torch.testing.assert_close(traced(pixel_values)["logits"], model(pixel_values).logits)


def test_onnx(model, pixel_values, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "model.onnx"
    torch.onnx.export(model, (), str(path), kwargs={"pixel_values": pixel_values}, dynamo=True)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: pixel_values.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), model(pixel_values).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_loading(model, pixel_values, tmp_path, bits):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    model.save_pretrained(tmp_path)
    config = BitsAndBytesConfig(**{f"load_in_{bits}bit": True})
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path, quantization_config=config, device_map="cpu")
    kind = bitsandbytes.nn.Linear8bitLt if bits == 8 else bitsandbytes.nn.Linear4bit
    assert any(isinstance(module, kind) for module in loaded.modules())
    expected = model(pixel_values).logits
    assert (loaded.eval()(pixel_values).logits - expected).norm() < 2.0**-bits * 6 * expected.norm()


def test_lora_and_merging(family, model, pixel_values, tmp_path):
    model.save_pretrained(tmp_path / "base")
    base = AutoModelForImageClassification.from_pretrained(tmp_path / "base")
    adapted = get_peft_model(
        base, LoraConfig(r=2, target_modules=LORA_TARGETS[family], init_lora_weights=False)
    ).eval()
    logits = adapted(pixel_values=pixel_values).logits
    assert not torch.allclose(logits, model(pixel_values).logits)
    adapted.save_pretrained(tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(
        AutoModelForImageClassification.from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    )
    torch.testing.assert_close(loaded.eval()(pixel_values=pixel_values).logits, logits)
    torch.testing.assert_close(adapted.merge_and_unload()(pixel_values).logits, logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("how", ["map", "with_transform"])
def test_datasets_and_trainer(family, model, images, how, tmp_path):
    """A data set of images through the image processor, by `map` or on the fly, and a few steps of `Trainer`."""
    processor = ViTImageProcessor(size={"height": 8, "width": 8})
    data = datasets.Dataset.from_dict({"image": [image.convert("RGB") for image in images], "label": [0, 1, 2, 3]})

    def prepare(batch):
        pixel_values = processor(batch["image"], return_tensors="np")["pixel_values"]
        return {"pixel_values": list(pixel_values), "labels": batch["label"]}

    if how == "map":
        data = data.map(prepare, batched=True, remove_columns=["image", "label"]).with_format("torch")
    else:
        data = data.with_transform(prepare)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    arguments = TrainingArguments(
        output_dir=tmp_path, max_steps=3, per_device_train_batch_size=2, learning_rate=1e-2, report_to="none",
        use_cpu=True, remove_unused_columns=False, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0
    unmoved = [name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])]
    assert not unmoved


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_pipeline_takes_lists_batches_and_modes(model, images, mode, tmp_path):
    model.save_pretrained(tmp_path)
    ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(tmp_path)
    classify = pipeline("image-classification", model=str(tmp_path), top_k=2)
    inputs = [image.convert(mode) for image in images]
    one_by_one = [classify(image) for image in inputs]
    batched = classify(inputs, batch_size=2)
    assert [[answer["label"] for answer in answers] for answers in batched] == [
        [answer["label"] for answer in answers] for answers in one_by_one
    ]
    assert all(len(answers) == 2 for answers in batched)


def test_round_trip_warns_of_nothing(model, tmp_path, caplog):
    model.save_pretrained(tmp_path)
    with caplog.at_level("WARNING"):
        AutoModelForImageClassification.from_pretrained(tmp_path)
    assert not caplog.records

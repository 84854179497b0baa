# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import ViTImageProcessor

from script_testing import starting_from
from sparsight import CrateForImageClassification, SparseViTConfig, SparseViTForImageClassification
from sparsight.training.data.images import LabelledImages
from sparsight.training.data.pixels import ImageArguments
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.tasks.classification import ImageClassification


Batch = dict[str, torch.Tensor]


class FirstPixels(nn.Module):
    """Its scores are the first pixels of an image, and it remembers what it was shown."""

    def __init__(self, num_classes: int):
        super().__init__()
        self.num_classes = num_classes
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, pixel_values: torch.Tensor) -> SimpleNamespace:
        self.seen = pixel_values
        return SimpleNamespace(logits=pixel_values.flatten(1)[:, : self.num_classes] + self.weight)


def make_task(num_classes: int, loop: dict | None = None, **fields) -> ImageClassification:
    """A task whose data are not needed."""
    names = [f"class {index}" for index in range(num_classes)]
    data = LabelledImages(None, None, "test", names)
    return ImageClassification(ImageArguments(**fields), LoopArguments(**loop or {}), data)


def log_probabilities(scores: list[float]) -> list[float]:
    total = math.log(sum(math.exp(score) for score in scores))
    return [score - total for score in scores]


# --- evaluation ------------------------------------------------------------------------------------------------------


def evaluate(model: nn.Module, batches: list[Batch], accelerator, num_classes: int = 10, **loop) -> dict:
    task = make_task(num_classes, loop, mixup=0.8)
    task.accelerator, task.eval_loader = accelerator, batches
    return task.evaluate(model)


@pytest.mark.parametrize("num_classes", [2, 3, 5, 6, 10])
def test_evaluation_by_hand(num_classes, accelerator):
    """With many ties, which count against the label, and batches of several sizes; smoothing is for training alone."""
    generator = torch.Generator().manual_seed(num_classes)
    pixels = torch.randint(0, 4, (40, 1, 4, 4), generator=generator).float()
    labels = torch.randint(0, num_classes, (40,), generator=generator)
    pixels[0], pixels[1] = 1.0, 2.0  # all scores alike
    correct, among_five, losses = 0, 0, []
    for image, label in zip(pixels, labels.tolist(), strict=True):
        scores = image.flatten().tolist()[:num_classes]
        at_least_as_high = sum(score >= scores[label] for index, score in enumerate(scores) if index != label)
        correct += at_least_as_high == 0
        among_five += at_least_as_high < 5
        losses.append(-log_probabilities(scores)[label])
    bounds = [0, 16, 33, 40]
    batches = [
        {"pixel_values": pixels[first:end], "labels": labels[first:end]} for first, end in itertools.pairwise(bounds)
    ]
    found = evaluate(FirstPixels(num_classes), batches, accelerator, num_classes, label_smoothing=0.3)
    assert found == {
        "accuracy": correct / 40,
        "accuracy_top5": among_five / 40,
        "loss": pytest.approx(sum(losses) / 40, rel=1e-6),
        "num_examples": 40,
    }
    assert 0 < found["accuracy"] < 1
    if num_classes <= 5:
        assert found["accuracy_top5"] == 1
    else:
        assert found["accuracy"] < found["accuracy_top5"] < 1


def images(number: int = 6, size: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(3)
    pixels = torch.randn(number, 3, size, size, generator=generator)
    return {"pixel_values": pixels, "labels": torch.randint(0, 10, (number,), generator=generator)}


def test_evaluation_is_without_dropout(tiny_vit, accelerator):
    config = SparseViTConfig(**tiny_vit, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    model = SparseViTForImageClassification(config).train()
    first = evaluate(model, [images()], accelerator)
    assert not model.training
    assert evaluate(model.train(), [images()], accelerator) == first
    with torch.no_grad():
        expected = model.eval()(**images()).loss.item()
    assert first["loss"] == pytest.approx(expected, rel=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_evaluation_counts_what_is_not_zero(sparse_vit, accelerator):
    seen = []
    for layer in sparse_vit.vit.layers:
        layer.mlp.activation_fn.register_forward_hook(lambda module, args, output: seen.append(output.ne(0)))
    found = evaluate(sparse_vit, [images()], accelerator)
    assert found["nonzero_share"] == pytest.approx(torch.stack(seen).double().mean().item())
    assert found["nonzero_share_per_layer"] == pytest.approx([active.double().mean().item() for active in seen])
    assert found["num_tokens"] == 6 * 17
    without = evaluate(sparse_vit, [images()], accelerator, measure_sparsity="never")
    assert without == {name: found[name] for name in ("accuracy", "accuracy_top5", "loss", "num_examples")}


# --- loss ------------------------------------------------------------------------------------------------------------


def loss_by_hand(model: FirstPixels, targets: list[list[float]]) -> float:
    """Mean cross-entropy of targets that are a share of each class, for what the model was shown last."""
    losses = []
    for image, shares in zip(model.seen, targets, strict=True):
        found = log_probabilities(image.flatten().tolist()[: model.num_classes])
        losses.append(-sum(share * value for share, value in zip(shares, found, strict=True)))
    return sum(losses) / len(losses)


def smoothed(label: int, smoothing: float, num_classes: int = 10) -> list[float]:
    return [(1 - smoothing) * (index == label) + smoothing / num_classes for index in range(num_classes)]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_label_smoothing(smoothing):
    model, batch = FirstPixels(10), images()
    loss = make_task(10, {"label_smoothing": smoothing}).compute_loss(model, batch)
    assert torch.equal(model.seen, batch["pixel_values"])
    expected = loss_by_hand(model, [smoothed(label, smoothing) for label in batch["labels"].tolist()])
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def share_of_own(batch: Batch, mixed: torch.Tensor, kind: str) -> float:
    """How much of the mixed images is of themselves; the rest is of those at the other end of the batch."""
    own, others = batch["pixel_values"], batch["pixel_values"].flip(0)
    if kind == "mixup":
        share = ((mixed - others) / (own - others)).median()
        torch.testing.assert_close(mixed, own * share + others * (1 - share), rtol=0, atol=1e-4)
        return share.item()
    is_own = mixed == own
    assert torch.equal(mixed, torch.where(is_own, own, others))
    assert (is_own == is_own[:1, :1]).all()  # the same box in all
    return is_own.double().mean().item()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_mixed_images_have_mixed_labels_which_are_smoothed_once(kind, smoothing, accelerator, digits, tiny_vit):
    task = make_task(10, {"label_smoothing": smoothing, "batch_size": 6}, **{kind: 1.0})
    task.data = digits
    model = SparseViTForImageClassification(SparseViTConfig(**tiny_vit))
    task.prepare(model, ViTImageProcessor(), accelerator)
    shares = []
    for _ in range(4):
        model, batch = FirstPixels(10), images()
        labels = batch["labels"].tolist()
        loss = task.compute_loss(model, {name: value.clone() for name, value in batch.items()})
        shares.append(share := share_of_own(batch, model.seen, kind))
        targets = [
            [
                share * a + (1 - share) * b
                for a, b in zip(smoothed(one, smoothing), smoothed(other, smoothing), strict=True)
            ]
            for one, other in zip(labels, reversed(labels), strict=True)
        ]
        assert loss.item() == pytest.approx(loss_by_hand(model, targets), rel=1e-4)
    assert len(set(shares)) > 1
    assert min(shares) < 0.95


def prepared(digits, accelerator, model, **fields) -> ImageClassification:
    loop = LoopArguments(**{name: fields.pop(name) for name in ("batch_size", "gradient_accumulation_steps")})
    task = ImageClassification(ImageArguments(**fields), loop, digits)
    task.prepare(model, ViTImageProcessor(size={"height": 8, "width": 8}), accelerator)
    return task


def test_pairs_are_mixed_within_a_micro_batch(digits, accelerator, sparse_vit):
    for batch_size, accumulation, odd in ((31, 1, 31), (12, 4, 3)):
        sizes = {"batch_size": batch_size, "gradient_accumulation_steps": accumulation}
        for mix in ({"mixup": 0.2}, {"cutmix": 1.0}):
            with pytest.raises(ValueError, match=rf"^batch_size: mixup and cutmix mix pairs, and {odd} a process is"):
                prepared(digits, accelerator, sparse_vit, **sizes, **mix)
        assert prepared(digits, accelerator, sparse_vit, **sizes).mixup is None
    task = prepared(digits, accelerator, sparse_vit, batch_size=12, gradient_accumulation_steps=2, mixup=0.2)
    assert next(iter(task.train_loader))["pixel_values"].shape == (6, 3, 8, 8)
    assert sum(len(batch["labels"]) for batch in task.eval_loader) == 30


# --- models ----------------------------------------------------------------------------------------------------------


SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}


@pytest.mark.parametrize(
    ("family", "model_class"),
    [("sparse_vit", SparseViTForImageClassification), ("crate", CrateForImageClassification)],
)
def test_model_and_processor(family, model_class):
    model, processor = make_task(3, crop_pct=0.8).make_model(starting_from(family, **SIZES))
    assert type(model) is model_class
    assert model.config.id2label == {0: "class 0", 1: "class 1", 2: "class 2"}
    assert model.config.label2id == {"class 0": 0, "class 1": 1, "class 2": 2}
    assert model(torch.zeros(2, 3, 8, 8)).logits.shape == (2, 3)
    assert processor.size["shortest_edge"] == 10


@pytest.mark.parametrize("num_classes", [10, 3])
def test_a_checkpoint_gets_a_fresh_head(sparse_vit, tmp_path, num_classes):
    sparse_vit.save_pretrained(tmp_path)
    ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(tmp_path)
    model, processor = make_task(num_classes).make_model(starting_from(checkpoint=tmp_path, zeroth_bias_clip=0.5))
    assert type(model) is SparseViTForImageClassification
    assert model.config.id2label == {index: f"class {index}" for index in range(num_classes)}
    assert model.config.zeroth_bias_clip == 0.5
    assert dict(processor.size) == {"height": 8, "width": 8}
    for name, parameter in model.named_parameters():
        old = sparse_vit.get_parameter(name)
        if name.startswith("classifier"):
            assert parameter.shape[0] == num_classes
            assert parameter.shape != old.shape or not torch.isclose(parameter, old).any()
        else:
            torch.testing.assert_close(parameter, old, rtol=0, atol=0)


def test_what_does_not_fit(sparse_vit, tmp_path):
    with pytest.raises(ValueError, match=r"^dataset: it has 3 classes, but mine has 10; give a checkpoint "):
        make_task(3).check_model("mine", sparse_vit, None)
    make_task(10).check_model("mine", sparse_vit, None)
    with pytest.raises(ValueError, match=r"^model_type: unknown 'vit'; known are crate, sparse_vit"):
        make_task(3).make_model(starting_from("vit"))
    with pytest.raises(ValueError, match=r"^model.intermediate_size: crate has no such field"):
        make_task(3).make_model(starting_from("crate", intermediate_size=8))
    with pytest.raises(ValueError, match=r"^image_mean: 2 values for 3 channels"):
        make_task(3, image_mean=[0.1, 0.2]).make_model(starting_from("crate", **SIZES))


@pytest.mark.parametrize("fields", [{"hidden_size": 16}, {"intermediate_size": 40}, {"image_size": 16}])
def test_only_the_head_of_a_checkpoint_may_have_another_shape(sparse_vit, tmp_path, fields):
    sparse_vit.save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"^model_name_or_path: vit\.\S+ is \(.+\) in .*, and the model .*; leave the"
    ):
        make_task(3).make_model(starting_from(checkpoint=tmp_path, **fields))


def name_classes(model, names: list[str]) -> None:
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: index for index, name in enumerate(names)}


def test_labels_follow_the_names_of_a_checkpoint(digits, accelerator, sparse_vit):
    names = list("3750124689")
    name_classes(sparse_vit, names)
    task = ImageClassification(ImageArguments(augmentation=False), LoopArguments(batch_size=8), digits)
    processor = ViTImageProcessor(size={"height": 8, "width": 8})
    task.check_model("mine", sparse_vit, processor)
    assert task.data is digits
    task.prepare(sparse_vit, processor, accelerator)
    assert task.data.class_names == names
    assert [names[label] for label in task.data.eval["label"]] == [str(label) for label in digits.eval["label"]]
    (batch,) = task.eval_loader
    assert [names[label] for label in batch["labels"]] == [str(label) for label in digits.eval["label"]]
    keys, batch = next(iter(task.train_loader.batch_sampler)), next(iter(task.train_loader))
    for (_, _, index), label in zip(keys, batch["labels"], strict=True):
        assert names[label] == str(digits.train[index]["label"])


def test_names_in_the_same_order_leave_the_data_alone(digits, sparse_vit):
    for names in (list("0123456789"), [f"LABEL_{index}" for index in range(10)]):
        name_classes(sparse_vit, names)
        assert digits.in_order_of(ImageClassification._class_names(sparse_vit)) is digits


def test_other_names_are_refused(sparse_vit):
    task = make_task(10)
    name_classes(sparse_vit, [f"class {index}" for index in range(9)] + ["dog"])
    with pytest.raises(ValueError, match=r"^dataset: .* for other classes \(class 0, .*\) than class 9; give a check"):
        task.check_model("mine", sparse_vit, None)


def test_the_names_of_imagenet_come_in_several_spellings():
    """As numbers of WordNet, and with a few that differ between data set and checkpoint, or are twice there."""
    names = [f"class {index}" for index in range(1000)]
    numbers = LabelledImages(None, None, "test", [f"n{index:08d}" for index in range(1000)])
    assert numbers.in_order_of(names) is numbers
    data = LabelledImages(None, None, "test", [*names[:517], "crane2", *names[518:]])
    twice = [*names]
    twice[517] = names[134]
    assert data.in_order_of(twice) is data

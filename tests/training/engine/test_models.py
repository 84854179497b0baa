# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    GPT2Config,
    ViTForImageClassification,
)

from sparsight import SparseViTConfig, SparseViTForImageClassification
from sparsight.training.engine.models import check_model_fields, find_families, load_pretrained, make_config


FAMILIES = ["crate", "sparse_vit"]


def test_families_of_a_task():
    assert find_families(AutoModelForImageClassification) == FAMILIES
    assert find_families(AutoModelForSeq2SeqLM) == ["sparse_t5"]
    assert find_families(AutoModelForCausalLM) == []


# --- from scratch ----------------------------------------------------------------------------------------------------


def test_fields_of_the_user_go_before_those_of_the_task():
    config = make_config(FAMILIES, "sparse_vit", {"hidden_size": 24, "image_size": 12}, image_size=8, patch_size=4)
    assert type(config) is SparseViTConfig
    assert (config.hidden_size, config.image_size, config.patch_size) == (24, 12, 4)
    config = make_config(["gpt2"], "gpt2", {"n_embd": 8}, vocab_size=5)
    assert (type(config), config.n_embd, config.vocab_size) == (GPT2Config, 8, 5)


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("sparse_vti", {}, "model_type: unknown 'sparse_vti'; did you mean sparse_vit?"),
        ("vit", {}, "model_type: unknown 'vit'; known are crate, sparse_vit"),
        ("crate", {"hidden_sise": 8}, "model.hidden_sise: crate has no such field; did you mean hidden_size"),
        ("crate", {"zeroth_bias": True}, "model.zeroth_bias: crate has no such field; "),
        ("sparse_vit", {"activation_mix": 7}, "model: "),
        ("sparse_vit", {"hidden_size": "many"}, "model: "),
        ("sparse_vit", {"hidden_size": None}, "model: "),
    ],
)
def test_what_makes_no_config(family, fields, message):
    with pytest.raises(ValueError, match=r"^model") as error:
        make_config(FAMILIES, family, fields)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    if message == "model: ":  # says which field
        (name,) = fields
        assert name in str(error.value)


def test_names_of_fields():
    check_model_fields(SparseViTConfig, {"zeroth_bias_clip": 3, "hidden_act": None})
    with pytest.raises(ValueError, match=r"^model.zeroth_bais: sparse_vit has no such field; .*zeroth_bias"):
        check_model_fields(SparseViTConfig, {"zeroth_bais": True})


# --- from a checkpoint -----------------------------------------------------------------------------------------------


def test_a_checkpoint_with_other_fields(vanilla_vit, tmp_path):
    vanilla_vit.save_pretrained(tmp_path)
    plain = load_pretrained(str(tmp_path), AutoModelForImageClassification)
    assert type(plain) is ViTForImageClassification
    torch.testing.assert_close(plain.state_dict(), vanilla_vit.state_dict(), rtol=0, atol=0)
    fields = {"hidden_act": "jsrelu", "zeroth_bias": True}
    sparse = load_pretrained(str(tmp_path), SparseViTForImageClassification, **fields)
    assert (sparse.config.hidden_act, sparse.config.zeroth_bias) == ("jsrelu", True)
    torch.testing.assert_close(sparse.classifier.weight, vanilla_vit.classifier.weight, rtol=0, atol=0)


def refuse(name: str, auto_class: type = AutoModelForImageClassification, **fields) -> str:
    with pytest.raises(ValueError, match=r"^model_name_or_path: ") as error:
        load_pretrained(name, auto_class, **fields)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere", "~/nowhere", "some/deep/folder"])
def test_a_folder_that_is_not_here(name):
    assert refuse(name) == (
        f"model_name_or_path: there is no folder {name}; give one with a checkpoint, or a model of the Hub"
    )


@pytest.mark.parametrize("name", ["nobody/nothing", "nothing"])
def test_a_model_that_the_hub_does_not_give(name):
    message = refuse(name)
    assert message.startswith(f"model_name_or_path: cannot load {name} (")
    assert message.endswith("; give a folder or a model of the Hub")


def test_folders_that_cannot_be_loaded(vanilla_vit, tmp_path):
    assert refuse(str(tmp_path)).startswith(f"model_name_or_path: cannot load {tmp_path} (")
    vanilla_vit.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    content = weights.read_bytes()
    for broken in (content[:-9], content[:50], b"", b"something else" * 9):
        weights.write_bytes(broken)
        refuse(str(tmp_path))
    weights.write_bytes(content)
    refuse(str(tmp_path), AutoModelForSeq2SeqLM)
    refuse(str(tmp_path), hidden_size=48)
    refuse(str(tmp_path), SparseViTForImageClassification, activation_mix=7)
    load_pretrained(str(tmp_path), AutoModelForImageClassification)

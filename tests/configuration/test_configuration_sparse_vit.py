# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import json
import logging

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, ViTConfig

from sparsight import SparseViTConfig


def test_defaults_are_the_papers():
    config = SparseViTConfig()
    assert (config.hidden_act, config.zeroth_bias, config.zeroth_bias_clip) == ("jsrelu", True, 0.1)
    assert (config.activation_mix, config.jsrelu_linear_above, config.mlp_norm_bias) == (1.0, None, True)
    assert (config.hidden_size, config.image_size) == (ViTConfig().hidden_size, ViTConfig().image_size)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("activation_mix", -0.1),
        ("activation_mix", 1.1),
        ("activation_mix", float("nan")),
        ("activation_mix", "half"),
        ("zeroth_bias_clip", 0.0),
        ("zeroth_bias_clip", -1),
        ("zeroth_bias_clip", float("inf")),
        ("zeroth_bias", "yes"),
        ("mlp_norm_bias", 1.5),
        ("jsrelu_linear_above", 0),
        ("jsrelu_linear_above", -4.0),
        ("hidden_act", "jsrule"),
        ("hidden_size", 0),
        ("num_attention_heads", 5),
        ("patch_size", 300),
        ("patch_size", 0),
        ("num_channels", 0),
    ],
)
def test_nonsense_names_the_field(field, value, tiny_vit, tmp_path):
    with pytest.raises(StrictDataclassError, match=field):
        SparseViTConfig(**{**tiny_vit, "image_size": 224, "patch_size": 16, field: value})
    # An override of a checkpoint's config is checked like a field of a new one.
    SparseViTConfig().save_pretrained(tmp_path)
    with pytest.raises(StrictDataclassError, match=field):
        SparseViTConfig.from_pretrained(tmp_path, **{field: value})


@pytest.mark.parametrize(("field", "value"), [("activation_mix", 0.5), ("jsrelu_linear_above", 4.0)])
def test_options_of_jsrelu_need_jsrelu(field, value):
    with pytest.raises(StrictDataclassError, match=rf"{field}.*hidden_act"):
        SparseViTConfig(hidden_act="relu", **{field: value})


def test_round_trip(tmp_path):
    config = SparseViTConfig(activation_mix=0.25, jsrelu_linear_above=4.0, zeroth_bias_clip=0.2, mlp_norm_bias=False)
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is SparseViTConfig
    assert loaded.to_diff_dict() == config.to_diff_dict()


def test_reads_a_vit_config_without_warning(tmp_path, caplog):
    ViTConfig(hidden_size=96, num_attention_heads=3).save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        config = SparseViTConfig.from_pretrained(tmp_path)
    assert not caplog.records
    assert (config.model_type, config.hidden_size, config.hidden_act) == ("sparse_vit", 96, "gelu")
    assert SparseViTConfig.from_pretrained(tmp_path, hidden_act="jsrelu").hidden_act == "jsrelu"


def test_a_vit_config_that_leaves_the_activation_out_means_gelu(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit", "hidden_size": 96}))
    assert SparseViTConfig.from_pretrained(tmp_path, num_attention_heads=3).hidden_act == "gelu"


def test_rectangular_grid():
    assert SparseViTConfig(image_size=[32, 48], patch_size=[8, 16]).image_grid == (4, 3)

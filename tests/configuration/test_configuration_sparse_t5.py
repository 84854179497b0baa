# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import json
import logging

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, T5Config

from sparsight import SparseT5Config


def test_defaults_are_the_papers():
    config = SparseT5Config()
    assert (config.feed_forward_proj, config.zeroth_bias, config.zeroth_bias_clip) == ("jsrelu", True, 0.1)
    assert (config.activation_mix, config.jsrelu_linear_above) == (1.0, None)
    assert (config.num_zeroth_bias_positions, config.num_decoder_zeroth_bias_positions) == (512, 512)
    assert (config.d_model, config.vocab_size) == (T5Config().d_model, T5Config().vocab_size)


@pytest.mark.parametrize("activation", ["jsrelu", "relu", "gelu", "gelu_new", "silu"])
@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward_proj(activation, gated):
    config = SparseT5Config(feed_forward_proj=f"gated-{activation}" if gated else activation)
    assert config.is_gated_act == gated
    assert config.dense_act_fn == ("gelu_new" if gated and activation == "gelu" else activation)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("activation_mix", -0.1),
        ("activation_mix", float("nan")),
        ("zeroth_bias_clip", 0.0),
        ("zeroth_bias", "yes"),
        ("jsrelu_linear_above", -4.0),
        ("feed_forward_proj", "jsrule"),
        ("feed_forward_proj", "gatde-jsrelu"),
        ("feed_forward_proj", "gated-jsrule"),
        ("num_zeroth_bias_positions", 0),
        ("num_decoder_zeroth_bias_positions", -1),
        ("num_decoder_layers", 0),
        ("d_model", 0),
    ],
)
def test_nonsense_names_the_field(field, value, tiny_t5, tmp_path):
    with pytest.raises(StrictDataclassError, match=field):
        SparseT5Config(**{**tiny_t5, field: value})
    # An override of a checkpoint's config is checked like a field of a new one.
    SparseT5Config().save_pretrained(tmp_path)
    with pytest.raises(StrictDataclassError, match=field):
        SparseT5Config.from_pretrained(tmp_path, **{field: value})


@pytest.mark.parametrize(("field", "value"), [("activation_mix", 0.5), ("jsrelu_linear_above", 4.0)])
@pytest.mark.parametrize("activation", ["relu", "gated-gelu"])
def test_options_of_jsrelu_need_jsrelu(field, value, activation):
    with pytest.raises(StrictDataclassError, match=rf"{field}.*feed_forward_proj"):
        SparseT5Config(feed_forward_proj=activation, **{field: value})
    assert getattr(SparseT5Config(feed_forward_proj="gated-jsrelu", **{field: value}), field) == value


@pytest.mark.parametrize("scaled", [True, False])
def test_round_trip(tmp_path, scaled):
    config = SparseT5Config(
        feed_forward_proj="gated-jsrelu",
        activation_mix=0.25,
        jsrelu_linear_above=4.0,
        num_decoder_zeroth_bias_positions=7,
        tie_word_embeddings=scaled,
    )
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is SparseT5Config
    assert loaded.to_diff_dict() == config.to_diff_dict()
    assert (loaded.is_gated_act, loaded.scale_decoder_outputs) == (True, scaled)


def test_reads_a_t5_config_without_warning(tmp_path, caplog):
    T5Config(d_model=96, feed_forward_proj="gated-gelu").save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        config = SparseT5Config.from_pretrained(tmp_path)
    assert not caplog.records
    assert (config.model_type, config.d_model, config.dense_act_fn) == ("sparse_t5", 96, "gelu_new")


def test_another_activation_takes_along_what_t5_derives_from_it(tmp_path):
    T5Config(feed_forward_proj="gated-gelu").save_pretrained(tmp_path)
    config = SparseT5Config.from_pretrained(tmp_path, feed_forward_proj="gated-jsrelu")
    assert (config.dense_act_fn, config.is_gated_act) == ("jsrelu", True)
    config = SparseT5Config.from_pretrained(tmp_path, feed_forward_proj="relu")
    assert (config.dense_act_fn, config.is_gated_act) == ("relu", False)


def test_a_t5_config_that_leaves_the_activation_out_means_relu(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "d_model": 96}))
    assert SparseT5Config.from_pretrained(tmp_path).feed_forward_proj == "relu"

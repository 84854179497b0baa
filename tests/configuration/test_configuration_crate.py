# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import json
import math

import pytest
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from sparsight import CrateConfig


@pytest.mark.parametrize(
    ("size", "expected"),
    [("tiny", (384, 12, 6)), ("small", (576, 12, 12)), ("base", (768, 12, 12)), ("large", (1024, 24, 16))],
)
def test_preset_has_the_sizes_of_the_paper(size, expected):
    config = CrateConfig.preset(size)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == expected
    assert config.head_dim == config.hidden_size // config.num_attention_heads
    assert (config.image_size, config.patch_size, config.ista_step_size, config.ista_lambda) == (224, 16, 0.1, 0.1)
    assert config.nonnegative
    assert config.pooling == "cls"
    assert config.layer_norm_eps == 1e-5


def test_preset_takes_overrides():
    config = CrateConfig.preset("base", num_attention_heads=6, patch_size=8, num_labels=21842)
    assert (config.hidden_size, config.head_dim, config.image_grid, config.num_labels) == (768, 128, (28, 28), 21842)


def test_unknown_preset_names_those_that_exist():
    with pytest.raises(ValueError, match=r"`size` must be one of \['tiny', 'small', 'base', 'large'\], got 'huge'"):
        CrateConfig.preset("huge")


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({"hidden_size": 100, "num_attention_heads": 12}, ["hidden_size", "num_attention_heads", "head_dim"]),
        ({"image_size": 225}, ["image_size", "patch_size"]),
        ({"image_size": (224, 200)}, ["image_size", "patch_size"]),
        ({"image_size": 8, "patch_size": 16}, ["image_size", "patch_size"]),
        ({"patch_size": 0}, ["patch_size"]),
        ({"image_size": (0, 16)}, ["image_size"]),
        ({"hidden_size": 0}, ["hidden_size"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers"]),
        ({"num_attention_heads": 0}, ["num_attention_heads"]),
        ({"num_channels": -1}, ["num_channels"]),
        ({"head_dim": 0}, ["head_dim"]),
        ({"pooling": "max"}, ["pooling"]),
        ({"ista_step_size": 0}, ["ista_step_size"]),
        ({"ista_step_size": math.inf}, ["ista_step_size"]),
        ({"ista_step_size": math.nan}, ["ista_step_size"]),
        ({"ista_lambda": -0.1}, ["ista_lambda"]),
        ({"ista_lambda": math.nan}, ["ista_lambda"]),
        ({"hidden_dropout_prob": 1.0}, ["hidden_dropout_prob"]),
        ({"attention_probs_dropout_prob": -0.1}, ["attention_probs_dropout_prob"]),
        ({"layer_norm_eps": 0.0}, ["layer_norm_eps"]),
        ({"nonnegative": "yes"}, ["nonnegative"]),
    ],
)
def test_contradictions_name_the_fields(arguments, fields):
    with pytest.raises(StrictDataclassError) as error:
        CrateConfig(**arguments)
    assert all(field in f"{error.value} {error.value.__cause__}" for field in fields)


def test_head_dim_frees_the_width_from_the_heads():
    config = CrateConfig(hidden_size=100, num_attention_heads=12, head_dim=7)
    assert config.head_dim == 7


@given(
    grid=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    patch=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    heads=st.integers(1, 4),
    head_dim=st.none() | st.integers(1, 9),
    layers=st.integers(1, 5),
    pooling=st.sampled_from(["cls", "mean"]),
    nonnegative=st.booleans(),
)
def test_round_trip_through_json(grid, patch, heads, head_dim, layers, pooling, nonnegative):
    config = CrateConfig(
        hidden_size=8 * heads,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        head_dim=head_dim,
        image_size=(grid[0] * patch[0], grid[1] * patch[1]),
        patch_size=patch,
        pooling=pooling,
        nonnegative=nonnegative,
    )
    assert config.image_grid == grid
    assert config.patch_shape == patch
    again = CrateConfig.from_dict(json.loads(config.to_json_string(use_diff=False)))
    assert again.to_dict() == config.to_dict()
    assert again.image_grid == grid
    assert again.stage_names == config.stage_names


def test_auto_config_loads_what_was_saved(tmp_path):
    CrateConfig.preset("tiny", pooling="mean", out_features=["stem", "stage3"]).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, CrateConfig)
    assert (config.hidden_size, config.pooling, config.out_indices) == (384, "mean", [0, 3])


def test_overrides_are_validated_together(tmp_path):
    CrateConfig(image_size=32, patch_size=8).save_pretrained(tmp_path)
    config = CrateConfig.from_pretrained(tmp_path, image_size=21, patch_size=7)
    assert config.image_grid == (3, 3)
    with pytest.raises(StrictDataclassError, match="`image_size` \\(33\\) must be a multiple of `patch_size` \\(8\\)"):
        CrateConfig.from_pretrained(tmp_path, image_size=33)


def test_fewer_layers_move_the_last_stage(tmp_path):
    CrateConfig().save_pretrained(tmp_path)
    config = CrateConfig.from_pretrained(tmp_path, num_hidden_layers=2)
    assert config.stage_names == ["stem", "stage1", "stage2"]
    assert config.out_features == ["stage2"]

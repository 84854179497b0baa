# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Sparse T5 model configuration"""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, T5Config
from transformers.activations import ACT2FN

from sparsight.configuration.sparse_config import SparseConfigMixin


@strict
class SparseT5Config(SparseConfigMixin, T5Config):
    r"""
    Configuration of a [`SparseT5Model`]: transformers' T5 whose feed-forward blocks may have a zeroth bias and JSReLU
    (arXiv 2309.03004). With `feed_forward_proj="relu", zeroth_bias=False` it is the paper's vanilla T5. Every field of
    [`T5Config`] is one here too.

    Args:
        feed_forward_proj (`str`, *optional*, defaults to `"jsrelu"`):
            Activation of the feed-forward block: `"jsrelu"` or any that transformers knows, and the same behind
            `"gated-"` for the gated block of T5 v1.1.
        jsrelu_linear_above (`float`, *optional*):
            Continue JSReLU along its tangent above this pre-activation; the authors' tame variant uses 4.
        activation_mix (`float`, *optional*, defaults to 1.0):
            Portion m of JSReLU in the activation (1 − m)·ReLU + m·JSReLU. A finished checkpoint has 1.
        zeroth_bias (`bool`, *optional*, defaults to `True`):
            Whether each feed-forward block adds a learned bias a token position to its input.
        zeroth_bias_clip (`float`, *optional*, defaults to 0.1):
            c in the clamp |D| ≤ c·|w| of the zeroth bias D by the scale w of the RMSNorm before it, which training
            applies after every optimizer step.
        num_zeroth_bias_positions (`int`, *optional*, defaults to 512):
            Token positions of the encoder that have a zeroth bias; those beyond get none.
        num_decoder_zeroth_bias_positions (`int`, *optional*, defaults to 512):
            Token positions of the decoder that have one.

    Raises:
        StrictDataclassError: if a value is nonsense; the message names the field.
    """

    model_type = "sparse_t5"
    activation_field = "feed_forward_proj"
    sparse_activations = ("jsrelu", "gated-jsrelu")

    feed_forward_proj: str = "jsrelu"
    jsrelu_linear_above: float | int | None = None
    activation_mix: float | int = 1.0
    zeroth_bias: bool = True
    zeroth_bias_clip: float | int = 0.1
    num_zeroth_bias_positions: int = 512
    num_decoder_zeroth_bias_positions: int = 512

    def validate_activation(self):
        """Part of `@strict`-powered validation: an activation that there is."""
        if self.dense_act_fn not in (known := {"jsrelu", *ACT2FN}):
            raise ValueError(
                f'`feed_forward_proj` must be one of {sorted(known)}, or one of them behind "gated-", '
                f'got "{self.feed_forward_proj}"'
            )

    def validate_sizes(self):
        """Part of `@strict`-powered validation: sizes that would fail later with a message about shapes."""
        for name in (
            "vocab_size",
            "d_model",
            "d_kv",
            "d_ff",
            "num_layers",
            "num_decoder_layers",
            "num_heads",
            "num_zeroth_bias_positions",
            "num_decoder_zeroth_bias_positions",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be positive, got {getattr(self, name)}")

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path, **kwargs):
        config_dict, kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        if config_dict and config_dict.get("model_type") == T5Config.model_type:
            # A vanilla T5 is meant to load here. Where its config leaves the activation out, it means T5's default.
            default = {"feed_forward_proj": T5Config.feed_forward_proj}
            config_dict = {**default, **config_dict, "model_type": cls.model_type}
        return config_dict, kwargs

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        if "feed_forward_proj" in kwargs:
            # What T5 derived from the field and saved along with it would go before its new value.
            derived = ("dense_act_fn", "is_gated_act")
            config_dict = {name: value for name, value in config_dict.items() if name not in derived}
        return super().from_dict(config_dict, **kwargs)


AutoConfig.register(SparseT5Config.model_type, SparseT5Config)

__all__ = ["SparseT5Config"]

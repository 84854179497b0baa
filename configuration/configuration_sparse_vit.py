# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Sparse ViT model configuration"""

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, ViTConfig
from transformers.activations import ACT2FN

from sparsight.configuration.sparse_config import SparseConfigMixin


@strict
class SparseViTConfig(SparseConfigMixin, ViTConfig):
    r"""
    Configuration of a [`SparseViTModel`]: transformers' ViT whose MLP blocks may have a zeroth bias and JSReLU
    (arXiv 2309.03004). With `hidden_act="relu", zeroth_bias=False` it is the paper's vanilla ViT. Every field of
    [`ViTConfig`] is one here too.

    Args:
        hidden_act (`str`, *optional*, defaults to `"jsrelu"`):
            Activation of the MLP: `"jsrelu"`, or any that transformers knows.
        jsrelu_linear_above (`float`, *optional*):
            Continue JSReLU along its tangent above this pre-activation; the authors' tame variant uses 4.
        activation_mix (`float`, *optional*, defaults to 1.0):
            Portion m of JSReLU in the activation (1 − m)·ReLU + m·JSReLU. A finished checkpoint has 1.
        zeroth_bias (`bool`, *optional*, defaults to `True`):
            Whether each MLP adds a learned bias a token position to its input.
        zeroth_bias_clip (`float`, *optional*, defaults to 0.1):
            c in the clamp |D| ≤ c·|w| of the zeroth bias D by the scale w of the LayerNorm before it, which training
            applies after every optimizer step.
        mlp_norm_bias (`bool`, *optional*, defaults to `True`):
            Whether the LayerNorm before the MLP has an elementwise bias. The paper trains from scratch without.

    Raises:
        StrictDataclassError: if a value is nonsense; the message names the field.
    """

    model_type = "sparse_vit"

    hidden_act: str = "jsrelu"
    jsrelu_linear_above: float | int | None = None
    activation_mix: float | int = 1.0
    zeroth_bias: bool = True
    zeroth_bias_clip: float | int = 0.1
    mlp_norm_bias: bool = True

    def validate_activation(self):
        """Part of `@strict`-powered validation: an activation that there is."""
        if self.hidden_act not in (known := {"jsrelu", *ACT2FN}):
            raise ValueError(f'`hidden_act` must be one of {sorted(known)}, got "{self.hidden_act}"')

    def validate_sizes(self):
        """Part of `@strict`-powered validation: sizes that would fail later with a message about shapes."""
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "num_channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be positive, got {getattr(self, name)}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"`hidden_size` ({self.hidden_size}) must be a multiple of `num_attention_heads` "
                f"({self.num_attention_heads})"
            )
        if min(self.image_grid) < 1:
            raise ValueError(f"`patch_size` ({self.patch_size}) must fit into `image_size` ({self.image_size})")

    @property
    def image_grid(self) -> tuple[int, int]:
        """Rows and columns of patches in an image of `image_size`."""
        (height, width), (patch_height, patch_width) = (
            (size, size) if isinstance(size, int) else tuple(size) for size in (self.image_size, self.patch_size)
        )
        if patch_height < 1 or patch_width < 1:
            raise ValueError(f"`patch_size` must be positive, got {self.patch_size}")
        return height // patch_height, width // patch_width

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path, **kwargs):
        config_dict, kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        if config_dict and config_dict.get("model_type") == ViTConfig.model_type:
            # A vanilla ViT is meant to load here. Where its config leaves the activation out, it means ViT's default.
            config_dict = {"hidden_act": ViTConfig.hidden_act, **config_dict, "model_type": cls.model_type}
        return config_dict, kwargs


AutoConfig.register(SparseViTConfig.model_type, SparseViTConfig)

__all__ = ["SparseViTConfig"]

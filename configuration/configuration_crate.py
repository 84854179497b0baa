# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""CRATE model configuration"""

import math
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.backbone_utils import BackboneConfigMixin

from sparsight.configuration.overrides import ValidatedOverridesMixin


# The model sizes of the paper; images of 224², patches of 16².
PRESETS = {
    "tiny": {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6},
    "small": {"hidden_size": 576, "num_hidden_layers": 12, "num_attention_heads": 12},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
}


def _pair(size: int | list[int] | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


@strict
class CrateConfig(ValidatedOverridesMixin, BackboneConfigMixin, PreTrainedConfig):
    r"""
    Configuration of a [`CrateModel`], the white-box transformer by sparse rate reduction (arXiv 2306.01129). The
    defaults are those of CRATE-Base; [`CrateConfig.preset`] gives the other sizes.

    Args:
        hidden_size (`int`, *optional*, defaults to 768):
            d, the width of the tokens and the number of atoms of each dictionary.
        num_hidden_layers (`int`, *optional*, defaults to 12):
            Number of layers, each a step of MSSA and a step of ISTA.
        num_attention_heads (`int`, *optional*, defaults to 12):
            K, the number of subspaces.
        head_dim (`int`, *optional*, defaults to `hidden_size / num_attention_heads`):
            p, the dimension of each subspace. `num_attention_heads * head_dim` may differ from `hidden_size`.
        image_size (`int` or pair of `int`, *optional*, defaults to 224):
            Side, or height and width, of the images in pixels.
        patch_size (`int` or pair of `int`, *optional*, defaults to 16):
            Side, or height and width, of the patches in pixels.
        num_channels (`int`, *optional*, defaults to 3):
            Number of channels of the images.
        pooling (`str`, *optional*, defaults to `"cls"`):
            What represents the image: the class token (`"cls"`), or the mean of all tokens, the class token among
            them (`"mean"`).
        ista_step_size (`float`, *optional*, defaults to 0.1):
            η, the step size of ISTA.
        ista_lambda (`float`, *optional*, defaults to 0.1):
            λ, the weight of the sparsity term. ISTA's threshold is ηλ.
        nonnegative (`bool`, *optional*, defaults to `True`):
            Whether the code is non-negative (a ReLU, the paper's choice) or keeps its signs (a soft threshold).
        layer_norm_eps (`float`, *optional*, defaults to 1e-5):
            Epsilon of every LayerNorm.
        hidden_dropout_prob (`float`, *optional*, defaults to 0.0):
            Dropout of the embeddings and of what MSSA adds to the tokens.
        attention_probs_dropout_prob (`float`, *optional*, defaults to 0.0):
            Dropout of the attention weights.
        out_features (`list[str]`, *optional*, defaults to the last stage):
            Stages whose feature maps a [`CrateBackbone`] returns, of `"stem"`, `"stage1"`, `"stage2"`, …
        out_indices (`list[int]`, *optional*, defaults to the last stage):
            The same by their indices.

    Raises:
        StrictDataclassError: if a value is nonsense or values contradict each other; the message names the fields.
    """

    model_type = "crate"

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    head_dim: int | None = None
    image_size: int | list[int] | tuple[int, int] = 224
    patch_size: int | list[int] | tuple[int, int] = 16
    num_channels: int = 3
    pooling: Literal["cls", "mean"] = "cls"
    ista_step_size: float | int = 0.1
    ista_lambda: float | int = 0.1
    nonnegative: bool = True
    layer_norm_eps: float = 1e-5
    hidden_dropout_prob: float | int = 0.0
    attention_probs_dropout_prob: float | int = 0.0
    _out_features: list[str] | None = None
    _out_indices: list[int] | None = None

    def __post_init__(self, **kwargs):
        if self.head_dim is None and self.num_attention_heads > 0 and self.hidden_size % self.num_attention_heads == 0:
            self.head_dim = self.hidden_size // self.num_attention_heads
        self.stage_names = ["stem", *(f"stage{index}" for index in range(1, self.num_hidden_layers + 1))]
        self.set_output_features_output_indices(
            out_indices=kwargs.pop("out_indices", None), out_features=kwargs.pop("out_features", None)
        )
        super().__post_init__(**kwargs)

    def validate_sizes(self):
        """Part of `@strict`-powered validation: sizes that would fail later with a message about shapes."""
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be positive, got {getattr(self, name)}")
        if self.head_dim is None:
            raise ValueError(
                f"`hidden_size` ({self.hidden_size}) must be a multiple of `num_attention_heads` "
                f"({self.num_attention_heads}) where `head_dim` is not given"
            )
        if self.head_dim < 1:
            raise ValueError(f"`head_dim` must be positive, got {self.head_dim}")
        for name in ("image_size", "patch_size"):
            if min(_pair(getattr(self, name))) < 1:
                raise ValueError(f"`{name}` must be positive, got {getattr(self, name)}")
        if any(image % patch for image, patch in zip(_pair(self.image_size), self.patch_shape, strict=True)):
            raise ValueError(
                f"`image_size` ({self.image_size}) must be a multiple of `patch_size` ({self.patch_size})"
            )

    def validate_ista(self):
        """Part of `@strict`-powered validation: the step size and the threshold of ISTA."""
        if not 0 < self.ista_step_size < math.inf:
            raise ValueError(f"`ista_step_size` must be positive and finite, got {self.ista_step_size}")
        if not 0 <= self.ista_lambda < math.inf:
            raise ValueError(f"`ista_lambda` must be non-negative and finite, got {self.ista_lambda}")

    def validate_probabilities(self):
        """Part of `@strict`-powered validation: dropouts and the epsilon of the LayerNorms."""
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`{name}` must lie in [0, 1), got {getattr(self, name)}")
        if not 0 < self.layer_norm_eps < math.inf:
            raise ValueError(f"`layer_norm_eps` must be positive and finite, got {self.layer_norm_eps}")

    @property
    def patch_shape(self) -> tuple[int, int]:
        """Height and width of a patch in pixels."""
        return _pair(self.patch_size)

    @property
    def image_grid(self) -> tuple[int, int]:
        """Rows and columns of patches in an image of `image_size`."""
        (height, width), (patch_height, patch_width) = _pair(self.image_size), self.patch_shape
        return height // patch_height, width // patch_width

    def to_dict(self) -> dict[str, Any]:
        output = super().to_dict()
        # Both follow from `num_hidden_layers`; written down, they would contradict an override of it.
        stage_names = output.pop("stage_names")
        if output["out_features"] == stage_names[-1:]:
            del output["out_features"], output["out_indices"]
        return output

    @classmethod
    def preset(cls, size: str, **overrides) -> "CrateConfig":
        """The paper's CRATE-Tiny, -Small, -Base or -Large.

        Args:
            size: `"tiny"`, `"small"`, `"base"` or `"large"`.
            overrides: fields that differ from the preset.

        Raises:
            ValueError: if there is no preset of that name.
        """
        if size not in PRESETS:
            raise ValueError(f"`size` must be one of {list(PRESETS)}, got {size!r}")
        return cls(**PRESETS[size] | overrides)


AutoConfig.register(CrateConfig.model_type, CrateConfig)

__all__ = ["CrateConfig"]

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Sparse ViT: transformers' ViT with a doubly biased MLP and JSReLU (arXiv 2309.03004)."""

import torch
from torch import nn
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForMaskedImageModeling,
    ViTForImageClassification,
    ViTForMaskedImageModeling,
    ViTImageProcessor,
    ViTImageProcessorPil,
    ViTModel,
    ViTPreTrainedModel,
)
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.vit.modeling_vit import ViTEmbeddings, ViTLayer, ViTMLP, ViTPooler

from sparsight.configuration.configuration_sparse_vit import SparseViTConfig
from sparsight.modeling.activations import MixedActivation
from sparsight.modeling.losses import image_classification_loss
from sparsight.modeling.remote_code import RemoteCodeMixin
from sparsight.modeling.sparse_model import SparseModelMixin
from sparsight.modeling.zeroth_bias import DoublyBiasedBlock, PatchZerothBias


class SparseViTMLP(ViTMLP):
    """Doubly biased MLP: W₂ σ(W₁(x + D) + b₁) + b₂ with the zeroth bias D, where `config.zeroth_bias` is set."""

    def __init__(self, config: SparseViTConfig):
        super().__init__(config)
        if config.hidden_act == "jsrelu":
            self.activation_fn = MixedActivation(config.activation_mix, config.jsrelu_linear_above)
        self.zeroth_bias = None
        if config.zeroth_bias:
            rows, columns = config.image_grid
            self.zeroth_bias = PatchZerothBias((rows, columns), config.hidden_size)

    def forward(self, hidden_states: torch.Tensor, grid: tuple[int, int] | None = None) -> torch.Tensor:
        if self.zeroth_bias is not None:
            hidden_states = self.zeroth_bias(hidden_states, grid)
        return super().forward(hidden_states)


class SparseViTLayer(ViTLayer, DoublyBiasedBlock):
    def __init__(self, config: SparseViTConfig):
        super().__init__(config)
        self.mlp = SparseViTMLP(config)
        if not config.mlp_norm_bias:
            self.layernorm_after.register_parameter("bias", None)

    @property
    def mlp_norm(self) -> nn.Module:
        return self.layernorm_after

    @property
    def zeroth_bias(self) -> nn.Module | None:
        return self.mlp.zeroth_bias

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        grid: tuple[int, int] | None = None,
        **kwargs,
    ) -> torch.Tensor:
        residual = hidden_states
        hidden_states = self.layernorm_before(hidden_states)
        hidden_states, _ = self.attention(hidden_states, attention_mask, **kwargs)
        hidden_states = self.dropout(hidden_states) + residual

        residual = hidden_states
        hidden_states = self.layernorm_after(hidden_states)
        hidden_states = self.mlp(hidden_states, grid)
        return self.dropout(hidden_states) + residual


class SparseViTPreTrainedModel(RemoteCodeMixin, SparseModelMixin, ViTPreTrainedModel):
    config: SparseViTConfig
    _no_split_modules = ["ViTEmbeddings", "SparseViTLayer"]


def _rename_older_keys(model: nn.Module, state_dict: dict[str, torch.Tensor], prefix: str, *_) -> None:
    """Puts ViT's older key names right, under which `save_pretrained` writes, before a state dict is loaded.

    `from_pretrained` does so by itself; `Trainer`, which resumes and loads the best model with `load_state_dict`, not.
    """
    renamings = get_checkpoint_conversion_mapping("SparseViTModel")
    for key in [key for key in state_dict if key.startswith(prefix)]:
        name = key.removeprefix(prefix)
        for renaming in renamings:
            name, _ = renaming.rename_source_key(name)
        state_dict[prefix + name] = state_dict.pop(key)


class SparseViTModel(SparseViTPreTrainedModel, ViTModel):
    """The bare Sparse ViT. Inputs and outputs are those of [`ViTModel`]."""

    def __init__(self, config: SparseViTConfig, add_pooling_layer: bool = True, use_mask_token: bool = False):
        # Past ViTModel, whose vanilla layers would be built and initialised to be thrown away.
        super(ViTModel, self).__init__(config)
        self.embeddings = ViTEmbeddings(config, use_mask_token=use_mask_token)
        self.layers = nn.ModuleList([SparseViTLayer(config) for _ in range(config.num_hidden_layers)])
        self.layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.pooler = ViTPooler(config) if add_pooling_layer else None
        self.register_load_state_dict_pre_hook(_rename_older_keys)
        self.post_init()

    def forward(self, pixel_values: torch.Tensor | None = None, **kwargs) -> BaseModelOutputWithPooling:
        patch_height, patch_width = self.embeddings.patch_embeddings.projection.kernel_size
        grid = (pixel_values.shape[-2] // patch_height, pixel_values.shape[-1] // patch_width)
        return super().forward(pixel_values, grid=grid, **kwargs)


class SparseViTForImageClassification(SparseViTPreTrainedModel, ViTForImageClassification):
    """Sparse ViT with a linear layer on the class token. Inputs and outputs: [`ViTForImageClassification`]."""

    def __init__(self, config: SparseViTConfig):
        super(ViTForImageClassification, self).__init__(config)
        self.num_labels = config.num_labels
        self.vit = SparseViTModel(config, add_pooling_layer=False)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels) if config.num_labels > 0 else nn.Identity()
        self.loss_function = image_classification_loss
        self.post_init()


class SparseViTForMaskedImageModeling(SparseViTPreTrainedModel, ViTForMaskedImageModeling):
    """Sparse ViT with SimMIM's decoder. Inputs and outputs: [`ViTForMaskedImageModeling`]."""

    def __init__(self, config: SparseViTConfig):
        super(ViTForMaskedImageModeling, self).__init__(config)
        self.vit = SparseViTModel(config, add_pooling_layer=False, use_mask_token=True)
        self.decoder = nn.Sequential(
            nn.Conv2d(config.hidden_size, config.encoder_stride**2 * config.num_channels, kernel_size=1),
            nn.PixelShuffle(config.encoder_stride),
        )
        self.post_init()


# Checkpoints with ViT's older key names load as they do in transformers, which looks the renaming up by class.
register_checkpoint_conversion_mapping("SparseViTModel", get_checkpoint_conversion_mapping("ViTModel"), overwrite=True)
AutoModel.register(SparseViTConfig, SparseViTModel)
AutoModelForImageClassification.register(SparseViTConfig, SparseViTForImageClassification)
AutoModelForMaskedImageModeling.register(SparseViTConfig, SparseViTForMaskedImageModeling)
AutoImageProcessor.register(
    SparseViTConfig, image_processor_classes={"torchvision": ViTImageProcessor, "pil": ViTImageProcessorPil}
)

__all__ = [
    "SparseViTForImageClassification",
    "SparseViTForMaskedImageModeling",
    "SparseViTModel",
    "SparseViTPreTrainedModel",
]

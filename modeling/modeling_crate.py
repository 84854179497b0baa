# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""CRATE: the white-box transformer by sparse rate reduction (arXiv 2306.01129)."""

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from transformers import (
    AutoBackbone,
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    PreTrainedModel,
    ViTImageProcessor,
    ViTImageProcessorPil,
)
from transformers import initialization as init
from transformers.backbone_utils import BackboneMixin, filter_output_hidden_states
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BackboneOutput, BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.vit.modeling_vit import eager_attention_forward
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from sparsight.configuration.configuration_crate import CrateConfig
from sparsight.modeling.losses import image_classification_loss
from sparsight.modeling.remote_code import RemoteCodeMixin


class CratePatchEmbeddings(nn.Module):
    """Cuts images `(batch, channels, height, width)` into patches, each flattened with the channel fastest, and embeds
    them between two LayerNorms: `(batch, patches, d)`."""

    def __init__(self, config: CrateConfig):
        super().__init__()
        self.num_channels = config.num_channels
        self.patch_size = config.patch_shape
        patch_dim = math.prod(self.patch_size) * config.num_channels
        self.layernorm_before = nn.LayerNorm(patch_dim, eps=config.layer_norm_eps)
        self.projection = nn.Linear(patch_dim, config.hidden_size)
        self.layernorm_after = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def grid(self, pixel_values: torch.Tensor) -> tuple[int, int]:
        """Rows and columns of patches in these images."""
        (height, width), (patch_height, patch_width) = pixel_values.shape[-2:], self.patch_size
        if height % patch_height or width % patch_width:
            raise ValueError(
                f"Input image size ({height}*{width}) must be a multiple of the patch size "
                f"({patch_height}*{patch_width})."
            )
        return height // patch_height, width // patch_width

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        if pixel_values.shape[1] != self.num_channels:
            raise ValueError(
                f"Input images have {pixel_values.shape[1]} channels, the configuration has `num_channels` = "
                f"{self.num_channels}."
            )
        (rows, columns), (patch_height, patch_width) = self.grid(pixel_values), self.patch_size
        patches = pixel_values.reshape(-1, self.num_channels, rows, patch_height, columns, patch_width)
        patches = patches.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        return self.layernorm_after(self.projection(self.layernorm_before(patches)))


class CrateEmbeddings(nn.Module):
    """Class token, patch and position embeddings."""

    def __init__(self, config: CrateConfig):
        super().__init__()
        self.patch_embeddings = CratePatchEmbeddings(config)
        self.grid = config.image_grid
        self.cls_token = nn.Parameter(torch.empty(1, 1, config.hidden_size))
        self.position_embeddings = nn.Parameter(torch.empty(1, 1 + math.prod(self.grid), config.hidden_size))
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def interpolate_pos_encoding(self, grid: tuple[int, int]) -> torch.Tensor:
        """The position embeddings resampled to another patch grid: `(1, 1 + rows·columns, d)`."""
        class_position, patch_positions = self.position_embeddings[:, :1], self.position_embeddings[:, 1:]
        patch_positions = patch_positions.unflatten(1, self.grid).permute(0, 3, 1, 2)
        patch_positions = F.interpolate(patch_positions, size=grid, mode="bicubic", align_corners=False)
        return torch.cat((class_position, patch_positions.flatten(2).transpose(1, 2)), dim=1)

    def forward(self, pixel_values: torch.Tensor, interpolate_pos_encoding: bool | None = False) -> torch.Tensor:
        grid = self.patch_embeddings.grid(pixel_values)
        if grid == self.grid:
            position_embeddings = self.position_embeddings
        elif interpolate_pos_encoding:
            position_embeddings = self.interpolate_pos_encoding(grid)
        else:
            raise ValueError(
                f"Input images have {grid[0]}*{grid[1]} patches, the model has {self.grid[0]}*{self.grid[1]} "
                "positions. Resize the images, or pass `interpolate_pos_encoding=True`."
            )
        embeddings = self.patch_embeddings(pixel_values)
        cls_tokens = self.cls_token.expand(embeddings.shape[0], -1, -1)
        return self.dropout(torch.cat((cls_tokens, embeddings), dim=1) + position_embeddings)


class CrateSubspaceAttention(nn.Module):
    r"""Multi-head subspace self-attention (MSSA, section 2.3): head k maps the tokens' projections W_k = Z U_k on
    its subspace to softmax(W_k W_kᵀ / √p) W_k. One projection serves as query, key and value."""

    def __init__(self, config: CrateConfig):
        super().__init__()
        self.config = config
        self.head_dim = config.head_dim
        self.attention_dropout = config.attention_probs_dropout_prob
        self.scaling = self.head_dim**-0.5
        self.is_causal = False

        subspaces_dim = config.num_attention_heads * config.head_dim
        self.subspace_proj = nn.Linear(config.hidden_size, subspaces_dim, bias=False)
        # The authors leave the output projection out where a single subspace has the width of the tokens.
        has_projection = config.num_attention_heads > 1 or subspaces_dim != config.hidden_size
        self.o_proj = nn.Linear(subspaces_dim, config.hidden_size) if has_projection else nn.Identity()

    def forward(
        self, hidden_states: torch.Tensor, **kwargs: Unpack[TransformersKwargs]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        input_shape = hidden_states.shape[:-1]
        subspaces = self.subspace_proj(hidden_states).view(*input_shape, -1, self.head_dim).transpose(1, 2)

        attention_interface: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        attn_output, attn_weights = attention_interface(
            self,
            subspaces,
            subspaces,
            subspaces,
            None,
            dropout=0.0 if not self.training else self.attention_dropout,
            scaling=self.scaling,
            **kwargs,
        )
        attn_output = attn_output.reshape(*input_shape, -1).contiguous()
        return self.o_proj(attn_output), attn_weights


class CrateISTA(nn.Module):
    r"""One step of the iterative shrinkage-thresholding algorithm towards the sparse code of Y in the dictionary D
    (section 2.4): ReLU(Y + η(D*Y − D*DY) − ηλ), or the soft threshold of the same where `config.nonnegative` is off.

    With tokens as rows and D stored as `weight`, DY is `Y @ weight.T` and D*Y is `Y @ weight`. As D*Y − D*DY is
    D*(Y − DY), a step costs two matrix products, and one after [`fuse`].

    Attributes:
        weight: D, `(d, d)`.
        fused_weight: the transpose of M = I + η(D − DᵀD) after [`fuse`], otherwise None. It is a non-persistent
            buffer: the state dict does not change.
    """

    def __init__(self, config: CrateConfig):
        super().__init__()
        self.step_size = config.ista_step_size
        self.threshold = config.ista_step_size * config.ista_lambda
        self.nonnegative = config.nonnegative
        self.weight = nn.Parameter(torch.empty(config.hidden_size, config.hidden_size))
        self.register_buffer("fused_weight", None, persistent=False)
        self.register_load_state_dict_post_hook(_unfuse_after_loading)

    @torch.no_grad()
    def fuse(self):
        """Folds the dictionary, so that a step is ReLU(Y M − ηλ). See [`CratePreTrainedModel.fuse_ista`]."""
        # The fold is computed in single precision at least: in half precision, D − DᵀD would be rounded three times.
        weight = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
        fused_weight = self.step_size * (weight.T - weight.T @ weight)
        fused_weight.diagonal().add_(1)
        self.fused_weight = fused_weight.to(self.weight.dtype)

    def unfuse(self):
        self.fused_weight = None

    def train(self, mode: bool = True):
        # The fold is a copy of the dictionary, which the first optimizer step would leave behind.
        if mode:
            self.unfuse()
        return super().train(mode)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if self.fused_weight is not None:
            code = F.linear(hidden_states, self.fused_weight)
        else:
            residual = hidden_states - F.linear(hidden_states, self.weight)
            code = torch.add(hidden_states, F.linear(residual, self.weight.T), alpha=self.step_size)
        return F.relu(code - self.threshold) if self.nonnegative else F.softshrink(code, self.threshold)

    def extra_repr(self) -> str:
        fused = self.fused_weight is not None
        return f"{self.weight.shape[0]}, step_size={self.step_size}, threshold={self.threshold}, fused={fused}"


def _unfuse_after_loading(module: CrateISTA, incompatible_keys) -> None:
    module.unfuse()


class CrateLayer(GradientCheckpointingLayer):
    """A step of MSSA, which compresses the tokens against the subspaces, and a step of ISTA, which sparsifies them.

    For hooks: `attention.subspace_proj` returns the projections W on all subspaces, the input of `layernorm_after` are
    the tokens Z½ after MSSA, and the layer returns the code Z' after ISTA.
    """

    def __init__(self, config: CrateConfig):
        super().__init__()
        self.layernorm_before = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = CrateSubspaceAttention(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.layernorm_after = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.ista = CrateISTA(config)

    def forward(self, hidden_states: torch.Tensor, **kwargs: Unpack[TransformersKwargs]) -> torch.Tensor:
        residual = hidden_states
        hidden_states, _ = self.attention(self.layernorm_before(hidden_states), **kwargs)
        hidden_states = self.dropout(hidden_states) + residual

        # ISTA starts at the normalised tokens: there is no skip connection around the norm.
        return self.ista(self.layernorm_after(hidden_states))


class CratePreTrainedModel(RemoteCodeMixin, PreTrainedModel):
    config: CrateConfig
    base_model_prefix = "crate"
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    supports_gradient_checkpointing = True
    _no_split_modules = ["CrateEmbeddings", "CrateLayer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {
        "hidden_states": CrateLayer,
        "attentions": CrateSubspaceAttention,
    }
    _input_embed_layer = "patch_embeddings"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        """The authors' initialisation: torch's defaults for linear layers, N(0, 1) for class token and positions."""
        super()._init_weights(module)
        if isinstance(module, nn.Linear):
            init.kaiming_uniform_(module.weight, a=math.sqrt(5))
            if module.bias is not None:
                bound = module.in_features**-0.5
                init.uniform_(module.bias, -bound, bound)
        elif isinstance(module, CrateISTA):
            init.kaiming_uniform_(module.weight)
        elif isinstance(module, CrateEmbeddings):
            init.normal_(module.cls_token)
            init.normal_(module.position_embeddings)

    def fuse_ista(self):
        """Folds each layer's dictionary for inference: ISTA then costs one matrix product instead of two.

        The parameters, the state dict and what `save_pretrained` writes stay as they are. While fused, the
        dictionaries receive no gradient and changes made to them in place have no effect. `model.train()` and loading
        a state dict undo the fold.

        Raises:
            RuntimeError: if the model is in training mode.
        """
        if self.training:
            raise RuntimeError("`fuse_ista` is for inference, and this model is training: call `model.eval()` before.")
        for module in self.modules():
            if isinstance(module, CrateISTA):
                module.fuse()

    def unfuse_ista(self):
        """Undoes [`fuse_ista`]; without effect on a model that is not fused."""
        for module in self.modules():
            if isinstance(module, CrateISTA):
                module.unfuse()


class CrateModel(CratePreTrainedModel):
    """The bare CRATE. `last_hidden_state` is the code after the last ISTA: sparse, and by default non-negative."""

    def __init__(self, config: CrateConfig):
        super().__init__(config)
        self.embeddings = CrateEmbeddings(config)
        self.layers = nn.ModuleList([CrateLayer(config) for _ in range(config.num_hidden_layers)])
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        pixel_values: torch.Tensor,
        interpolate_pos_encoding: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """Compute the tokens after every layer.

        Args:
            pixel_values: images, `(batch, channels, height, width)`.
            interpolate_pos_encoding: resample the position embeddings where the images' size is not the model's.

        Returns:
            `last_hidden_state` `(batch, 1 + patches, d)`; `pooler_output` `(batch, d)`, its class token or its mean
            over the tokens by `config.pooling`; on request `hidden_states`, the embeddings and the tokens after each
            ISTA, and `attentions`.
        """
        # The norm's, since the projection's is an integer type where the matrices are quantised.
        pixel_values = pixel_values.to(self.embeddings.patch_embeddings.layernorm_before.weight.dtype)
        hidden_states = self.embeddings(pixel_values, interpolate_pos_encoding)
        for layer in self.layers:
            hidden_states = layer(hidden_states, **kwargs)
        pooled_output = hidden_states[:, 0] if self.config.pooling == "cls" else hidden_states.mean(dim=1)
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled_output)


class CrateForImageClassification(CratePreTrainedModel):
    """CRATE with a LayerNorm and a linear layer on the pooled tokens."""

    def __init__(self, config: CrateConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.crate = CrateModel(config)
        self.layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels) if config.num_labels > 0 else nn.Identity()
        self.loss_function = image_classification_loss
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor,
        labels: torch.Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutput:
        """Classify images, and compute the loss where labels are given.

        Args:
            pixel_values: images, `(batch, channels, height, width)`.
            labels: classes `(batch,)`, or targets that fit `config.problem_type`; with them the output has a `loss`.
            interpolate_pos_encoding: see [`CrateModel.forward`].
        """
        outputs: BaseModelOutputWithPooling = self.crate(
            pixel_values, interpolate_pos_encoding=interpolate_pos_encoding, return_dict=True, **kwargs
        )
        logits = self.classifier(self.layernorm(outputs.pooler_output))
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return ImageClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class CrateBackbone(BackboneMixin, CrateModel):
    """CRATE as a backbone: the patches' codes after the stages in `config.out_features`, laid out as images."""

    def __init__(self, config: CrateConfig):
        super().__init__(config)
        self.num_features = [config.hidden_size] * (config.num_hidden_layers + 1)

    @can_return_tuple
    @filter_output_hidden_states
    def forward(self, pixel_values: torch.Tensor, **kwargs: Unpack[TransformersKwargs]) -> BackboneOutput:
        """Compute the feature maps of the chosen stages.

        Args:
            pixel_values: images, `(batch, channels, height, width)`.
            kwargs: those of [`CrateModel.forward`].

        Returns:
            `feature_maps`, one a stage: `(batch, d, rows, columns)` with the rows and columns of the patch grid.
        """
        outputs: BaseModelOutputWithPooling = CrateModel.forward(self, pixel_values, return_dict=True, **kwargs)
        grid = self.embeddings.patch_embeddings.grid(pixel_values)
        feature_maps = tuple(
            hidden_state[:, 1:].transpose(1, 2).unflatten(2, grid).contiguous()
            for stage, hidden_state in zip(self.stage_names, outputs.hidden_states, strict=True)
            if stage in self.out_features
        )
        return BackboneOutput(
            feature_maps=feature_maps, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


AutoModel.register(CrateConfig, CrateModel)
AutoModelForImageClassification.register(CrateConfig, CrateForImageClassification)
AutoBackbone.register(CrateConfig, CrateBackbone)
AutoImageProcessor.register(
    CrateConfig, image_processor_classes={"torchvision": ViTImageProcessor, "pil": ViTImageProcessorPil}
)

__all__ = ["CrateBackbone", "CrateForImageClassification", "CrateModel", "CratePreTrainedModel"]

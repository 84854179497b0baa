# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Sparse T5: transformers' T5 with a doubly biased feed-forward block and JSReLU (arXiv 2309.03004)."""

import copy
import functools

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, create_mask
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForTextEncoding,
    AutoTokenizer,
    Cache,
    T5EncoderModel,
    T5ForConditionalGeneration,
    T5Model,
    T5PreTrainedModel,
    T5Tokenizer,
)
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions, Seq2SeqLMOutput
from transformers.models.t5.modeling_t5 import (
    T5Block,
    T5DenseActDense,
    T5DenseGatedActDense,
    T5LayerFF,
    T5LayerNorm,
    T5Stack,
)
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple

from sparsight.configuration.configuration_sparse_t5 import SparseT5Config
from sparsight.modeling.activations import MixedActivation
from sparsight.modeling.losses import token_loss
from sparsight.modeling.remote_code import RemoteCodeMixin
from sparsight.modeling.sparse_model import SparseModelMixin
from sparsight.modeling.zeroth_bias import DoublyBiasedBlock, ZerothBias


logger = logging.get_logger(__name__)


def _positions_field(config: SparseT5Config) -> str:
    """The field of a stack's config with the number of token positions that have a zeroth bias."""
    return "num_decoder_zeroth_bias_positions" if config.is_decoder else "num_zeroth_bias_positions"


class _Float32MixedActivation(MixedActivation):
    """In float16, JSReLU leaves the range at x = 361 where ReLU does not; the output matrix takes float32 anyway."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states.float() if hidden_states.dtype == torch.float16 else hidden_states)


class _DoublyBiased:
    """Put before either of T5's dense blocks: the zeroth bias, and JSReLU where the config names it."""

    def __init__(self, config: SparseT5Config):
        super().__init__(config)
        if config.dense_act_fn == "jsrelu":
            self.act = _Float32MixedActivation(config.activation_mix, config.jsrelu_linear_above)
        self.zeroth_bias = None
        if config.zeroth_bias:
            self.zeroth_bias = ZerothBias(getattr(config, _positions_field(config)), config.d_model)

    def forward(self, hidden_states: torch.Tensor, token_positions: torch.Tensor) -> torch.Tensor:
        if self.zeroth_bias is not None:
            hidden_states = self.zeroth_bias(hidden_states, token_positions)
        return super().forward(hidden_states)


class SparseT5DenseActDense(_DoublyBiased, T5DenseActDense):
    """Doubly biased MLP of T5: W₂ σ(W₁(x + D)) with the zeroth bias D, where `config.zeroth_bias` is set."""


class SparseT5DenseGatedActDense(_DoublyBiased, T5DenseGatedActDense):
    """Doubly biased MLP of T5 v1.1: W₂ (σ(W₀(x + D)) ⊙ W₁(x + D)), where `config.zeroth_bias` is set."""


class SparseT5LayerFF(T5LayerFF, DoublyBiasedBlock):
    def __init__(self, config: SparseT5Config):
        super(T5LayerFF, self).__init__()
        dense = SparseT5DenseGatedActDense if config.is_gated_act else SparseT5DenseActDense
        self.DenseReluDense = dense(config)
        self.layer_norm = T5LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.dropout = nn.Dropout(config.dropout_rate)

    @property
    def mlp_norm(self) -> nn.Module:
        return self.layer_norm

    @property
    def zeroth_bias(self) -> nn.Module | None:
        return self.DenseReluDense.zeroth_bias

    def forward(self, hidden_states: torch.Tensor, token_positions: torch.Tensor) -> torch.Tensor:
        forwarded_states = self.DenseReluDense(self.layer_norm(hidden_states), token_positions)
        return hidden_states + self.dropout(forwarded_states)


def _count_earlier_tokens(attention_mask: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """How many tokens the mask leaves before each of those at `columns`: `(batch, tokens)`.

    Args:
        attention_mask: `(batch, columns)`, or `(batch, 1, tokens, columns)` as attention takes it: True, or 0 where it
            is added to the scores.
        columns: of these tokens, `(tokens,)`. Those beyond the mask's end are masked, as in transformers.
    """
    if attention_mask.ndim == 2:
        counts = nn.functional.pad(attention_mask.bool().cumsum(1), (1, 0))
        return counts[:, columns.clamp(max=attention_mask.shape[1])]
    attended = attention_mask if attention_mask.dtype == torch.bool else attention_mask == 0
    is_earlier = torch.arange(attended.shape[-1], device=columns.device) < columns.unsqueeze(1)
    return (attended[:, 0] & is_earlier).sum(-1)


def _clamp_infinities(hidden_states: torch.Tensor) -> torch.Tensor:
    """As T5 does after each layer of a block, so that float16 stays finite."""
    if hidden_states.dtype != torch.float16:
        return hidden_states
    largest = torch.finfo(torch.float16).max
    bound = torch.where(hidden_states.isinf().any(), largest - 1000, largest)
    return hidden_states.clamp(-bound, bound)


class SparseT5Block(T5Block):
    def __init__(
        self, config: SparseT5Config, has_relative_attention_bias: bool = False, layer_idx: int | None = None
    ):
        super().__init__(config, has_relative_attention_bias, layer_idx)
        self.layer[-1] = SparseT5LayerFF(config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_bias: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        encoder_decoder_position_bias: torch.Tensor | None = None,
        token_positions: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        hidden_states, position_bias, _ = self.layer[0](
            hidden_states, attention_mask=attention_mask, position_bias=position_bias, **kwargs
        )
        hidden_states = _clamp_infinities(hidden_states)
        cross_position_bias = None
        if self.is_decoder and encoder_hidden_states is not None:
            hidden_states, cross_position_bias, _ = self.layer[1](
                hidden_states,
                key_value_states=encoder_hidden_states,
                attention_mask=encoder_attention_mask,
                position_bias=encoder_decoder_position_bias,
                **kwargs,
            )
            hidden_states = _clamp_infinities(hidden_states)
        hidden_states = _clamp_infinities(self.layer[-1](hidden_states, token_positions))
        return hidden_states, position_bias, cross_position_bias


class SparseT5PreTrainedModel(RemoteCodeMixin, SparseModelMixin, T5PreTrainedModel):
    config: SparseT5Config
    _no_split_modules = ["SparseT5Block"]


class SparseT5Stack(SparseT5PreTrainedModel, T5Stack):
    def __init__(self, config: SparseT5Config):
        # Past T5Stack, whose vanilla blocks would be built and initialised to be thrown away.
        super(T5Stack, self).__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.is_decoder = config.is_decoder
        self.block = nn.ModuleList(
            SparseT5Block(config, has_relative_attention_bias=index == 0, layer_idx=index)
            for index in range(config.num_layers)
        )
        self.final_layer_norm = T5LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.dropout = nn.Dropout(config.dropout_rate)
        self.gradient_checkpointing = False
        self.post_init()

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        token_positions = None
        if self.config.zeroth_bias and (tokens := input_ids if inputs_embeds is None else inputs_embeds) is not None:
            # transformers renamed `past_key_values` to `cache` within version 5.
            cache = kwargs.get("cache", kwargs.get("past_key_values")) if self.is_decoder else None
            token_positions = self._find_token_positions(tokens, attention_mask, cache)
        return super().forward(
            input_ids,
            attention_mask,
            encoder_hidden_states,
            encoder_attention_mask,
            inputs_embeds,
            token_positions=token_positions,
            **kwargs,
        )

    def _find_token_positions(
        self, tokens: torch.Tensor, attention_mask: torch.Tensor | None, cache: Cache | None
    ) -> torch.Tensor:
        """Each token's place among those that the mask leaves: `(batch, tokens)`, or `(tokens,)` without a mask."""
        # A static cache has this number on the device.
        num_cached = 0 if cache is None else cache.get_seq_length()
        if not torch.compiler.is_compiling():
            self._warn_beyond_zeroth_bias(tokens.shape[1], num_cached, cache)
        columns = torch.arange(tokens.shape[1], device=tokens.device) + num_cached
        if isinstance(attention_mask, BlockMask):
            attention_mask = create_mask(
                attention_mask.mask_mod, *attention_mask.shape[:2], *attention_mask.seq_lengths, columns.device
            )
        return columns if attention_mask is None else _count_earlier_tokens(attention_mask, columns)

    def _warn_beyond_zeroth_bias(self, num_tokens: int, num_cached: int | torch.Tensor, cache: Cache | None) -> None:
        # The length of a static cache is an upper bound that can be had without waiting for the device.
        layers = getattr(cache, "self_attention_cache", cache).layers if cache is not None else []
        static_length = getattr(layers[0], "max_cache_len", None) if layers else None
        length = num_cached + num_tokens if static_length is None else static_length
        field = _positions_field(self.config)
        if length > (num_positions := getattr(self.config, field)):
            logger.warning_once(f"Tokens beyond the first {num_positions} get no zeroth bias (`{field}`)")


def _make_stacks(config: SparseT5Config) -> tuple[SparseT5Stack, SparseT5Stack]:
    """Encoder and decoder, each with the config that T5 gives it."""
    encoder_config, decoder_config = copy.deepcopy(config), copy.deepcopy(config)
    encoder_config.is_decoder = False
    encoder_config.use_cache = False
    decoder_config.is_decoder = True
    decoder_config.num_layers = config.num_decoder_layers
    return SparseT5Stack(encoder_config), SparseT5Stack(decoder_config)


class SparseT5Model(SparseT5PreTrainedModel, T5Model):
    """The bare Sparse T5. Inputs and outputs are those of [`T5Model`]."""

    def __init__(self, config: SparseT5Config):
        super(T5Model, self).__init__(config)
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder, self.decoder = _make_stacks(config)
        self.post_init()


class SparseT5ForConditionalGeneration(SparseT5PreTrainedModel, T5ForConditionalGeneration):
    """Sparse T5 with a language-modelling head. Inputs and outputs: [`T5ForConditionalGeneration`]."""

    def __init__(self, config: SparseT5Config):
        super(T5ForConditionalGeneration, self).__init__(config)
        self.model_dim = config.d_model
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder, self.decoder = _make_stacks(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    # With the parent's signature, in which `Trainer` looks up the columns of a data set that the model takes.
    @functools.wraps(T5ForConditionalGeneration.forward)
    @can_return_tuple
    def forward(self, *args, num_items_in_batch: torch.Tensor | int | None = None, **kwargs) -> Seq2SeqLMOutput:
        if num_items_in_batch is None or kwargs.get("labels") is None:
            return super().forward(*args, **kwargs, return_dict=True)
        # T5 takes the mean of each micro-batch, where `Trainer` goes by the tokens of all of them together.
        labels = kwargs.pop("labels")
        if kwargs.get("decoder_input_ids") is None and kwargs.get("decoder_inputs_embeds") is None:
            kwargs["decoder_input_ids"] = self._shift_right(labels)
        outputs = super().forward(*args, **kwargs, return_dict=True)
        return Seq2SeqLMOutput(token_loss(labels, outputs.logits, num_items_in_batch), **outputs)


class SparseT5EncoderModel(SparseT5PreTrainedModel, T5EncoderModel):
    """The encoder of Sparse T5. Inputs and outputs are those of [`T5EncoderModel`]."""

    def __init__(self, config: SparseT5Config):
        super(T5EncoderModel, self).__init__(config)
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        config.use_cache = False
        config.is_encoder_decoder = False
        self.encoder = SparseT5Stack(config)
        self.post_init()


AutoModel.register(SparseT5Config, SparseT5Model)
AutoModelForSeq2SeqLM.register(SparseT5Config, SparseT5ForConditionalGeneration)
AutoModelForTextEncoding.register(SparseT5Config, SparseT5EncoderModel)
AutoTokenizer.register(SparseT5Config, fast_tokenizer_class=T5Tokenizer)

__all__ = [
    "SparseT5EncoderModel",
    "SparseT5ForConditionalGeneration",
    "SparseT5Model",
    "SparseT5PreTrainedModel",
]

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""transformers' common model tests on Sparse T5, and on its own T5 to compare the counts with."""

import unittest
from typing import Any
from unittest.mock import patch

import pytest
import torch
from transformers import T5Config, T5EncoderModel, T5ForConditionalGeneration, T5Model
from transformers import initialization as init
from transformers.models.auto import modeling_auto

from sparsight import (
    SparseT5Config,
    SparseT5EncoderModel,
    SparseT5ForConditionalGeneration,
    SparseT5Model,
    SparseT5PreTrainedModel,
    ZerothBias,
)
from upstream_suite import load_or_skip, skipping


common, configuration = load_or_skip("test_modeling_common", "test_configuration_common")

pytestmark = pytest.mark.upstream

# By these the tests know which inputs a class takes.
modeling_auto.MODEL_MAPPING_NAMES["sparse_t5"] = "SparseT5Model"
modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES["sparse_t5"] = "SparseT5ForConditionalGeneration"


# Why a test does not fit T5, its own or ours.
SKIPPED = {
    "test_model_base_model_prefix": "T5's heads hold encoder and decoder themselves, not a base model",
    "test_generation_tester_mixin_inheritance": "the generation tests are not in the source distribution; ours are in "
    "tests/modeling/test_generation_sparse_t5.py",
}


class T5ModelTester:
    """What transformers' mixins ask of a model tester."""

    batch_size = 3
    encoder_seq_length = 7
    decoder_seq_length = seq_length = 9
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    is_training = True
    vocab_size = 99

    def __init__(self, config_class: type, **fields: Any):
        self.config_class, self.fields = config_class, fields
        self.causal_lm_class = None

    def get_config(self):
        sizes = {
            "vocab_size": self.vocab_size,
            "d_model": self.hidden_size,
            "d_ff": 37,
            "d_kv": 8,
            "num_layers": self.num_hidden_layers,
            "num_decoder_layers": self.num_hidden_layers,
            "num_heads": self.num_attention_heads,
            "relative_attention_num_buckets": 8,
            "dropout_rate": 0.1,
            "initializer_factor": 0.002,
            "eos_token_id": 1,
            "bos_token_id": 0,
            "pad_token_id": 0,
            "decoder_start_token_id": 0,
        }
        return self.config_class(**sizes | self.fields)

    def prepare_config_and_inputs_for_common(self):
        generator = torch.Generator().manual_seed(0)
        shape, decoder_shape = (self.batch_size, self.encoder_seq_length), (self.batch_size, self.decoder_seq_length)
        return self.get_config(), {
            "input_ids": torch.randint(2, self.vocab_size, shape, generator=generator),
            "attention_mask": torch.ones(shape, dtype=torch.long),
            "decoder_input_ids": torch.randint(2, self.vocab_size, decoder_shape, generator=generator),
            "decoder_attention_mask": torch.ones(decoder_shape, dtype=torch.long),
        }


class T5EncoderModelTester(T5ModelTester):
    """The same for the encoder alone."""

    seq_length = T5ModelTester.encoder_seq_length
    is_training = False  # it has no loss

    def get_config(self):
        config = super().get_config()
        config.is_encoder_decoder = False
        return config

    def prepare_config_and_inputs_for_common(self):
        config, inputs = super().prepare_config_and_inputs_for_common()
        return config, {name: inputs[name] for name in ("input_ids", "attention_mask")}


class T5FamilyTests(common.ModelTesterMixin):
    """What the classes below share."""

    is_encoder_decoder = True
    model_tester_class = T5ModelTester
    config_class: type
    fields: dict = {}

    def setUp(self):
        self.model_tester = self.model_tester_class(self.config_class, **self.fields)
        self.config_tester = configuration.ConfigTester(self, config_class=self.config_class, d_model=37)
        initialize = SparseT5PreTrainedModel._init_weights

        @torch.no_grad()
        def with_zeroth_biases(model, module):
            initialize(model, module)
            if isinstance(module, ZerothBias):
                init.normal_(module.weight, std=0.1)

        patcher = patch.object(SparseT5PreTrainedModel, "_init_weights", with_zeroth_biases)
        patcher.start()
        self.addCleanup(patcher.stop)

    def test_config(self):
        self.config_tester.run_common_tests()


@skipping(SKIPPED)
class T5ReferenceTest(T5FamilyTests, unittest.TestCase):
    """transformers' own T5."""

    config_class = T5Config
    all_model_classes = (T5Model, T5ForConditionalGeneration)


class T5EncoderReferenceTest(T5FamilyTests, unittest.TestCase):
    """transformers' own T5 encoder."""

    is_encoder_decoder = False
    model_tester_class = T5EncoderModelTester
    config_class = T5Config
    all_model_classes = (T5EncoderModel,)


@skipping(SKIPPED)
class SparseT5Test(T5FamilyTests, unittest.TestCase):
    config_class = SparseT5Config
    all_model_classes = (SparseT5Model, SparseT5ForConditionalGeneration)


class SparseT5GatedMixedTest(SparseT5Test):
    fields = {"feed_forward_proj": "gated-jsrelu", "activation_mix": 0.5, "num_decoder_zeroth_bias_positions": 4}


class SparseT5EncoderTest(T5EncoderReferenceTest):
    config_class = SparseT5Config
    all_model_classes = (SparseT5EncoderModel,)

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""transformers' common model tests on CRATE and Sparse ViT, and on its own ViT to compare the counts with."""

import unittest
from unittest.mock import patch

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification, ViTForMaskedImageModeling, ViTModel
from transformers import initialization as init
from transformers.models.auto import modeling_auto

from sparsight import (
    CrateBackbone,
    CrateConfig,
    CrateForImageClassification,
    CrateModel,
    SparseViTConfig,
    SparseViTForImageClassification,
    SparseViTForMaskedImageModeling,
    SparseViTModel,
    SparseViTPreTrainedModel,
    ZerothBias,
)
from upstream_suite import ImageModelTester, load_or_skip, skipping


common, configuration, backbone = load_or_skip(
    "test_modeling_common", "test_configuration_common", "test_backbone_common"
)

pytestmark = pytest.mark.upstream

# By these the tests know which inputs a class takes.
modeling_auto.MODEL_MAPPING_NAMES["sparse_vit"] = "SparseViTModel"
modeling_auto.MODEL_MAPPING_NAMES["crate"] = "CrateModel"
modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES["sparse_vit"] = "SparseViTForImageClassification"
modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES["crate"] = "CrateForImageClassification"
modeling_auto.MODEL_FOR_MASKED_IMAGE_MODELING_MAPPING_NAMES["sparse_vit"] = "SparseViTForMaskedImageModeling"
modeling_auto.MODEL_FOR_BACKBONE_MAPPING_NAMES["crate"] = "CrateBackbone"

# Why a test does not fit image models, for all of these families alike.
SKIPPED = {
    "test_model_get_set_embeddings": "an image model embeds patches by a convolution or a matrix, not by nn.Embedding",
}


class ImageFamilyTests(common.ModelTesterMixin):
    """What the classes below share."""

    test_resize_embeddings = False
    config_class: type
    fields: dict = {}

    def setUp(self):
        self.model_tester = ImageModelTester(self.config_class, **self.fields)
        self.config_tester = configuration.ConfigTester(
            self, config_class=self.config_class, has_text_modality=False, hidden_size=32, num_attention_heads=4
        )

    def test_config(self):
        self.config_tester.run_common_tests()


@skipping(SKIPPED)
class ViTReferenceTest(ImageFamilyTests, unittest.TestCase):
    """transformers' own ViT."""

    config_class = ViTConfig
    fields = {"intermediate_size": 37, "encoder_stride": 2}
    all_model_classes = (ViTModel, ViTForImageClassification, ViTForMaskedImageModeling)


@skipping(SKIPPED)
class SparseViTTest(ImageFamilyTests, unittest.TestCase):
    config_class = SparseViTConfig
    fields = {"intermediate_size": 37, "encoder_stride": 2}
    all_model_classes = (SparseViTModel, SparseViTForImageClassification, SparseViTForMaskedImageModeling)

    def setUp(self):
        super().setUp()
        initialize = SparseViTPreTrainedModel._init_weights

        @torch.no_grad()
        def with_zeroth_biases(model, module):
            initialize(model, module)
            if isinstance(module, ZerothBias):
                init.normal_(module.weight, std=0.1)

        patcher = patch.object(SparseViTPreTrainedModel, "_init_weights", with_zeroth_biases)
        patcher.start()
        self.addCleanup(patcher.stop)


class SparseViTMixedTest(SparseViTTest):
    fields = {**SparseViTTest.fields, "activation_mix": 0.5, "jsrelu_linear_above": 1.0, "mlp_norm_bias": False}


class SparseViTReLUTest(SparseViTTest):
    fields = {**SparseViTTest.fields, "activation_mix": 0.0}


@skipping(SKIPPED)
class CrateTest(ImageFamilyTests, unittest.TestCase):
    config_class = CrateConfig
    all_model_classes = (CrateModel, CrateForImageClassification, CrateBackbone)


class CrateOneHeadTest(CrateTest):
    """One head without an output projection, rectangular images, mean pooling, signed codes."""

    fields = {"num_attention_heads": 1, "image_size": (8, 12), "pooling": "mean", "nonnegative": False}


class CrateBackboneTest(backbone.BackboneTesterMixin, unittest.TestCase):
    config_class = CrateConfig
    all_model_classes = (CrateBackbone,)
    has_attentions = True

    def setUp(self):
        self.model_tester = ImageModelTester(CrateConfig, out_features=["stage1", "stage2"])

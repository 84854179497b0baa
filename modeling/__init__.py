# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""One model file a family, and the few parts that families share."""

from sparsight.modeling.activations import JSReLU, MixedActivation
from sparsight.modeling.modeling_crate import (
    CrateBackbone,
    CrateForImageClassification,
    CrateModel,
    CratePreTrainedModel,
)
from sparsight.modeling.modeling_sparse_t5 import (
    SparseT5EncoderModel,
    SparseT5ForConditionalGeneration,
    SparseT5Model,
    SparseT5PreTrainedModel,
)
from sparsight.modeling.modeling_sparse_vit import (
    SparseViTForImageClassification,
    SparseViTForMaskedImageModeling,
    SparseViTModel,
    SparseViTPreTrainedModel,
)
from sparsight.modeling.zeroth_bias import DoublyBiasedBlock, PatchZerothBias, ZerothBias


__all__ = [
    "CrateBackbone",
    "CrateForImageClassification",
    "CrateModel",
    "CratePreTrainedModel",
    "DoublyBiasedBlock",
    "JSReLU",
    "MixedActivation",
    "PatchZerothBias",
    "SparseT5EncoderModel",
    "SparseT5ForConditionalGeneration",
    "SparseT5Model",
    "SparseT5PreTrainedModel",
    "SparseViTForImageClassification",
    "SparseViTForMaskedImageModeling",
    "SparseViTModel",
    "SparseViTPreTrainedModel",
    "ZerothBias",
]

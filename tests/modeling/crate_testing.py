# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Small CRATEs and images for them."""

import torch

from sparsight import CrateConfig, CrateForImageClassification


# 3·4 + 1 = 13 tokens: a number that no other dimension has.
RECTANGULAR = {"image_size": (12, 32), "patch_size": (4, 8)}
NUM_TOKENS = 13


def make_config(**overrides) -> CrateConfig:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "num_labels": 5, **RECTANGULAR}
    return CrateConfig(**sizes | overrides)


def make_model(model_class=CrateForImageClassification, **overrides):
    torch.manual_seed(0)
    model = model_class(make_config(**overrides)).eval()
    for name, parameter in model.named_parameters():
        # LayerNorms start as the identity up to the norm; give them something to do.
        if "layernorm" in name:
            torch.nn.init.normal_(parameter, 1.0 if name.endswith("weight") else 0.0, 0.3)
    return model


def images(batch=2, channels=3, size=RECTANGULAR["image_size"]) -> torch.Tensor:
    return torch.randn(batch, channels, *size, generator=torch.Generator().manual_seed(1))

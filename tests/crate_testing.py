# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Small CRATEs and images for them, and the numbers of the authors' code."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from sparsight import CrateConfig, CrateForImageClassification
from sparsight.modeling.crate_checkpoints import config_from_official, from_official


GOLDEN = Path(__file__).parent / "golden"

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


@dataclass
class GoldenCrate:
    """What the authors' code computes in float64, and our model with the same weights."""

    name: str
    tensors: dict[str, torch.Tensor]
    facts: dict

    @classmethod
    def load(cls, name: str) -> "GoldenCrate":
        facts = json.loads((GOLDEN / f"{name}.json").read_text())
        return cls(name, load_file(GOLDEN / f"{name}.safetensors"), facts)

    @property
    def official(self) -> dict[str, torch.Tensor]:
        """The weights in the authors' layout."""
        return {k.removeprefix("official."): v for k, v in self.tensors.items() if k.startswith("official.")}

    @property
    def arguments(self) -> dict:
        """What the weights do not tell."""
        official = self.facts["official_arguments"]
        return {"num_attention_heads": official["heads"], "pooling": official.get("pool", "cls")}

    def model(self, dtype: torch.dtype = torch.float64):
        return from_official(self.official, config_from_official(self.official, **self.arguments)).to(dtype)

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from safetensors.torch import load_file

from sparsight.modeling.crate_checkpoints import config_from_official, from_official


# The same examples in every run, and no deadline that a busy machine could miss.
settings.register_profile("sparsight", derandomize=True, deadline=None)
settings.load_profile("sparsight")

GOLDEN = Path(__file__).parent / "golden"


@dataclass
class GoldenCrate:
    """What the authors' code computes in float64, and our model with the same weights."""

    name: str
    tensors: dict[str, torch.Tensor]
    facts: dict

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


@pytest.fixture(params=["crate_cls", "crate_one_head_mean_pool"])
def golden_crate(request) -> GoldenCrate:
    facts = json.loads((GOLDEN / f"{request.param}.json").read_text())
    return GoldenCrate(request.param, load_file(GOLDEN / f"{request.param}.safetensors"), facts)

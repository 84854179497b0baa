# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What the tests of sharing have in common: the families, and processes in which sparsight is not to be found."""

import subprocess
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel

import sparsight
from helpers import TINY_VIT, randomize, run_python
from loopback_hub import LoopbackHub, Repo
from sparsight.modeling.remote_code import find_auto_map


TOKEN = "hf_aTokenThatNobodyMaySee"
TINY = {
    "crate": {name: value for name, value in TINY_VIT.items() if name != "intermediate_size"},
    "sparse_vit": TINY_VIT | {"encoder_stride": 2},
    "sparse_t5": {
        "vocab_size": 40,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    },
}
FAMILIES = sorted(name for name, config in CONFIG_MAPPING._extra_content.items() if "sparsight" in config.__module__)
# As where sparsight was never installed: neither the import system nor the metadata knows it.
HIDE_SPARSIGHT = """
import importlib.metadata, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "sparsight" not in getattr(finder, "__module__", "")]
sys.path[:] = [path for path in sys.path if "sparsight" not in path]
class _NotFound:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "sparsight":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, _NotFound())
try:
    import sparsight
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("sparsight is not hidden")
"""


def tiny_config(model_type: str) -> PreTrainedConfig:
    return CONFIG_MAPPING[model_type](**TINY[model_type])


def tiny_models(model_type: str) -> dict[str, PreTrainedModel]:
    """A model of random parameters for each Auto class that the family serves."""
    config = tiny_config(model_type)
    auto_map = find_auto_map(type(config), config)
    return {
        name: randomize(getattr(sparsight, reference.split(".")[1])(tiny_config(model_type)))
        for name, reference in auto_map.items()
        if name != "AutoConfig"
    }


def tiny_inputs(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(2, 3, 8, 8, generator=generator)}
    inputs = {"input_ids": torch.randint(1, 40, (2, 6), generator=generator)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(1, 40, (2, 4), generator=generator)
    return inputs


@torch.no_grad()
def tensors(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """All that the model returns."""
    return [leaf for leaf in tree_leaves(model(**inputs).to_tuple()) if isinstance(leaf, torch.Tensor)]


def client_environment(hub: LoopbackHub, home: Path, token: str | None = TOKEN) -> dict[str, str]:
    """The environment of a process that takes `hub` for the Hub."""
    environment = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(home)}
    return environment | {"HF_TOKEN": token or "", "TRANSFORMERS_VERBOSITY": "error"}


def publish(hub: LoopbackHub, repo_id: str, folder: Path, private: bool = False, branch: str = "main") -> None:
    """Put a folder on `hub` past the protocol."""
    repo = hub.repos.setdefault(repo_id, Repo(private))
    content = {path.name: path.read_bytes() for path in folder.iterdir()}
    repo.commit(branch, {name: hub.add_blob(data, lfs=b"\0" in data) for name, data in content.items()})


def run_code(code: str, *args: str, hidden: bool = True, **environment: str) -> subprocess.CompletedProcess:
    """Run Python code in a process of its own, by default where sparsight is hidden."""
    return run_python("-c", (HIDE_SPARSIGHT if hidden else "") + code, *args, cwd=Path("/"), **environment)

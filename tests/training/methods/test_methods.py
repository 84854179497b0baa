# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Which methods the arguments ask for, and the former place of the one that there is."""

import importlib
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import sparsight.training
from sparsight import CrateConfig, CrateForImageClassification
from sparsight.training.methods import MethodArguments, activation_sparsity, make_methods
from sparsight.training.methods.activation_sparsity import LayerNormRestriction, find_blocks


# --- from arguments to methods ---------------------------------------------------------------------------------------


def test_without_arguments_there_are_none(sparse_vit, vanilla_vit):
    before = {name: value.clone() for name, value in sparse_vit.state_dict().items()}
    assert make_methods(sparse_vit, MethodArguments()) == []
    assert make_methods(vanilla_vit, MethodArguments()) == []
    torch.testing.assert_close(sparse_vit.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("family", ["sparse_vit", "sparse_t5"])
def test_restricted_norms(family, request):
    model = request.getfixturevalue(family)
    (method,) = make_methods(model, MethodArguments(restrict_layer_norms=True))
    assert type(method) is LayerNormRestriction
    for _ in range(2):
        assert len(find_blocks(model)) == len(method.blocks) >= 2
        for block in find_blocks(model):
            assert (block.mlp_norm.weight >= 1).all()
            assert (block.zeroth_bias.weight.abs() <= 0.1 * block.mlp_norm.weight).all()
            assert getattr(block.mlp_norm, "bias", None) is None or not block.mlp_norm.bias.requires_grad
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(-0.5)
        method.step()


def models_without(tiny_vit) -> dict:
    del tiny_vit["intermediate_size"]
    gpt2 = AutoConfig.for_model("gpt2", n_embd=8, n_layer=1, n_head=1, vocab_size=5)
    return {
        "crate": CrateForImageClassification(CrateConfig(**tiny_vit)),
        "gpt2": AutoModelForCausalLM.from_config(gpt2),
    }


@pytest.mark.parametrize("family", ["crate", "gpt2"])
def test_models_without_doubly_biased_mlps_have_no_norms_to_restrict(tiny_vit, family):
    model = models_without(tiny_vit)[family]
    with pytest.raises(ValueError, match=r"^restrict_layer_norms: ") as error:
        make_methods(model, MethodArguments(restrict_layer_norms=True))
    assert str(error.value) == f"restrict_layer_norms: needs doubly biased MLPs; {family} has none, so leave it out"


# --- the former place ------------------------------------------------------------------------------------------------


@pytest.fixture
def _not_imported_yet(monkeypatch):
    """As in a fresh process."""
    monkeypatch.delitem(sys.modules, "sparsight.training.sparsity", raising=False)
    monkeypatch.delattr(sparsight.training, "sparsity", raising=False)
    yield
    sys.modules.pop("sparsight.training.sparsity", None)


@pytest.mark.usefixtures("_not_imported_yet")
def test_the_former_import_works_and_names_the_new_place():
    with pytest.warns(DeprecationWarning, match=r"is now sparsight\.training\.methods\.activation_sparsity") as warned:
        from sparsight.training.sparsity import ActivationMixing, LayerNormUplift, SparsityCallback
    assert [warning.filename for warning in warned] == [__file__]  # of the one who imports
    assert ActivationMixing is activation_sparsity.ActivationMixing
    assert LayerNormUplift is activation_sparsity.LayerNormUplift
    assert SparsityCallback is activation_sparsity.SparsityCallback


@pytest.mark.usefixtures("_not_imported_yet")
def test_all_public_names_are_in_the_former_place():
    with pytest.warns(DeprecationWarning, match="sparsight.training.sparsity is now"):
        former = importlib.import_module("sparsight.training.sparsity")
    own = [
        name
        for name, value in vars(activation_sparsity).items()
        if getattr(value, "__module__", None) == activation_sparsity.__name__ and not name.startswith("_")
    ]
    assert len(own) == 6
    assert all(getattr(former, name) is getattr(activation_sparsity, name) for name in own)

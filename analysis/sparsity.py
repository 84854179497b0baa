# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Activation and derivative sparsity of MLP layers, counted while a model runs."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.module_tracker import ModuleTracker
from transformers.activations import ACT2CLS

from sparsight.modeling.activations import JSReLU, MixedActivation
from sparsight.modeling.modeling_crate import CrateISTA


# σ'(x) ≠ 0 just where σ(x) ≠ 0, so one count serves for both.
_RECTIFIERS = (nn.ReLU, JSReLU, MixedActivation, CrateISTA)
_ACTIVATIONS = (
    MixedActivation,
    *{entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values()},
)
# What PEFT, DDP and torch.compile put in front of a module's own name.
_WRAPPER_PREFIXES = ("base_model.model.", "module.", "_orig_mod.")


def find_mlp_activations(model: nn.Module) -> dict[str, nn.Module]:
    """The activation modules of the MLPs in the repeated layers of a transformers model, by the name of their MLP.

    An activation counts where it stands beside a matrix inside a numbered layer; so a pooler's does not. CRATE has no
    MLP: there it is the ISTA steps, whose output is the sparse code.

    Raises:
        ValueError: if there is none, as in a model that calls its activation as a function.
    """
    found: dict[str, nn.Module] = {}
    for name, owner in model.named_modules():
        if not any(part.isdigit() for part in name.split(".")):
            continue
        if isinstance(owner, CrateISTA):
            found[_strip_wrappers(name)] = owner
            continue
        children = list(owner.named_children())
        # `in_features` / `nf`: nn.Linear, PEFT's wrappers around it, and the Conv1D of GPT-2.
        if not any(hasattr(child, "in_features") or hasattr(child, "nf") for _, child in children):
            continue
        for child_name, child in children:
            if isinstance(child, _ACTIVATIONS):
                own_name = _strip_wrappers(name)
                found[own_name if own_name not in found else f"{own_name}.{child_name}"] = child
    if not found:
        raise ValueError(f"{type(model).__name__} has no MLP whose activation is a module: nothing to count")
    return found


def _strip_wrappers(name: str) -> str:
    while (prefix := next((prefix for prefix in _WRAPPER_PREFIXES if name.startswith(prefix)), None)) is not None:
        name = name.removeprefix(prefix)
    return name


def _is_in_decoder(name: str) -> bool:
    """Whether a layer belongs to the decoder of an encoder-decoder, by its dotted name."""
    return "decoder" in name.split(".")


@dataclass(frozen=True)
class ActivationSparsity:
    """What a [`SparsityMeter`] has counted. Shares lie in [0, 1]; lower is sparser.

    Attributes:
        nonzero_share: share of non-zero entries among the activations of all layers.
        nonzero_share_per_layer: the same for each layer, by name.
        derivative_nonzero_share: share of non-zero entries of γ = σ'(pre-activation).
        derivative_nonzero_share_per_layer: the same for each layer, by name.
        num_tokens: tokens counted in each layer, by name.
    """

    nonzero_share: float
    nonzero_share_per_layer: dict[str, float]
    derivative_nonzero_share: float
    derivative_nonzero_share_per_layer: dict[str, float]
    num_tokens: dict[str, int]

    def to_results(self) -> dict[str, Any]:
        """The counts as `results.json` has them; every list goes from the first layer to the last.

        Returns:
            `nonzero_share` and `derivative_nonzero_share`. For a model with one stack of layers also `num_tokens`, the
            tokens that each layer saw, `nonzero_share_per_layer` and `derivative_nonzero_share_per_layer`. For an
            encoder-decoder, which has layers in a module named `decoder`, these three for each side:
            `num_{side}_tokens`, `{side}_nonzero_share_per_layer` and `{side}_derivative_nonzero_share_per_layer`.
        """
        stacks = {"": list(self.num_tokens)}
        if any(map(_is_in_decoder, self.num_tokens)):
            stacks = {"encoder_": [], "decoder_": []}
            for name in self.num_tokens:
                stacks["decoder_" if _is_in_decoder(name) else "encoder_"].append(name)
        results: dict[str, Any] = {
            "nonzero_share": self.nonzero_share,
            "derivative_nonzero_share": self.derivative_nonzero_share,
        }
        for stack, layers in stacks.items():
            results[f"num_{stack}tokens"] = next((self.num_tokens[name] for name in layers), None)
            for key in ("nonzero_share_per_layer", "derivative_nonzero_share_per_layer"):
                results[f"{stack}{key}"] = [getattr(self, key)[name] for name in layers]
        return results


class SparsityMeter:
    """Counts non-zero activations and derivatives of every MLP layer, for as long as the `with` block lasts.

    ```python
    with SparsityMeter(model) as meter:
        for batch in loader:
            model(**batch)
    print(meter.compute().nonzero_share)
    ```

    Each token weighs the same, so the shares are exact over a whole data set. Where the model is called with a padding
    mask `attention_mask` (or `decoder_attention_mask`) of shape `(batch, tokens)`, padding is left out. What gradient
    checkpointing computes a second time is counted once. Counts stay on the device until [`compute`].

    Args:
        model: any of ours, or any transformers model whose MLP activations are modules; wrapped or not.
        activations: the modules to watch, by name; default [`find_mlp_activations`].

    Raises:
        ValueError: if there is no activation to watch.
    """

    def __init__(self, model: nn.Module, activations: Mapping[str, nn.Module] | None = None):
        self.model = model
        self.activations = dict(activations) if activations is not None else find_mlp_activations(model)
        if not self.activations:
            raise ValueError("`activations` is empty: there is nothing to count")
        self._handles: list[Any] = []
        self._masks: dict[str, torch.Tensor | None] = {}
        self._tracker = ModuleTracker()
        self.reset()

    def reset(self) -> None:
        """Start counting from zero."""
        # A layer's counts: non-zero activations, non-zero derivatives, entries, tokens.
        self._counts: dict[str, torch.Tensor] = {}

    def __enter__(self) -> "SparsityMeter":
        self._parameters = list(inspect.signature(self.model.forward).parameters)
        self._handles = [self.model.register_forward_pre_hook(self._remember_masks, with_kwargs=True)]
        for name, activation in self.activations.items():
            self._handles.append(activation.register_forward_hook(self._make_hook(name)))
        return self

    def __exit__(self, *exception) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._masks = {}

    def _remember_masks(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        arguments = dict(zip(self._parameters, args, strict=False)) | kwargs
        self._masks = {name: arguments.get(name) for name in ("attention_mask", "decoder_attention_mask")}

    def _mask_for(self, name: str, output: torch.Tensor) -> torch.Tensor | None:
        mask = self._masks.get("decoder_attention_mask" if _is_in_decoder(name) else "attention_mask")
        # A mask of another shape speaks of other tokens: a mask of pairs, or one that includes cached tokens.
        return mask if mask is not None and mask.shape == output.shape[:-1] else None

    def _make_hook(self, name: str):
        @torch.no_grad()
        def hook(activation: nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> None:
            if self._tracker.is_bw:  # gradient checkpointing runs the forward again inside backward
                return
            mask = self._mask_for(name, output)
            nonzero = _count_nonzero(output, mask)
            if isinstance(activation, _RECTIFIERS):
                derivative_nonzero = nonzero
            else:
                derivative_nonzero = _count_nonzero(_derivative(activation, args[0]), mask)
            num_features = output.shape[-1]
            if mask is None:
                num_tokens = torch.full_like(nonzero, output.numel() // num_features)
            else:
                num_tokens = mask.ne(0).sum()
            counts = torch.stack((nonzero, derivative_nonzero, num_tokens * num_features, num_tokens))
            self._counts[name] = counts if name not in self._counts else self._counts[name].add_(counts)

        return hook

    def compute(self) -> ActivationSparsity:
        """Read the counts, summed over the processes of a distributed run; all of them have to call this.

        Raises:
            RuntimeError: if nothing was counted.
        """
        device = next(iter(self._counts.values())).device if self._counts else next(self.model.parameters()).device
        zero = torch.zeros(4, dtype=torch.long, device=device)
        counts = torch.stack([self._counts.get(name, zero).to(device) for name in self.activations])
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(counts)
        counts = counts.cpu()
        if not counts[:, 2].all():
            silent = [name for name, entries in zip(self.activations, counts[:, 2], strict=True) if not entries]
            raise RuntimeError(f"nothing was counted in {silent}: run the model inside `with meter:` first")
        shares = counts[:, :2].double() / counts[:, 2:3]
        total = counts.sum(0)
        return ActivationSparsity(
            nonzero_share=(total[0].double() / total[2]).item(),
            nonzero_share_per_layer=dict(zip(self.activations, shares[:, 0].tolist(), strict=True)),
            derivative_nonzero_share=(total[1].double() / total[2]).item(),
            derivative_nonzero_share_per_layer=dict(zip(self.activations, shares[:, 1].tolist(), strict=True)),
            num_tokens=dict(zip(self.activations, counts[:, 3].tolist(), strict=True)),
        )


def make_meter(model: nn.Module, derivatives: bool = True) -> SparsityMeter | None:
    """A [`SparsityMeter`] of `model`, None where it has nothing to count.

    Args:
        derivatives: watch all activations. Otherwise only rectifiers: the derivatives of others, such as GELU, cost a
            second pass through the activation.
    """
    try:
        activations = find_mlp_activations(model)
    except ValueError:
        return None
    if not derivatives:
        activations = {name: module for name, module in activations.items() if isinstance(module, _RECTIFIERS)}
    return SparsityMeter(model, activations) if activations else None


def _count_nonzero(values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    # Compared into floats, since booleans are summed several times slower on the CPU. Exact up to 2²⁴ features.
    nonzero = torch.ne(values, 0, out=torch.empty_like(values, dtype=torch.float32)).sum(-1)
    return (nonzero if mask is None else nonzero * mask.ne(0)).long().sum()


def _derivative(activation: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        inputs = inputs.detach().requires_grad_()
        outputs = activation.forward(inputs)  # past the hooks, this one included
        return torch.autograd.grad(outputs, inputs, torch.ones_like(outputs))[0]


class TrainingSparsity:
    """Training sparsity: the integral of the non-zero share over the optimizer steps, divided by their number."""

    def __init__(self):
        self.num_steps = 0
        self.integral = 0.0

    def update(self, nonzero_share: float, num_steps: int) -> None:
        """Add an interval of `num_steps` steps in which `nonzero_share` of the activations were non-zero."""
        self.num_steps += num_steps
        self.integral += nonzero_share * num_steps

    def compute(self) -> float:
        """The training sparsity so far, in [0, 1].

        Raises:
            RuntimeError: before the first update.
        """
        if not self.num_steps:
            raise RuntimeError("training sparsity is undefined before the first update")
        return self.integral / self.num_steps

    def state_dict(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps, "integral": self.integral}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.num_steps, self.integral = state_dict["num_steps"], state_dict["integral"]

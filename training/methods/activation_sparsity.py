# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Restriction and uplift of norms, and mixing of activations: what acts after an optimizer step (arXiv 2309.03004).

Call `.step()` once after each *optimizer* step, not after each micro-batch of gradient accumulation. With
transformers' `Trainer`, [`SparsityCallback`] does so.
"""

from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerState

from sparsight.modeling import DoublyBiasedBlock, MixedActivation


def find_blocks(model: nn.Module, required: bool = True) -> list[DoublyBiasedBlock]:
    """The doubly biased blocks of `model`, however it is wrapped (PEFT, DDP, torch.compile).

    Their `mlp_norm` and `zeroth_bias` are looked up at each use. A module that PEFT keeps a trained copy of
    (`modules_to_save`) hands out the parameters of the copy, which are the ones in use.

    Raises:
        ValueError: if there is none, unless they are not `required`.
    """
    blocks = [module for module in model.modules() if isinstance(module, DoublyBiasedBlock)]
    if required and not blocks:
        raise ValueError(
            f"{type(model).__name__} has no doubly biased MLP; load it as one of sparsight's sparse models"
        )
    return blocks


def _find_config(model: nn.Module):
    return next(module.config for module in model.modules() if hasattr(getattr(module, "config", None), "zeroth_bias"))


def _freeze_bias(norm: nn.Module) -> None:
    if getattr(norm, "bias", None) is not None:  # RMSNorm has none
        norm.bias.requires_grad_(False)


def _clamp_zeroth_bias(block: DoublyBiasedBlock, clip: float) -> None:
    """D ← clamp(D, −c·|w|, c·|w|), columnwise."""
    if block.zeroth_bias is not None:
        bound = block.mlp_norm.weight.detach().abs() * clip
        torch.clamp(block.zeroth_bias.weight, -bound, bound, out=block.zeroth_bias.weight)


class LayerNormRestriction:
    """Algorithm 1, see [`restrict_layer_norms`]."""

    def __init__(self, model: nn.Module):
        self.blocks = find_blocks(model)
        self.clip = _find_config(model).zeroth_bias_clip
        for block in self.blocks:
            _freeze_bias(block.mlp_norm)
            if getattr(block.mlp_norm, "bias", None) is not None:
                nn.init.zeros_(block.mlp_norm.bias)
        self.step()

    @torch.no_grad()
    def step(self) -> None:
        """Call after an optimizer step."""
        for block in self.blocks:
            block.mlp_norm.weight.clamp_(min=1)
            _clamp_zeroth_bias(block, self.clip)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


def restrict_layer_norms(model: nn.Module) -> LayerNormRestriction:
    """Algorithm 1, for training from scratch: keep the norm right before each doubly biased MLP at a scale w ≥ 1.

    Sets the elementwise biases of these norms to zero and freezes them, so make the optimizer afterwards. Now and
    after every `.step()`, w = max(w, 1) and then |D| ≤ c·|w| columnwise, with c = `config.zeroth_bias_clip`.

    Raises:
        ValueError: if `model` has no doubly biased MLP.
    """
    return LayerNormRestriction(model)


class LayerNormUplift:
    """Algorithm 2, for finetuning an existing checkpoint: lift |w| to at least 1 over the first steps.

    Freezes the elementwise biases of the norms right before the doubly biased MLPs. In each of the first `num_steps`
    steps, a scale with |w| < 1 moves by 1/num_steps away from zero (w = 0 counts as positive), never beyond |w| = 1;
    signs are kept. From then on every |w| ≥ 1 is kept. After every step |D| ≤ c·|w| columnwise.

    Args:
        model: has doubly biased MLPs, and its weights are the ones to start from.
        num_steps: T_up in optimizer steps; 0 lifts at once.

    Raises:
        ValueError: if `num_steps` is negative, or `model` has no doubly biased MLP.
    """

    def __init__(self, model: nn.Module, num_steps: int):
        if num_steps < 0:
            raise ValueError(f"`num_steps` must not be negative, got {num_steps}")
        self.blocks = find_blocks(model)
        self.clip = _find_config(model).zeroth_bias_clip
        self.num_steps = num_steps
        self.num_steps_done = 0
        for block in self.blocks:
            _freeze_bias(block.mlp_norm)
        self._read_signs()
        if num_steps == 0:
            self._uplift()

    def _read_signs(self) -> None:
        self.signs = [torch.where(block.mlp_norm.weight.detach() < 0, -1.0, 1.0) for block in self.blocks]

    @torch.no_grad()
    def _uplift(self) -> None:
        finished = self.num_steps_done >= self.num_steps
        for block, sign in zip(self.blocks, self.signs, strict=True):
            weight = block.mlp_norm.weight
            sign = sign.to(weight)
            size = weight * sign
            if finished:
                size.clamp_(min=1)
            else:
                # An optimizer step may have pushed a small scale across zero: the tiny floor keeps its sign readable.
                lifted = (size + 1 / self.num_steps).clamp(torch.finfo(size.dtype).tiny, 1)
                size = torch.where(size < 1, lifted, size)
            weight.copy_(size * sign)
            _clamp_zeroth_bias(block, self.clip)

    def step(self) -> None:
        """Call after an optimizer step."""
        self.num_steps_done += 1
        self._uplift()

    def state_dict(self) -> dict[str, Any]:
        return {"num_steps_done": self.num_steps_done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the model's weights first: the signs to keep are read off them."""
        self.num_steps_done = state_dict["num_steps_done"]
        self._read_signs()


class ActivationMixing:
    """σ = (1 − m)·ReLU + m·JSReLU with m rising linearly from 0 to 1 over the first steps.

    Sets m = 0 in all activations and in the config, so that a checkpoint is saved with the m it was at.

    Args:
        model: one of sparsight's sparse models with `hidden_act="jsrelu"`, wrapped or not.
        num_steps: T_mix in optimizer steps; 0 sets m = 1 at once.

    Raises:
        ValueError: if `num_steps` is negative, or the model's activations are not JSReLU.
    """

    def __init__(self, model: nn.Module, num_steps: int):
        if num_steps < 0:
            raise ValueError(f"`num_steps` must not be negative, got {num_steps}")
        if not any(isinstance(module, MixedActivation) for module in model.modules()):
            raise ValueError(f'{type(model).__name__} has no JSReLU to mix in; load it with `hidden_act="jsrelu"`')
        # The outermost model that has the property: the settable one under PEFT, DDP or torch.compile.
        self.model = next(module for module in model.modules() if hasattr(type(module), "activation_mix"))
        self.num_steps = num_steps
        self.load_state_dict({"num_steps_done": 0})

    def step(self) -> None:
        """Call after an optimizer step."""
        self.load_state_dict({"num_steps_done": self.num_steps_done + 1})

    def state_dict(self) -> dict[str, Any]:
        return {"num_steps_done": self.num_steps_done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.num_steps_done = state_dict["num_steps_done"]
        done = self.num_steps_done >= self.num_steps
        self.model.activation_mix = 1.0 if done else self.num_steps_done / self.num_steps


class SparsityCallback(TrainerCallback):
    """Steps these methods with transformers' `Trainer`, and brings them to its step when it resumes, and to the best
    model's step where `load_best_model_at_end` is set.

    ```python
    model = SparseViTForImageClassification.from_pretrained(checkpoint, hidden_act="jsrelu", zeroth_bias=True)
    methods = [LayerNormUplift(model, num_steps=1000), ActivationMixing(model, num_steps=1000)]
    Trainer(model, ..., callbacks=[SparsityCallback(*methods)]).train()
    ```
    """

    def __init__(self, *methods: LayerNormRestriction | LayerNormUplift | ActivationMixing):
        self.methods = methods

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step:
            self._bring_to(state.global_step)

    def on_optimizer_step(self, args, state, control, **kwargs):
        for method in self.methods:
            method.step()

    def on_train_end(self, args, state, control, **kwargs):
        # The weights are the best model's by now. The portion of JSReLU is not among them.
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            # Not `state.best_global_step`, which may be an evaluation after which nothing was saved.
            best = TrainerState.load_from_json(f"{state.best_model_checkpoint}/trainer_state.json")
            self._bring_to(best.global_step)

    def _bring_to(self, step: int) -> None:
        for method in self.methods:
            method.load_state_dict({"num_steps_done": step})

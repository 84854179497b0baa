# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""JSReLU and its mixture with ReLU: one formula, one backward rule."""

import math

import torch
from torch import nn
from transformers.activations import ACT2CLS, ACT2FN


class _MixedJSReLU(torch.autograd.Function):
    r"""y = r + m·c·(r − c/2) with r = max(x, 0) and c = min(r, t), for portion m and linear threshold t.

    The derivative is a function of the output alone: 1 + m·c = min(√(1 + 2·m·y), 1 + m·t) where y > 0. So the backward
    pass keeps `y`, which the linear layer behind the activation keeps anyway, and not `x`.
    """

    @staticmethod
    def forward(
        hidden_states: torch.Tensor, portion: torch.Tensor | float, linear_above: float | None
    ) -> torch.Tensor:
        positive = hidden_states.relu()
        if linear_above is None:
            # Every intermediate is at most the result, so float16 overflows only where the result itself does.
            return positive.mul(portion * 0.5).mul_(positive).add_(positive)
        curved = positive.clamp(max=linear_above)
        return curved.mul(-0.5).add_(positive).mul_(curved).mul_(portion).add_(positive)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, portion, ctx.linear_above = inputs
        ctx.portion = None if isinstance(portion, torch.Tensor) else portion
        ctx.save_for_backward(output, *([portion] if ctx.portion is None else []))

    @staticmethod
    def backward(ctx, grad_output):
        output, *saved = ctx.saved_tensors
        portion = saved[0] if ctx.portion is None else ctx.portion
        # √2·√(m·y + ½) rather than √(1 + 2·m·y): 2·y may leave the range of float16 although y does not.
        slope = (output * portion).add(0.5).sqrt().mul(math.sqrt(2.0))
        if ctx.linear_above is not None:
            slope = torch.minimum(slope, torch.as_tensor(1 + portion * ctx.linear_above).to(slope))
        return torch.where(output > 0, grad_output * slope, 0), None, None


def _mix(hidden_states: torch.Tensor, portion: torch.Tensor | float, linear_above: float | None) -> torch.Tensor:
    # A graph that `torch.jit.trace` records can be saved with plain operations only.
    function = _MixedJSReLU.forward if torch.jit.is_tracing() else _MixedJSReLU.apply
    return function(hidden_states, portion, linear_above)


def _check_linear_above(linear_above: float | None) -> None:
    if linear_above is not None and not 0 < linear_above < math.inf:
        raise ValueError(f"`linear_above` must be a positive finite number or None, got {linear_above}")


class JSReLU(nn.Module):
    r"""Jump-squared ReLU: JSReLU(x) = ((x + 1)² − 1)/2 = x + x²/2 for x > 0, else 0 (arXiv 2309.03004).

    The derivative is (x + 1)·1[x > 0], 0 at exactly 0.

    Args:
        linear_above: continue along the tangent above this x (the authors' tame variant uses 4, where the value is 12
            and the slope 5). `None` keeps the parabola.

    Raises:
        ValueError: if `linear_above` is not positive and finite.
    """

    def __init__(self, linear_above: float | None = None):
        super().__init__()
        _check_linear_above(linear_above)
        self.linear_above = linear_above

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return _mix(hidden_states, 1.0, self.linear_above)

    def extra_repr(self) -> str:
        return "" if self.linear_above is None else f"linear_above={self.linear_above}"


class MixedActivation(nn.Module):
    r"""σ(x) = (1 − m)·ReLU(x) + m·JSReLU(x), where the portion m goes from 0 to 1 while a network changes over.

    Args:
        portion: m ∈ [0, 1].
        linear_above: see [`JSReLU`].

    Attributes:
        portion: m as a scalar tensor. It is a non-persistent buffer: a compiled model reads its present value, and the
            value a checkpoint is saved with stands in the config (`activation_mix`).
    """

    def __init__(self, portion: float = 1.0, linear_above: float | None = None):
        super().__init__()
        _check_linear_above(linear_above)
        if not 0 <= portion <= 1:
            raise ValueError(f"`portion` must lie in [0, 1], got {portion}")
        self.linear_above = linear_above
        self.register_buffer("portion", torch.tensor(float(portion)), persistent=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return _mix(hidden_states, self.portion, self.linear_above)

    extra_repr = JSReLU.extra_repr


# `hidden_act="jsrelu"` in the config of any transformers model.
ACT2CLS["jsrelu"] = ACT2FN["jsrelu"] = JSReLU

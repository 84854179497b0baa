# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Sparse rate reduction (arXiv 2306.01129): coding rates of tokens, and how compression and sparsity develop from
layer to layer (figures 3 and 4 of the paper)."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


# Names that transformers gives to a block's projection, and CRATE to the one that serves as all three.
_PROJECTIONS = {
    "query": ("q_proj", "query", "subspace_proj"),
    "key": ("k_proj", "key", "subspace_proj"),
    "value": ("v_proj", "value", "subspace_proj"),
}


def _at_least_single(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def coding_rate(features: torch.Tensor, eps: float = 0.1) -> torch.Tensor:
    r"""R(Z) = ½ log det(I + d/(N ε²) Z Zᵀ): the nats that code the N tokens of Z up to the precision ε (section 2).

    The determinant is that of the smaller Gram matrix, N×N or d×d, in single precision at least.

    Args:
        features: Z, `(..., N, d)`.
        eps: ε, in the units of Z.

    Returns:
        R, `(...)`.

    Raises:
        ValueError: if `eps` is not positive, or `features` holds no matrices.
    """
    if not eps > 0:
        raise ValueError(f"`eps` must be positive, got {eps}")
    if features.ndim < 2 or not features.shape[-1] * features.shape[-2]:
        raise ValueError(f"`features` must be (..., tokens, dimensions), got {tuple(features.shape)}")
    features = _at_least_single(features)
    num_tokens, dim = features.shape[-2:]
    if dim < num_tokens:
        features = features.mT
    gram = features @ features.mT * (dim / (num_tokens * eps**2))
    gram.diagonal(dim1=-2, dim2=-1).add_(1)
    # ½ log det = Σ log of the Cholesky factor's diagonal.
    return torch.linalg.cholesky(gram).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def compression_rate(features: torch.Tensor, bases: torch.Tensor, eps: float = 0.1) -> torch.Tensor:
    r"""R^c(Z | U) = ½ Σ_k log det(I + p/(N ε²) (Z U_k)(Z U_k)ᵀ): the rate against K subspaces (section 2).

    Args:
        features: Z, `(..., N, d)`.
        bases: U, `(K, d, p)`.
        eps: ε, in the units of Z.

    Returns:
        R^c, `(...)`.

    Raises:
        ValueError: if the shapes do not fit each other, or `eps` is not positive.
    """
    if bases.ndim != 3 or bases.shape[1] != features.shape[-1]:
        raise ValueError(
            f"`bases` must be (subspaces, {features.shape[-1]}, dimensions) to fit `features`, got "
            f"{tuple(bases.shape)}"
        )
    return coding_rate(features.unsqueeze(-3) @ bases, eps).sum(-1)


@dataclass
class LayerStates:
    """What one layer computed in the last forward pass.

    Attributes:
        projections: the tokens' projections on each head's subspace, `(batch, heads, tokens, head_dim)`.
        output: the tokens after the layer, `(batch, tokens, d)`. For CRATE the code after ISTA.
        after_attention: the tokens after attention, `(batch, tokens, d)`. For CRATE those after MSSA. None where the
            layer has no module `layernorm_after` that receives them.
    """

    projections: torch.Tensor | None = None
    output: torch.Tensor | None = None
    after_attention: torch.Tensor | None = None


@contextmanager
def record_layers(model: PreTrainedModel, projection: str = "value") -> Iterator[list[LayerStates]]:
    """Records what each layer computes, as long as the context is open, without a forward pass of its own.

    Args:
        model: CRATE, or any vision transformer of transformers whose attention projects with separate linear layers.
        projection: `"query"`, `"key"` or `"value"`. CRATE has one projection for the three.

    Yields:
        One [`LayerStates`] a layer, overwritten by every forward pass.

    Raises:
        ValueError: if `projection` is none of these, or no layer of the model has it.
    """
    if projection not in _PROJECTIONS:
        raise ValueError(f"`projection` must be one of {list(_PROJECTIONS)}, got {projection!r}")
    records, handles = [], []
    for layer in model.modules():
        if not isinstance(layer, GradientCheckpointingLayer):
            continue
        found = [
            (layer.get_submodule(parent), module)
            for parent, _, name, module in ((*path.rpartition("."), module) for path, module in layer.named_modules())
            if name in _PROJECTIONS[projection] and isinstance(module, nn.Linear)
        ]
        if not found:
            continue
        attention, linear = found[0]
        records.append(states := LayerStates())
        handles.append(linear.register_forward_hook(_projection_hook(states, _num_heads(attention, model))))
        handles.append(layer.register_forward_hook(_output_hook(states)))
        if isinstance(norm := getattr(layer, "layernorm_after", None), nn.Module):
            handles.append(norm.register_forward_pre_hook(_after_attention_hook(states)))
    if not records:
        raise ValueError(
            f"{type(model).__name__} has no layer with a linear {projection} projection named one of "
            f"{_PROJECTIONS[projection]}"
        )
    try:
        yield records
    finally:
        for handle in handles:
            handle.remove()


def _num_heads(attention: nn.Module, model: PreTrainedModel) -> int:
    # Models with several towers have no single number in their config; their attention modules know it.
    for name in ("num_attention_heads", "num_heads"):
        if hasattr(attention, name):
            return getattr(attention, name)
    return model.config.num_attention_heads


def _projection_hook(states: LayerStates, num_heads: int):
    def hook(module, args, output):
        states.projections = output.unflatten(-1, (num_heads, -1)).transpose(1, 2)

    return hook


def _output_hook(states: LayerStates):
    def hook(module, args, output):
        states.output = output[0] if isinstance(output, tuple) else output

    return hook


def _after_attention_hook(states: LayerStates):
    def hook(module, args):
        states.after_attention = args[0]

    return hook


@dataclass(frozen=True)
class LayerRates:
    """Compression and sparsity of one layer, mean and standard deviation over the images.

    Attributes:
        compression_rate_mean, compression_rate_std: R^c of the tokens against the layer's subspaces, in nats.
        zero_share_mean, zero_share_std: share of exactly zero entries in the layer's output.
    """

    compression_rate_mean: float
    compression_rate_std: float
    zero_share_mean: float
    zero_share_std: float

    @property
    def nonzero_share_mean(self) -> float:
        return 1 - self.zero_share_mean

    @property
    def nonzero_share_std(self) -> float:
        return self.zero_share_std


@torch.no_grad()
def layerwise_rate_reduction(
    model: PreTrainedModel, dataloader: Iterable, eps: float = 0.1, projection: str = "value"
) -> list[LayerRates]:
    r"""R^c at each layer's attention and the share of zeros in its output (figures 3 and 4).

    The authors' protocol: the rate is that of the projections W of the normalised tokens on the layer's subspaces,
    each token's row scaled to unit norm, summed over the heads. For a CRATE the share of zeros is that of the code
    after ISTA. For another vision transformer the subspaces are those of its heads' `projection`, and the share is
    that of its residual stream after the layer; where there is no sparse code it is 0.

    Args:
        model: CRATE, or any vision transformer of transformers whose attention projects with separate linear layers.
            It is put into evaluation mode for the measurement.
        dataloader: batches: a mapping with `pixel_values`, a tensor of images, or a sequence that starts with one.
        eps: ε. The authors take ε² = 0.01.
        projection: see [`record_layers`].

    Returns:
        One [`LayerRates`] a layer.

    Raises:
        ValueError: if the dataloader is empty, or [`record_layers`] finds nothing in the model.
    """
    rates, zero_shares = [], []
    training = model.training
    model.eval()
    try:
        with record_layers(model, projection) as layers:
            for batch in dataloader:
                model(pixel_values=_pixel_values(batch).to(model.device, model.dtype))
                rates.append(
                    [coding_rate(F.normalize(_at_least_single(s.projections), dim=-1), eps).sum(-1) for s in layers]
                )
                zero_shares.append(
                    [(s.output == 0).sum(dim=(1, 2)).cpu().double() / s.output[0].numel() for s in layers]
                )
    finally:
        model.train(training)
    if not rates:
        raise ValueError("`dataloader` has no batches")
    # (layers, images)
    rates, zero_shares = (
        torch.stack([torch.cat([values.double().cpu() for values in layer]) for layer in zip(*batches, strict=True)])
        for batches in (rates, zero_shares)
    )
    # The authors' sample deviation; of a single image it is 0.
    correction = min(1, rates.shape[1] - 1)
    statistics = (s.tolist() for x in (rates, zero_shares) for s in (x.mean(1), x.std(1, correction=correction)))
    return [LayerRates(*values) for values in zip(*statistics, strict=True)]


def _pixel_values(batch) -> torch.Tensor:
    if isinstance(batch, Mapping):
        return batch["pixel_values"]
    return batch if isinstance(batch, torch.Tensor) else batch[0]

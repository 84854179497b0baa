# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""CRATE and its rate analysis against their plain formulations.

    python benchmarks/bench_crate.py
    python benchmarks/bench_crate.py --preset tiny base --batch_size 4 --threads 1

The plain CRATE computes ISTA with three matrix products and attention with an explicit softmax over the N×N matrix;
the plain coding rate takes the N×N Gram matrix. Images have 224×224 pixels, which is 197 tokens, in single precision.
The ratio says how many times as fast as the plain side ours is.
"""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from protocol import Benchmark, Side, at_least, make_parser
from sparsight import CrateConfig, CrateForImageClassification
from sparsight.analysis.rate_reduction import coding_rate


EPS = 0.1  # ε of the coding rates


def plain_forward(model: CrateForImageClassification, pixel_values: torch.Tensor) -> torch.Tensor:
    """The logits of `model` with the parameters of `model`, written as the equations are."""
    config, crate = model.config, model.crate
    hidden_states = crate.embeddings(pixel_values)
    batch, tokens, _ = hidden_states.shape
    for layer in crate.layers:
        normed = layer.layernorm_before(hidden_states)
        w = layer.attention.subspace_proj(normed).view(batch, tokens, -1, config.head_dim).transpose(1, 2)
        attention = (w @ w.transpose(-1, -2) * config.head_dim**-0.5).softmax(-1) @ w
        hidden_states = hidden_states + layer.attention.o_proj(attention.transpose(1, 2).reshape(batch, tokens, -1))

        y, dictionary = layer.layernorm_after(hidden_states), layer.ista.weight
        gradient = y @ dictionary - (y @ dictionary.T) @ dictionary
        hidden_states = F.relu(y + config.ista_step_size * gradient - config.ista_step_size * config.ista_lambda)
    pooled = hidden_states[:, 0] if config.pooling == "cls" else hidden_states.mean(1)
    return model.classifier(model.layernorm(pooled))


def plain_coding_rate(features: torch.Tensor) -> torch.Tensor:
    """½ log det(I_N + d/(N ε²) Z Zᵀ) of the N×N matrix, whatever d is."""
    num_tokens, dim = features.shape[-2:]
    gram = features @ features.mT * (dim / (num_tokens * EPS**2))
    identity = torch.eye(num_tokens, dtype=features.dtype, device=features.device)
    return torch.linalg.slogdet(identity + gram).logabsdet / 2


def compare_training(
    benchmark: Benchmark, name: str, model: CrateForImageClassification, pixel_values: torch.Tensor
) -> None:
    """The forward and the backward pass of a training step."""
    labels = torch.randint(model.config.num_labels, pixel_values.shape[:1], device=pixel_values.device)

    def step(logits: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The gradient of the first dictionary, which all other layers have passed on."""
        model.zero_grad()
        F.cross_entropy(logits(), labels).backward()
        return model.crate.layers[0].ista.weight.grad

    def ours() -> torch.Tensor:
        return step(lambda: model(pixel_values).logits)

    def plain() -> torch.Tensor:
        return step(lambda: plain_forward(model, pixel_values))

    def agree() -> None:
        expected = plain()
        if (error := (ours() - expected).norm() / expected.norm()) > 1e-4:
            raise AssertionError(f"the gradients of the first dictionary differ by {error:.1e} of their norm")

    benchmark.compare(name, Side("ours", ours), Side("plain", plain), agree)


@torch.inference_mode()
def compare_forward(
    benchmark: Benchmark, name: str, model: CrateForImageClassification, pixel_values: torch.Tensor
) -> None:
    """The forward pass of `model` as it is, fused or not."""

    def ours() -> torch.Tensor:
        return model(pixel_values).logits

    def plain() -> torch.Tensor:
        return plain_forward(model, pixel_values)

    def agree() -> None:
        torch.testing.assert_close(ours(), plain(), rtol=1e-4, atol=1e-4)

    benchmark.compare(name, Side("ours", ours), Side("plain", plain), agree)


def compare_coding_rates(benchmark: Benchmark, batch_size: int) -> None:
    """The coding rates of 12 heads' projections to 64 dimensions."""
    torch.manual_seed(0)
    projections = F.normalize(torch.randn(batch_size, 12, 197, 64), dim=-1).to(benchmark.device)

    def ours() -> torch.Tensor:
        return coding_rate(projections, EPS)

    def plain() -> torch.Tensor:
        return plain_coding_rate(projections)

    def agree() -> None:
        torch.testing.assert_close(ours(), plain(), rtol=1e-4, atol=1e-3)

    benchmark.compare("coding rate, 197 x 64", Side("ours", ours), Side("plain", plain), agree)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--preset", nargs="+", default=["tiny", "base"], help="Sizes of CRATE (default: %(default)s).")
    parser.add_argument("--batch_size", type=at_least(1), default=4, help="Images a call (default: %(default)s).")
    options = parser.parse_args()

    benchmark = Benchmark(options)
    for preset in options.preset:
        torch.manual_seed(0)
        model = CrateForImageClassification(CrateConfig.preset(preset, num_labels=1000)).to(benchmark.device)
        pixel_values = torch.randn(options.batch_size, 3, 224, 224).to(benchmark.device)
        compare_training(benchmark, f"crate-{preset} training step", model.train(), pixel_values)
        compare_forward(benchmark, f"crate-{preset} forward", model.eval(), pixel_values)
        model.fuse_ista()
        compare_forward(benchmark, f"crate-{preset} fused forward", model, pixel_values)
    compare_coding_rates(benchmark, options.batch_size)


if __name__ == "__main__":
    main()

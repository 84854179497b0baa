# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""CRATE and its rate analysis against their plain formulations, in one run on one machine.

    python benchmarks/bench_crate.py --preset tiny base --batch_size 4 --threads 1

The plain CRATE computes ISTA with three matrix products and attention with an explicit softmax over the N×N matrix;
the plain coding rate takes the N×N Gram matrix. Before anything is timed, both sides have to agree. The two sides take
turns, and what is printed is the median time of each and the median of the ratios of neighbouring runs.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from sparsight import CrateConfig, CrateForImageClassification
from sparsight.analysis.rate_reduction import coding_rate


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


def plain_coding_rate(features: torch.Tensor, eps: float) -> torch.Tensor:
    """½ log det(I_N + d/(N ε²) Z Zᵀ) of the N×N matrix, whatever d is."""
    num_tokens, dim = features.shape[-2:]
    gram = features @ features.mT * (dim / (num_tokens * eps**2))
    return torch.linalg.slogdet(torch.eye(num_tokens, dtype=features.dtype) + gram).logabsdet / 2


def compare(name: str, ours: Callable[[], object], plain: Callable[[], object], repeats: int) -> None:
    """Times both in turns and prints one line."""
    times = {ours: [], plain: []}
    for warm_up in (True, *[False] * repeats):
        for function, seconds in times.items():
            start = time.perf_counter()
            function()
            if not warm_up:
                seconds.append(time.perf_counter() - start)
    ratio = statistics.median(p / o for o, p in zip(times[ours], times[plain], strict=True))
    ours_ms, plain_ms = (1e3 * statistics.median(times[function]) for function in (ours, plain))
    print(f"{name:28}  {ours_ms:9.2f} ms  plain {plain_ms:9.2f} ms  ratio {ratio:5.2f}", flush=True)


def bench_model(preset: str, args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = CrateForImageClassification(CrateConfig.preset(preset, num_labels=1000))
    pixel_values = torch.randn(args.batch_size, 3, 224, 224)
    labels = torch.randint(1000, (args.batch_size,))

    def training_step(logits: Callable[[], torch.Tensor]) -> torch.Tensor:
        model.zero_grad()
        F.cross_entropy(logits(), labels).backward()
        return model.crate.layers[0].ista.weight.grad

    def ours_step() -> torch.Tensor:
        return training_step(lambda: model(pixel_values).logits)

    def plain_step() -> torch.Tensor:
        return training_step(lambda: plain_forward(model, pixel_values))

    expected = plain_step().clone()
    if (error := (ours_step() - expected).norm() / expected.norm()) > 1e-4:
        raise AssertionError(f"the gradients of the first dictionary differ by {error:.1e} of their norm")
    compare(f"crate-{preset} training step", ours_step, plain_step, args.repeats)

    model.eval()
    with torch.inference_mode():
        expected = plain_forward(model, pixel_values)
        for name in ("forward", "fused forward"):
            if name == "fused forward":
                model.fuse_ista()
            torch.testing.assert_close(model(pixel_values).logits, expected, rtol=1e-4, atol=1e-4)
            compare(
                f"crate-{preset} {name}",
                lambda: model(pixel_values),
                lambda: plain_forward(model, pixel_values),
                args.repeats,
            )


def bench_coding_rate(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    projections = F.normalize(torch.randn(args.batch_size, 12, 197, 64), dim=-1)
    torch.testing.assert_close(coding_rate(projections), plain_coding_rate(projections, 0.1), rtol=1e-4, atol=1e-3)
    compare(
        "coding rate, 197 x 64",
        lambda: coding_rate(projections),
        lambda: plain_coding_rate(projections, 0.1),
        args.repeats,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", nargs="+", default=["tiny", "base"], help="(default: %(default)s)")
    parser.add_argument("--batch_size", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each side (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.threads} threads, batch {args.batch_size}, 197 tokens, float32")
    for preset in args.preset:
        bench_model(preset, args)
    bench_coding_rate(args)


if __name__ == "__main__":
    main()

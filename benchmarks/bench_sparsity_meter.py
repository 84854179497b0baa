# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What counting costs: a training step with a SparsityMeter on, against the same step without.

    python benchmarks/bench_sparsity_meter.py
    python benchmarks/bench_sparsity_meter.py --size base --batch_size 4

The ratio says how many times as long a step takes with the meter on.
"""

import contextlib

import torch

from protocol import Benchmark, Side, at_least, make_parser
from sparsight import SparseViTConfig, SparseViTForImageClassification
from sparsight.analysis.sparsity import SparsityMeter


SIZES = {
    "digits": {
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "image_size": 8,
        "patch_size": 2,
    },
    "tiny": {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
    "base": {},
}


def main() -> None:
    parser = make_parser(__doc__, repeats=200, warm_up=5)
    parser.add_argument("--size", choices=SIZES, default="digits", help="Of the Sparse ViT (default: %(default)s).")
    parser.add_argument("--batch_size", type=at_least(1), default=64, help="Images a step (default: %(default)s).")
    options = parser.parse_args()

    benchmark = Benchmark(options)
    device, batch_size = benchmark.device, options.batch_size
    torch.manual_seed(0)
    config = SparseViTConfig(num_labels=10, **SIZES[options.size])
    model = SparseViTForImageClassification(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    pixel_values = torch.randn(batch_size, 3, config.image_size, config.image_size).to(device)
    labels = torch.randint(10, (batch_size,)).to(device)
    meter = SparsityMeter(model)

    def loss_and_gradients(context: contextlib.AbstractContextManager) -> list[torch.Tensor]:
        optimizer.zero_grad()
        with context:
            loss = model(pixel_values, labels=labels).loss
        loss.backward()
        return [loss.detach(), *(parameter.grad for parameter in model.parameters())]

    def step(context: contextlib.AbstractContextManager) -> None:
        loss_and_gradients(context)
        optimizer.step()

    def agree() -> None:
        """The meter changes nothing, and has counted every token."""
        torch.testing.assert_close(loss_and_gradients(meter), loss_and_gradients(contextlib.nullcontext()))
        num_tokens = batch_size * ((config.image_size // config.patch_size) ** 2 + 1)
        counted = meter.compute().num_tokens
        if counted != dict.fromkeys(meter.activations, num_tokens):
            raise AssertionError(f"a step has {num_tokens} tokens a layer, and the meter counted {counted}")

    without = Side("without meter", lambda: step(contextlib.nullcontext()))
    benchmark.compare(
        f"Sparse ViT {options.size}, batch {batch_size}", without, Side("with meter", lambda: step(meter)), agree
    )


if __name__ == "__main__":
    main()

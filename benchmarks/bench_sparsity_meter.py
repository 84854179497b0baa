# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What counting costs: a training step with a SparsityMeter on, against the same step without.

    python benchmarks/bench_sparsity_meter.py
    python benchmarks/bench_sparsity_meter.py --size base --batch_size 4

Both kinds of step alternate within one run; the ratio is that of their medians.
"""

import argparse
import contextlib
import statistics
import time

import torch
from tqdm import tqdm

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="digits", help="Size of the Sparse ViT.")
    parser.add_argument("--batch_size", type=int, default=64, help="Images a step.")
    parser.add_argument("--steps", type=int, default=200, help="Steps of each kind.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="Where to run.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="Threads on the CPU.")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = SparseViTConfig(num_labels=10, **SIZES[args.size])
    model = SparseViTForImageClassification(config).to(args.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    pixel_values = torch.randn(args.batch_size, 3, config.image_size, config.image_size, device=args.device)
    labels = torch.randint(10, (args.batch_size,), device=args.device)
    meter = SparsityMeter(model)

    def step(context: contextlib.AbstractContextManager) -> float:
        start = time.perf_counter()
        with context:
            loss = model(pixel_values, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if args.device != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter() - start

    for _ in range(5):
        step(contextlib.nullcontext())
        step(meter)
    times = [(step(contextlib.nullcontext()), step(meter)) for _ in tqdm(range(args.steps), leave=False)]
    off, on = (statistics.median(column) for column in zip(*times, strict=True))
    print(
        f"Sparse ViT {args.size}, batch {args.batch_size}, {args.device}, {args.threads} threads, {args.steps} steps"
    )
    print(f"without meter {off * 1e3:8.2f} ms")
    print(f"with meter    {on * 1e3:8.2f} ms")
    print(f"ratio         {on / off:8.3f}")


if __name__ == "__main__":
    main()

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of the data side of T5 pretraining, against what the model consumes on the CPU.

    python benchmarks/bench_t5_data.py --recipe sparse_t5_stdlib

The data side is the loader of the training loop on its own, in one process; a stream is also tokenized and packed on
the way. The model consumes a batch in a forward and a backward pass and an optimizer step. Both count encoder and
decoder tokens, in seconds of CPU time on one thread, so that others on the machine do not count. The model is then
taken to be as many times faster as it has `--cores`, the loader to have but one. The two run in turn, `--rounds`
times; medians are reported with the spread.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from accelerate import Accelerator

from sparsight.training import pretrain_t5
from sparsight.training.arguments import LoopArguments, argument, exit_on_usage_error, parse_arguments, require
from sparsight.training.language_modeling import make_compute_loss
from sparsight.training.loop import make_optimizer
from sparsight.training.text_data import TextArguments, load_texts
from sparsight.training.text_examples import make_train_loader


@dataclass
class BenchmarkArguments:
    """What to measure."""

    seconds: float = argument("CPU time of each measurement.", 5.0)
    rounds: int = argument("Measurements of each kind.", 5)
    cores: int = argument("Cores that the model runs on, at perfect scaling.", 2)


def count_tokens(batch: dict[str, torch.Tensor]) -> int:
    """Tokens of encoder and decoder."""
    return batch["input_ids"].numel() + batch["labels"].numel()


def measure(step: Callable[[], int], seconds: float) -> float:
    """Tokens per second of CPU time of `step`, which returns how many it has handled."""
    step()
    tokens, start = 0, time.process_time()
    while (elapsed := time.process_time() - start) < seconds:
        tokens += step()
    return tokens / elapsed


@exit_on_usage_error
def main(args: list[str] | None = None) -> None:
    arguments, text, loop, benchmark = parse_arguments(
        (pretrain_t5.ModelArguments, TextArguments, LoopArguments, BenchmarkArguments),
        args,
        __doc__,
        pretrain_t5.default_recipe,
    )
    require(benchmark.rounds >= 1, "rounds", "measure at least once")
    loop.check()
    text.check()
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    texts = load_texts(text)
    model, tokenizer = pretrain_t5.make_model(arguments, text, texts)
    model.to(accelerator.device).train()
    optimizer = make_optimizer(model, loop)
    compute_loss = make_compute_loss(loop)
    batches = iter(make_train_loader(texts, tokenizer, text, accelerator, loop))
    batch = next(batches)

    def consume() -> int:
        compute_loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        return count_tokens(batch)

    sides = {"data": lambda: count_tokens(next(batches)), "model": consume}
    rates = {side: [] for side in sides}
    for _ in range(benchmark.rounds):
        for side, step in sides.items():
            rates[side].append(measure(step, benchmark.seconds))
    rates["model"] = [benchmark.cores * rate for rate in rates["model"]]
    medians = {side: statistics.median(values) for side, values in rates.items()}
    for side, values in rates.items():
        print(f"{side:5}: {medians[side]:12,.0f} tokens/s (from {min(values):,.0f} to {max(values):,.0f})")
    print(f"ratio: {medians['data'] / medians['model']:12,.1f}")
    print(json.dumps({"rates": rates, "cores": benchmark.cores, "recipe": arguments.recipe, **asdict(text)}))


if __name__ == "__main__":
    main()

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""How far the data side of T5 pretraining is ahead of the model, on the CPU.

    python benchmarks/bench_t5_data.py --recipe sparse_t5_stdlib

The data side is the loader of the training loop on its own, in this process; a stream is also tokenized and packed on
the way. The model consumes a batch in a forward and a backward pass and an optimizer step. Both count CPU time on one
thread, so that others on the machine do not count. The ratio is therefore also the number of cores up to which one
core of loading keeps the model busy, however well the model scales.

All other arguments are those of training/pretrain_t5.py: the recipe, the data and the model.
"""

from collections.abc import Callable

import torch
from accelerate import Accelerator

from protocol import Benchmark, Side, at_least, make_parser
from sparsight.training.command_line.arguments import Settings, parse_arguments
from sparsight.training.command_line.errors import one_line_errors
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.models import ModelArguments
from sparsight.training.engine.optimization import make_optimizer
from sparsight.training.methods import MethodArguments
from sparsight.training.tasks.denoising import TextDenoising


CLASSES = (ModelArguments, MethodArguments, TextDenoising.arguments_class, LoopArguments)


def make_calls(args: list[str]) -> tuple[Callable[[], int], Callable[[], int]]:
    """What the loader does for a batch and what the model does with one; each returns the tokens it has handled.

    Args:
        args: the command line of a pretraining.
    """
    start, method, text, loop = parse_arguments(CLASSES, args, __doc__, TextDenoising.default_recipe)
    start.model_type = start.model_type or TextDenoising.default_model_type
    loop.num_workers = 0  # the clock sees this process only
    Settings(start, method, text, loop).check()
    task = TextDenoising(text, loop)
    model, tokenizer = task.make_model(start)
    task.prepare(model, tokenizer, Accelerator(cpu=True))
    model.train()
    optimizer = make_optimizer(model, loop)
    batches = iter(task.train_loader)
    batch = next(batches)

    def consume() -> int:
        task.compute_loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        return count_tokens(batch)

    return lambda: count_tokens(next(batches)), consume


def count_tokens(batch: dict[str, torch.Tensor]) -> int:
    """Tokens of encoder and decoder."""
    return batch["input_ids"].numel() + batch["labels"].numel()


def main() -> None:
    parser = make_parser(__doc__, device=False, clock="cpu")
    parser.add_argument(
        "--batches", type=at_least(1), default=500, help="Of the loader, a run (default: %(default)s)."
    )
    parser.add_argument("--steps", type=at_least(1), default=20, help="Of the model, a run (default: %(default)s).")
    options, args = parser.parse_known_args()

    benchmark = Benchmark(options)
    with one_line_errors(*CLASSES):
        load, consume = make_calls(args)
    num_tokens = consume()

    def agree() -> None:
        if (loaded := load()) != num_tokens:
            raise AssertionError(f"the loader gives {loaded} tokens a batch, and the model takes {num_tokens}")

    comparison = benchmark.compare(
        f"T5, {num_tokens:,} tokens a batch",
        Side("data", load, options.batches),
        Side("model", consume, options.steps),
        agree,
    )
    data, model = (num_tokens / seconds for seconds in comparison.medians)
    print(f"tokens a second of CPU time: data {data:,.0f}, model {model:,.0f}")


if __name__ == "__main__":
    main()

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The order of training examples as a function of seed and step, and the loaders that all tasks share."""

import itertools
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from timm.data.distributed_sampler import RepeatAugSampler
from torch.utils.data import DataLoader, Dataset, Sampler

from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.seeding import derive_seed


class EpochBatches(Sampler):
    """Endless micro-batches of (epoch, position, index), from any optimizer step on.

    The order is a function of seed and epoch. Each epoch has whole optimizer steps only; what is left over is dropped.

    Attributes:
        steps_per_epoch: optimizer steps of an epoch.
        first_step: where the next iteration begins.
    """

    drop_last = True

    def __init__(self, examples: Sized, loop: LoopArguments, repeats: int = 1):
        self.batch_size = loop.micro_batch_size
        self.steps_per_epoch = len(examples) // loop.batch_size
        self.examples_per_epoch = self.steps_per_epoch * loop.batch_size
        self.micro_batches_per_step = loop.gradient_accumulation_steps
        self.seed = loop.seed
        self.first_step = 0
        self.sampler = RepeatAugSampler(examples, num_replicas=1, rank=0, num_repeats=repeats, selected_round=0)

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        first_epoch, step = divmod(self.first_step, self.steps_per_epoch)
        start = step * self.micro_batches_per_step * self.batch_size
        for epoch in itertools.count(first_epoch):
            self.sampler.set_epoch(derive_seed(self.seed, epoch))
            indices = itertools.islice(self.sampler, self.examples_per_epoch)
            keys = [(epoch, position, int(index)) for position, index in enumerate(indices)]
            for first in range(start, len(keys), self.batch_size):
                yield keys[first : first + self.batch_size]
            start = 0


def make_training_loader(
    dataset: Dataset,
    batch_sampler: Sampler,
    collate_fn: Callable[[Any], Any],
    accelerator: Accelerator,
    loop: LoopArguments,
) -> DataLoader:
    """Endless batches of `dataset`, each split over the processes.

    Args:
        batch_sampler: an [`EpochBatches`] or one with the same attributes.

    Raises:
        ValueError: if the batch size does not fit the examples or the processes.
    """
    if isinstance(batch_sampler, EpochBatches) and not batch_sampler.steps_per_epoch:
        raise ValueError(
            f"batch_size: {loop.batch_size} is more than the {len(batch_sampler.sampler.dataset)} training examples; "
            "lower it"
        )
    if loop.micro_batch_size % accelerator.num_processes:
        raise ValueError(
            f"batch_size: a micro-batch of {loop.micro_batch_size} does not divide over {accelerator.num_processes} "
            "processes; give a multiple"
        )
    loader = DataLoader(
        dataset,
        batch_sampler=batch_sampler,
        collate_fn=collate_fn,
        num_workers=loop.num_workers,
        pin_memory=accelerator.device.type == "cuda",
    )
    return prepare_data_loader(loader, accelerator.device, split_batches=True, put_on_device=True, non_blocking=True)


def make_evaluation_loader(
    dataset: Dataset,
    collate_fn: Callable[[Any], Any],
    accelerator: Accelerator,
    loop: LoopArguments,
    keys: Sequence[Any] | None = None,
) -> DataLoader:
    """Every example once: whole batches go to the processes in turn, and none is repeated to even them out.

    Args:
        keys: of the examples in `dataset`, in their order; None for 0, 1, ….
    """
    loader = DataLoader(
        dataset,
        sampler=keys,
        batch_size=loop.eval_batch_size,
        collate_fn=collate_fn,
        num_workers=loop.num_workers,
        pin_memory=accelerator.device.type == "cuda",
    )
    return prepare_data_loader(loader, accelerator.device, put_on_device=True, even_batches=False, non_blocking=True)


def find_order(loader: DataLoader) -> EpochBatches:
    """The batch sampler of a training loader, which knows its `steps_per_epoch` and where to begin (`first_step`)."""
    sampler = loader.batch_sampler
    return getattr(sampler, "batch_sampler", sampler)  # under accelerate's shard

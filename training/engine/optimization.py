# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""From arguments to accelerator, optimizer and the plan of the steps."""

import math
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import GradientAccumulationPlugin
from timm.optim import create_optimizer_v2, get_optimizer_info, param_groups_weight_decay
from torch import nn
from torch.utils.data import DataLoader
from transformers.utils.logging import disable_progress_bar

from sparsight.configuration.messages import nearest, single_line
from sparsight.training.engine.batches import find_order
from sparsight.training.engine.loop_arguments import LoopArguments


def make_accelerator(arguments: LoopArguments) -> Accelerator:
    """An accelerator for the training loop, which accumulates gradients itself.

    Raises:
        ValueError: if the tracker or the precision is not to be had here.
    """
    disable_progress_bar()  # transformers would draw one for each checkpoint, through the run's own
    _check_tracker(arguments.report_to)
    try:
        accelerator = Accelerator(
            mixed_precision=arguments.mixed_precision,
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1, sync_with_dataloader=False),
            log_with=None if arguments.report_to == "none" else arguments.report_to,
            project_dir=arguments.output_dir,
        )
    except ValueError as error:
        raise ValueError(f"mixed_precision: {single_line(error)}") from error
    if accelerator.mixed_precision == "fp16" and accelerator.device.type == "cpu":
        raise ValueError("mixed_precision: fp16 is not computed on a CPU; give bf16 or no")
    return accelerator


def _check_tracker(name: str) -> None:
    """Raise a ValueError unless a tracker is known and installed; accelerate would log nothing, without a word."""
    known = [str(tracker) for tracker in LOGGER_TYPE_TO_CLASS]
    if name in ("none", "all"):
        return
    if name not in known:
        raise ValueError(f"report_to: unknown {name!r}; {nearest(name, [*known, 'all', 'none'])}")
    if name not in map(str, get_available_trackers()):
        raise ValueError(f"report_to: {name} is not installed; `pip install {name}`, or give another tracker or none")


def make_optimizer(model: nn.Module, arguments: LoopArguments) -> torch.optim.Optimizer:
    """The optimizer, without weight decay on norm scales, biases and zeroth biases."""
    info = get_optimizer_info(arguments.optimizer)
    groups = param_groups_weight_decay(model, arguments.weight_decay, no_weight_decay_list=("*zeroth_bias*",))
    has_two = info.has_betas and info.num_betas == 2
    betas = {"betas": (arguments.adam_beta1, arguments.adam_beta2)} if has_two else {}
    return create_optimizer_v2(groups, arguments.optimizer, lr=arguments.learning_rate, **betas)


@dataclass(frozen=True)
class Plan:
    """How many optimizer steps there are.

    Attributes:
        num_steps: in all.
        eval_steps: from one evaluation to the next.
        warmup_steps: over which the learning rate rises.
    """

    num_steps: int
    eval_steps: int
    warmup_steps: int

    @classmethod
    def of(cls, loader: DataLoader, arguments: LoopArguments) -> "Plan":
        """The plan for the batches of a training loader."""
        steps_per_epoch = find_order(loader).steps_per_epoch
        return cls(
            num_steps=arguments.max_steps or math.ceil(arguments.num_epochs * steps_per_epoch),
            eval_steps=max(1, round(arguments.eval_epochs * steps_per_epoch)),
            warmup_steps=arguments.warmup_steps or round(arguments.warmup_epochs * steps_per_epoch),
        )

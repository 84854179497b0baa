# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The training loop: steps, checkpoints and evaluation. Observers look on, methods act on weights between steps."""

import contextlib
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import tqdm
from torch import nn
from transformers import get_scheduler

from sparsight.training.engine.batches import find_order
from sparsight.training.engine.checkpoints import checkpoint_path, find_checkpoints, load_checkpoint, save_checkpoint
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.observers import Observer, Training
from sparsight.training.engine.optimization import Plan, make_optimizer
from sparsight.training.engine.seeding import derive_seed, seed_generators
from sparsight.training.engine.task import Task


class Method(Protocol):
    """What acts on the weights after each optimizer step, see `training/methods/`."""

    def step(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class NonFiniteLoss(ArithmeticError):
    """The loss became infinite or NaN. What was written before stays."""


@dataclass
class TrainingResult:
    """What a training came to.

    Attributes:
        model: the trained model, unwrapped.
        evaluation: what the task measured after the last step.
        num_steps: optimizer steps in all.
        observed: what the observers found.
    """

    model: nn.Module
    evaluation: dict[str, Any]
    num_steps: int
    observed: dict[str, Any]


def train(
    accelerator: Accelerator,
    model: nn.Module,
    task: Task,
    arguments: LoopArguments,
    output_dir: Path,
    methods: Sequence[Method] = (),
    observers: Sequence[Observer] = (),
    resume_from: Path | None = None,
) -> TrainingResult:
    """Train on a prepared task, evaluate every `eval_epochs`, and keep checkpoints to continue from.

    Writes `checkpoint-<step>/`, from which a training continues as if never stopped: all randomness of a micro-batch
    (dropout, mixing) is drawn from a seed made of the run's seed and its number.

    Args:
        task: prepared for `model`.
        output_dir: for the checkpoints.
        methods: are stepped after each optimizer step, and saved with the checkpoints.
        observers: look on; their state is saved with the checkpoints.
        resume_from: a checkpoint.

    Raises:
        NonFiniteLoss: says at which step; the last good checkpoint stays.
        ValueError: if two observers share a name, or `resume_from` is no checkpoint of this training.
    """
    names = [observer.name for observer in observers]
    if len(set(names)) < len(names):
        raise ValueError(f"two observers share a name, by which their states are told apart: {', '.join(names)}")
    plan = Plan.of(task.train_loader, arguments)
    if arguments.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    model.to(accelerator.device)
    optimizer = make_optimizer(model, arguments)
    scheduler = get_scheduler(arguments.lr_scheduler, optimizer, plan.warmup_steps, plan.num_steps)
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    training = Training(accelerator, model, optimizer, output_dir, plan.num_steps)
    stateful = {"optimizer": optimizer, "scheduler": scheduler}
    stateful |= {f"method_{index}": method for index, method in enumerate(methods)}
    stateful |= {f"observer_{observer.name}": observer for observer in observers}
    for observer in observers:
        observer.begin(training)
    if resume_from is not None:
        _resume(training, resume_from, stateful)

    log = _Log(training, observers)
    order = find_order(task.train_loader)
    order.first_step = training.step
    micro_batches = iter(task.train_loader)
    evaluation = None
    model.train()
    with tqdm(
        total=plan.num_steps,
        initial=training.step,
        desc=output_dir.name,
        unit="step",
        leave=False,
        dynamic_ncols=True,
    ) as bar:
        while training.step < plan.num_steps:
            training.step += 1
            training.loss = _backpropagate(training, wrapped, task, micro_batches, arguments, observers)
            if arguments.max_grad_norm:
                accelerator.clip_grad_norm_(wrapped.parameters(), arguments.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            if not accelerator.optimizer_step_was_skipped:  # float16 skips a step whose gradient overflowed
                for method in methods:
                    method.step()
                scheduler.step()
            for observer in observers:
                observer.after_step(training)
            log.add_step()
            bar.update()

            evaluate_now = training.step % plan.eval_steps == 0 or training.step == plan.num_steps
            if training.step % arguments.logging_steps == 0 or evaluate_now:
                values = log.write(scheduler.get_last_lr()[0])
                bar.set_postfix({name: f"{values[name]:.3g}" for name in ("loss", "nonzero_share") if name in values})
            if evaluate_now:
                evaluation = _evaluate(training, task, log)
                for observer in observers:
                    observer.after_evaluation(training, evaluation)
                model.train()
                _save(training, stateful, arguments.keep_checkpoints)
    model.eval()
    return TrainingResult(
        model=model,
        evaluation=task.evaluate(model) if evaluation is None else evaluation,
        num_steps=plan.num_steps,
        observed={name: value for observer in observers for name, value in observer.results().items()},
    )


def _backpropagate(
    training: Training,
    wrapped: nn.Module,
    task: Task,
    micro_batches: Iterator[dict[str, torch.Tensor]],
    arguments: LoopArguments,
    observers: Sequence[Observer],
) -> torch.Tensor:
    """The gradient of an optimizer step, over all its micro-batches.

    Returns:
        The mean loss on this process, on the device.
    """
    accelerator, num_micro_batches = training.accelerator, arguments.gradient_accumulation_steps
    total = torch.zeros((), device=accelerator.device)
    for micro_step in range(num_micro_batches):
        batch = next(micro_batches)
        seed = derive_seed(arguments.seed, training.step, micro_step, accelerator.process_index)
        seed_generators(seed, accelerator.device)
        last = micro_step + 1 == num_micro_batches
        with contextlib.nullcontext() if last else accelerator.no_sync(wrapped):
            with contextlib.ExitStack() as watching:
                for observer in observers:
                    watching.enter_context(observer.watch_forward())
                loss = task.compute_loss(wrapped, batch) / num_micro_batches
            accelerator.backward(loss)
        total += loss.detach()
    return total


class _Log:
    """Losses between two reports, and what goes to the trackers; the device is waited for at a report only."""

    def __init__(self, training: Training, observers: Sequence[Observer]):
        self.training = training
        self.observers = observers
        # Where a run trains several models, the tracker tells them apart.
        whole_run = training.output_dir == Path(training.accelerator.project_dir or training.output_dir)
        self.prefix = "" if whole_run else f"{training.output_dir.name}/"
        device = training.accelerator.device
        self.loss_sum = torch.zeros((), device=device)
        self.num_steps = 0
        self.first_bad_step = torch.zeros((), dtype=torch.long, device=device)

    def add_step(self) -> None:
        loss = self.training.loss
        self.loss_sum += loss
        self.num_steps += 1
        good = loss.isfinite() | (self.first_bad_step > 0)
        self.first_bad_step = torch.where(good, self.first_bad_step, self.training.step)

    def write(self, learning_rate: float) -> dict[str, float]:
        """What is logged of the steps since the last time.

        Raises:
            NonFiniteLoss: on all processes together, if any has seen a loss that is not finite.
        """
        accelerator = self.training.accelerator
        if bad := [step for step in accelerator.gather(self.first_bad_step.reshape(1)).tolist() if step]:
            raise self.not_finite(min(bad))
        mean_loss = (accelerator.reduce(self.loss_sum, "mean") / self.num_steps).item()
        values = {"loss": mean_loss, "lr": learning_rate}
        for observer in self.observers:
            values |= observer.report(self.training)
        self.send("train", values)
        self.loss_sum.zero_()
        self.num_steps = 0
        return values

    def send(self, kind: str, values: dict[str, float]) -> None:
        named = {f"{self.prefix}{kind}/{name}": value for name, value in values.items()}
        self.training.accelerator.log(named, step=self.training.step)

    def not_finite(self, step: int) -> NonFiniteLoss:
        kept = find_checkpoints(self.training.output_dir)
        where = f"the last good checkpoint is {kept[-1]}" if kept else "there was no checkpoint yet"
        return NonFiniteLoss(f"learning_rate: the loss is not finite at step {step}; lower it ({where})")


def _evaluate(training: Training, task: Task, log: _Log) -> dict[str, Any]:
    evaluation = task.evaluate(training.model)
    numbers = {name: value for name, value in evaluation.items() if isinstance(value, (int, float))}
    if not all(map(math.isfinite, numbers.values())):  # the last step may have broken the weights
        raise log.not_finite(training.step)
    log.send("eval", numbers)
    return evaluation


def _save(training: Training, stateful: dict[str, Any], num_kept: int) -> None:
    """Write a checkpoint, and remove all but the newest."""
    accelerator = training.accelerator
    if accelerator.is_main_process:
        states = {name: holder.state_dict() for name, holder in stateful.items()}
        path = checkpoint_path(training.output_dir, training.step)
        save_checkpoint(path, accelerator, training.model, {"step": training.step, **states})
        for old in find_checkpoints(training.output_dir)[:-num_kept]:
            shutil.rmtree(old)
    accelerator.wait_for_everyone()


def _resume(training: Training, path: Path, stateful: dict[str, Any]) -> None:
    states = load_checkpoint(path, training.accelerator, training.model)
    if "step" not in states:
        raise ValueError(f"resume_from_checkpoint: {path} is of an earlier version; start anew with --overwrite")
    training.step = states["step"]
    for name, holder in stateful.items():
        if name in states or not isinstance(holder, Observer):  # an observer that was not there before starts afresh
            holder.load_state_dict(states[name])

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The training loop that all scripts share."""

import contextlib
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, tqdm
from timm.optim import create_optimizer_v2, get_optimizer_info, param_groups_weight_decay
from torch import nn
from torch.utils.data import DataLoader
from transformers import get_scheduler
from transformers.utils.logging import disable_progress_bar

from sparsight.analysis.sparsity import TrainingSparsity, make_meter
from sparsight.training.arguments import LoopArguments, UsageError
from sparsight.training.run_folder import (
    find_checkpoints,
    load_checkpoint,
    recover_folder,
    save_checkpoint,
    written_folder,
)
from sparsight.training.seeding import derive_seed, seed_generators


class RecipePart(Protocol):
    """What acts after each optimizer step, see `training/sparsity.py`."""

    def step(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class NonFiniteLoss(UsageError):
    """The loss became infinite or NaN. What was written before stays."""


def make_accelerator(arguments: LoopArguments) -> Accelerator:
    """An accelerator for [`train`], which accumulates gradients itself.

    Raises:
        UsageError: if the tracker or the precision is not to be had here.
    """
    disable_progress_bar()  # transformers would draw one for each checkpoint, through the run's own
    try:
        return Accelerator(
            mixed_precision=arguments.mixed_precision,
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1, sync_with_dataloader=False),
            log_with=None if arguments.report_to == "none" else arguments.report_to,
            project_dir=arguments.output_dir,
        )
    except ValueError as error:
        raise UsageError(f"--report_to or --mixed_precision: {' '.join(str(error).split())}") from error


def make_optimizer(model: nn.Module, arguments: LoopArguments) -> torch.optim.Optimizer:
    """The optimizer, without weight decay on norm scales, biases and zeroth biases."""
    info = get_optimizer_info(arguments.optimizer)
    groups = param_groups_weight_decay(model, arguments.weight_decay, no_weight_decay_list=("*zeroth_bias*",))
    betas = {"betas": (arguments.adam_beta1, arguments.adam_beta2)} if info.has_betas else {}
    return create_optimizer_v2(groups, arguments.optimizer, lr=arguments.learning_rate, **betas)


@dataclass
class _Progress:
    """Where a run stands; all that resuming needs beside the weights, the optimizer and the recipe's parts."""

    step: int = 0
    best_step: int = 0
    best_score: float = -math.inf


@dataclass
class TrainingResult:
    """
    Attributes:
        model: the trained model, unwrapped.
        evaluation: what `evaluate` measured after the last step.
        best_step, best_score: where `score` was highest, and how high.
        training_nonzero_share: training sparsity, the non-zero share averaged over all optimizer steps.
        num_steps: optimizer steps in all.
    """

    model: nn.Module
    evaluation: Any
    best_step: int
    best_score: float
    training_nonzero_share: float | None
    num_steps: int


def train(
    accelerator: Accelerator,
    model: nn.Module,
    loader: DataLoader,
    arguments: LoopArguments,
    output_dir: Path,
    *,
    compute_loss: Callable[[nn.Module, dict[str, torch.Tensor]], torch.Tensor],
    evaluate: Callable[[nn.Module], Any],
    score: Callable[[Any], float],
    save_model: Callable[[nn.Module, Path], None],
    parts: Sequence[RecipePart] = (),
    resume_from: Path | None = None,
    description: str = "training",
) -> TrainingResult:
    """Train, evaluate every `eval_epochs`, and keep checkpoints from which a run continues as if never stopped.

    Writes `checkpoint-<step>/` to resume from, and `best/`, the model at its highest score as `save_model` writes it.
    All randomness of a micro-batch (dropout, mixing) is drawn from a seed made of the run's seed and its number.

    Args:
        loader: endless; its batch sampler is an [`EpochBatches`] or has the same attributes.
        compute_loss: `(model, batch)` to the mean loss of a micro-batch.
        evaluate: measures the unwrapped model; called on all processes.
        score: what is to be high in that measurement.
        save_model: writes the unwrapped model into a folder, on the main process.
        parts: are stepped after each optimizer step, and saved with the checkpoints.

    Raises:
        NonFiniteLoss: says at which step; the last good checkpoint stays.
        UsageError: if `resume_from` is no checkpoint of this model.
    """
    sampler = _batch_sampler(loader)
    steps_per_epoch = sampler.steps_per_epoch
    num_steps = count_steps(loader, arguments)
    eval_steps = max(1, round(arguments.eval_epochs * steps_per_epoch))
    warmup_steps = arguments.warmup_steps or round(arguments.warmup_epochs * steps_per_epoch)

    unwrapped = model
    if arguments.gradient_checkpointing:
        unwrapped.gradient_checkpointing_enable()
    unwrapped.to(accelerator.device)
    optimizer = make_optimizer(unwrapped, arguments)
    scheduler = get_scheduler(arguments.lr_scheduler, optimizer, warmup_steps, num_steps)
    model, optimizer = accelerator.prepare(unwrapped, optimizer)
    progress, training_sparsity = _Progress(), TrainingSparsity()
    stateful = {"optimizer": optimizer, "scheduler": scheduler, "training_sparsity": training_sparsity}
    stateful |= {f"part_{index}": part for index, part in enumerate(parts)}
    recover_folder(output_dir / "best")
    if resume_from is not None:
        states = load_checkpoint(resume_from, accelerator, unwrapped)
        progress = _Progress(**states["progress"])
        for name, holder in stateful.items():
            holder.load_state_dict(states[name])

    meter = make_meter(unwrapped)
    loss_sum = torch.zeros((), device=accelerator.device)
    first_bad_step = torch.zeros((), dtype=torch.long, device=accelerator.device)
    logged_step = progress.step
    evaluation = None
    sampler.first_step = progress.step
    micro_batches = iter(loader)
    model.train()
    with tqdm(
        total=num_steps, initial=progress.step, desc=description, unit="step", leave=False, dynamic_ncols=True
    ) as bar:
        while progress.step < num_steps:
            progress.step += 1
            for micro_step in range(arguments.gradient_accumulation_steps):
                last = micro_step + 1 == arguments.gradient_accumulation_steps
                batch = next(micro_batches)
                seed = derive_seed(arguments.seed, progress.step, micro_step, accelerator.process_index)
                seed_generators(seed, accelerator.device)
                with contextlib.nullcontext() if last else accelerator.no_sync(model):
                    with meter or contextlib.nullcontext():
                        loss = compute_loss(model, batch) / arguments.gradient_accumulation_steps
                    accelerator.backward(loss)
                loss = loss.detach()
                loss_sum += loss
                first_bad_step = torch.where(loss.isfinite() | (first_bad_step > 0), first_bad_step, progress.step)
            if arguments.max_grad_norm:
                accelerator.clip_grad_norm_(model.parameters(), arguments.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            if not accelerator.optimizer_step_was_skipped:  # float16 skips a step whose gradient overflowed
                for part in parts:
                    part.step()
                scheduler.step()
            bar.update()

            evaluate_now = progress.step % eval_steps == 0 or progress.step == num_steps
            if progress.step % arguments.logging_steps == 0 or evaluate_now:
                _stop_if_not_finite(accelerator, first_bad_step, output_dir)
                steps = progress.step - logged_step
                mean_loss = (accelerator.reduce(loss_sum, "mean") / steps).item()
                values = {"loss": mean_loss, "lr": scheduler.get_last_lr()[0]}
                if meter:
                    sparsity = meter.compute()
                    training_sparsity.update(sparsity.nonzero_share, steps)
                    values |= {"nonzero_share": sparsity.nonzero_share}
                    values |= {f"nonzero_share/{name}": v for name, v in sparsity.nonzero_share_per_layer.items()}
                    meter.reset()
                accelerator.log({f"train/{name}": value for name, value in values.items()}, step=progress.step)
                bar.set_postfix({name: f"{values[name]:.3g}" for name in ("loss", "nonzero_share") if name in values})
                loss_sum.zero_()
                logged_step = progress.step
            if evaluate_now:
                evaluation = evaluate(unwrapped)
                model.train()
                scalars = {name: v for name, v in asdict(evaluation).items() if isinstance(v, (int, float))}
                if not all(map(math.isfinite, scalars.values())):  # the last step may have broken the weights
                    raise _not_finite(progress.step, output_dir)
                accelerator.log({f"eval/{name}": value for name, value in scalars.items()}, step=progress.step)
                improved = score(evaluation) > progress.best_score
                if improved:
                    progress.best_step, progress.best_score = progress.step, score(evaluation)
                if accelerator.is_main_process:
                    if improved:
                        with written_folder(output_dir / "best") as folder:
                            save_model(unwrapped, folder)
                    states = {name: holder.state_dict() for name, holder in stateful.items()}
                    path = output_dir / f"checkpoint-{progress.step}"
                    save_checkpoint(path, accelerator, unwrapped, progress=asdict(progress), **states)
                    for old in find_checkpoints(output_dir)[: -arguments.keep_checkpoints]:
                        shutil.rmtree(old)
                accelerator.wait_for_everyone()
    unwrapped.eval()
    return TrainingResult(
        model=unwrapped,
        evaluation=evaluate(unwrapped) if evaluation is None else evaluation,
        best_step=progress.best_step,
        best_score=progress.best_score,
        training_nonzero_share=training_sparsity.compute() if training_sparsity.num_steps else None,
        num_steps=num_steps,
    )


def count_steps(loader: DataLoader, arguments: LoopArguments) -> int:
    """Optimizer steps that [`train`] will take."""
    return arguments.max_steps or math.ceil(arguments.num_epochs * _batch_sampler(loader).steps_per_epoch)


def _batch_sampler(loader: DataLoader) -> Any:
    sampler = loader.batch_sampler
    return getattr(sampler, "batch_sampler", sampler)  # under accelerate's shard


def _stop_if_not_finite(accelerator: Accelerator, first_bad_step: torch.Tensor, output_dir: Path) -> None:
    """All processes stop together, if any has seen a loss that is not finite."""
    steps = [step for step in accelerator.gather(first_bad_step.reshape(1)).tolist() if step]
    if steps:
        raise _not_finite(min(steps), output_dir)


def _not_finite(step: int, output_dir: Path) -> NonFiniteLoss:
    kept = find_checkpoints(output_dir)
    where = f"the last good checkpoint is {kept[-1]}" if kept else "there was no checkpoint yet"
    return NonFiniteLoss(f"--learning_rate: the loss is not finite at step {step}; lower it ({where})")

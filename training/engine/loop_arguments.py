# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Arguments of the optimization, its checkpoints and its logging, which every script shares."""

import math
from dataclasses import dataclass, field
from typing import Literal

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from timm.optim import list_optimizers
from transformers import SchedulerType

from sparsight.configuration.messages import single_line
from sparsight.training.command_line.arguments import Rules, argument


@dataclass
class LoopArguments:
    """Optimization, checkpoints and logging."""

    output_dir: str | None = argument(
        "Folder for checkpoints and results. Default: outputs/<recipe>.", free_on_resume=True, local=True
    )
    overwrite: bool = argument(
        "Start anew in an output folder that holds another run, replacing its files.",
        False,
        free_on_resume=True,
        local=True,
    )
    resume_from_checkpoint: str | None = argument(
        "A checkpoint folder, or 'latest' for the newest in the output folder: continue as if never stopped.",
        free_on_resume=True,
        local=True,
    )
    batch_size: int = argument(
        "Examples per optimizer step, over all processes and accumulated micro-batches.", 128, at_least=1, on_card=True
    )
    gradient_accumulation_steps: int = argument("Micro-batches that an optimizer step is made of.", 1, at_least=1)
    eval_batch_size: int = argument("Examples per evaluation batch and process.", 256, at_least=1, free_on_resume=True)
    num_epochs: float = argument(
        "Passes over the training data.", 10.0, at_least=0, below=math.inf, free_on_resume=True, on_card=True
    )
    max_steps: int = argument(
        "Optimizer steps; if positive, in place of --num_epochs.", 0, at_least=0, free_on_resume=True
    )
    optimizer: str = argument(
        "Any optimizer timm knows: adamw, lion, sgd, ...", "adamw", known=list_optimizers, on_card=True
    )
    learning_rate: float = argument("Peak learning rate.", 1e-3, above=0, on_card=True)
    weight_decay: float = argument(
        "Weight decay; norm scales, biases and zeroth biases have none.", 0.05, at_least=0, on_card=True
    )
    adam_beta1: float = argument("First momentum coefficient, of optimizers that have two.", 0.9, at_least=0, below=1)
    adam_beta2: float = argument(
        "Second momentum coefficient, of optimizers that have two.", 0.999, at_least=0, below=1
    )
    lr_scheduler: str = argument(
        "Any schedule transformers knows: cosine, linear, constant, ...",
        "cosine",
        known=lambda: [member.value for member in SchedulerType],
        on_card=True,
    )
    warmup_steps: int = argument("Optimizer steps over which the learning rate rises from 0.", 0, at_least=0)
    warmup_epochs: float = argument(
        "The same in epochs; taken where --warmup_steps is 0.", 0.0, at_least=0, below=math.inf
    )
    max_grad_norm: float = argument("Clip the gradient to this norm; 0 does not clip.", 1.0, at_least=0)
    label_smoothing: float = argument("Label smoothing.", 0.0, at_least=0, below=1, on_card=True)
    mixed_precision: Literal["no", "fp16", "bf16"] | None = argument(
        "Autocast precision. Default: what accelerate is configured for.", on_card=True
    )
    gradient_checkpointing: bool = argument("Recompute activations in the backward pass to save memory.", False)
    seed: int = argument("Seed of initial weights, data order, augmentation and dropout.", 0, at_least=0)
    num_workers: int = argument("Data-loading worker processes, per process.", 0, at_least=0, free_on_resume=True)
    logging_steps: int = argument(
        "Log the loss and the sparsity of training batches every so many steps.", 50, at_least=1, free_on_resume=True
    )
    eval_epochs: float = argument(
        "Evaluate and write a checkpoint every so many epochs, and at the end.",
        1.0,
        above=0,
        below=math.inf,
        free_on_resume=True,
    )
    keep_checkpoints: int = argument(
        "Newest checkpoints to keep; resuming needs one.", 1, at_least=1, free_on_resume=True
    )
    measure_sparsity: Literal["auto", "always", "never"] = argument(
        "Count non-zero activations. 'auto' does so in evaluation, and in training where the count of the "
        "derivatives comes along, as for ReLU and JSReLU; 'always' in training of any activation (GELU then costs a "
        "second derivative pass); 'never' nowhere.",
        "auto",
    )
    report_to: str = argument(
        "Tracker, as accelerate names it: tensorboard, wandb, ..., or none.", "none", free_on_resume=True
    )
    push_to_hub: bool = argument(
        "Push the model to the Hub, with its code, its card and its results.", False, free_on_resume=True
    )
    hub_model_id: str | None = argument("Repository to push to, as in org/name.", free_on_resume=True)
    hub_private: bool = argument("Make the repository private where it is created.", False, free_on_resume=True)
    hub_revision: str | None = argument(
        "Branch to push to, created where it is missing. Default: the main branch.", free_on_resume=True
    )
    hub_strategy: Literal["end", "every_save"] = argument(
        "Push the model after the last step only, or also the best one so far whenever it is saved.",
        "end",
        free_on_resume=True,
    )
    no_code: bool = argument(
        "Save models without their code: loading them then needs sparsight.", False, free_on_resume=True
    )
    command: str | None = field(default=None, init=False, metadata={"rules": Rules(free_on_resume=True)})

    def check(self) -> None:
        """Raise a ValueError that begins with the argument's name, if two arguments contradict each other."""
        if self.num_epochs == 0 and self.max_steps == 0:
            raise ValueError("num_epochs: 0 trains nothing; give a positive number, or --max_steps")
        if self.batch_size % self.gradient_accumulation_steps:
            raise ValueError(
                f"batch_size: {self.batch_size} does not divide into --gradient_accumulation_steps "
                f"{self.gradient_accumulation_steps}; give a multiple"
            )
        if self.push_to_hub and self.hub_model_id is None:
            raise ValueError("hub_model_id: missing; give the repository to push to, org/name")
        if self.hub_model_id is not None:
            try:
                validate_repo_id(self.hub_model_id)
            except HFValidationError as error:
                raise ValueError(f"hub_model_id: {single_line(error)}") from error

    @property
    def micro_batch_size(self) -> int:
        """Examples of a micro-batch, over all processes."""
        return self.batch_size // self.gradient_accumulation_steps

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""A run of a training script from the finished preparations to the written output folder, whatever it trains."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from sparsight.training.arguments import LoopArguments
from sparsight.training.loop import RecipePart, train
from sparsight.training.publish import create_repository, document_model, push_folder
from sparsight.training.run_folder import begin_run, write_json, written_folder


def train_and_write(
    accelerator: Accelerator,
    model: PreTrainedModel,
    processor: Any,
    loader: DataLoader,
    loop: LoopArguments,
    settings: dict[str, Any],
    resume_from: Path | None,
    *,
    compute_loss: Callable[[nn.Module, dict[str, torch.Tensor]], torch.Tensor],
    evaluate: Callable[[nn.Module], Any],
    eval_split: str,
    metric: str,
    higher_is_better: bool,
    layer_shares: Callable[[dict[str, Any]], list[float]],
    parts: Sequence[RecipePart] = (),
    description: str = "training",
) -> dict[str, Any]:
    """Train, and write `model/`, `best/` and `results.json`, each model with its processor, code and card.

    Args:
        processor: the image processor or tokenizer that goes with the model.
        settings: all arguments of the run.
        eval_split: what `evaluate` measures on.
        metric: the field of the evaluation that says which model is best.
        layer_shares: the non-zero shares in the results, from the first layer to the last.
        resume_from, loader, compute_loss, evaluate, parts, description: see [`train`].

    Returns:
        What `results.json` holds.
    """
    output_dir, sign = Path(loop.output_dir), 1 if higher_is_better else -1
    accelerator.wait_for_everyone()  # all have looked at the folder before one of them writes to it
    if accelerator.is_main_process:
        create_repository(loop)
        begin_run(output_dir, settings, artifacts=("model", "results.json"))
    accelerator.init_trackers(output_dir.name, {k: v for k, v in settings.items() if isinstance(v, (int, float, str))})

    def save_model(model: PreTrainedModel, folder: Path) -> None:
        model.save_pretrained(folder, include_code=not loop.no_code)
        processor.save_pretrained(folder)

    def save_best(model: PreTrainedModel, folder: Path) -> None:
        save_model(model, folder)
        document_model(folder, settings)
        if loop.push_to_hub and loop.hub_strategy == "every_save":
            push_folder(folder, loop, "The best model so far", required=False)

    result = train(
        accelerator,
        model,
        loader,
        loop,
        output_dir,
        compute_loss=compute_loss,
        evaluate=evaluate,
        score=lambda evaluation: sign * getattr(evaluation, metric),
        save_model=save_best,
        parts=parts,
        resume_from=resume_from,
        description=description,
    )
    results = {
        **asdict(result.evaluation),
        "eval_split": eval_split,
        "best": {"step": result.best_step, metric: sign * result.best_score},
        "training_nonzero_share": result.training_nonzero_share,
        "num_steps": result.num_steps,
        "num_parameters": model.num_parameters(),
        "seed": loop.seed,
    }
    if accelerator.is_main_process:
        with written_folder(output_dir / "model") as folder:
            save_model(result.model, folder)
            document_model(folder, settings, results, {"this model": layer_shares(results)})
        write_json(output_dir / "results.json", results)
        if loop.push_to_hub:
            push_folder(output_dir / "model", loop, "The model after the last step")
    accelerator.end_training() if loop.report_to != "none" else accelerator.wait_for_everyone()
    return results

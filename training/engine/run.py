# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""A run, from the first look at its output folder to the models and results that it leaves there."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedModel

from sparsight.analysis.sparsity import make_meter
from sparsight.hub_cards.results import layer_shares
from sparsight.modeling.files import temporary_path, write_json, written_beside
from sparsight.training.command_line.arguments import Settings
from sparsight.training.engine.checkpoints import find_checkpoints
from sparsight.training.engine.loop import Method, TrainingResult, train
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.models import ModelArguments
from sparsight.training.engine.observers import BEST_FOLDER, BestModel, Observer, SparsityObserver
from sparsight.training.engine.optimization import make_accelerator
from sparsight.training.engine.publishing import create_repository, document_model, push_folder
from sparsight.training.engine.run_folder import RESULTS_FILE, begin_run, check_run_folder
from sparsight.training.engine.seeding import seed_generators
from sparsight.training.engine.task import Task


class Run:
    """An output folder, while models are trained in it.

    Made from the settings, it has looked at the folder and written nothing, so that all else can be checked as well.
    Within `with run.begun():` the folder is the run's, on the main process; the other processes take part in all
    calls.

    Args:
        loop: of the run; `output_dir` is set.
        settings: all arguments, `loop` among them.
        accelerator: of a run that this one is a part of.

    Attributes:
        resume_from: the checkpoint to start from, None to start from the beginning.

    Raises:
        ValueError: if an argument is out of bounds, or the folder holds another run.
    """

    def __init__(self, loop: LoopArguments, settings: Settings, accelerator: Accelerator | None = None):
        settings.check()
        self.loop = loop
        self.settings = settings
        self.output_dir = Path(loop.output_dir)
        self.resume_from = check_run_folder(settings)
        self._is_part = accelerator is not None
        self._accelerator = accelerator

    @property
    def accelerator(self) -> Accelerator:
        """Of this run, made at its first use."""
        if self._accelerator is None:
            self._accelerator = make_accelerator(self.loop)
        return self._accelerator

    @contextlib.contextmanager
    def begun(self, *artifacts: str) -> Iterator[None]:
        """Take the folder, and let go of it in the end.

        Args:
            artifacts: files and folders that the run writes, which are removed where it starts anew.
        """
        self.accelerator.wait_for_everyone()  # all have looked at the folder before one of them writes to it
        if self.accelerator.is_main_process:
            create_repository(self.loop)
            begin_run(self.settings, artifacts)
        if not self._is_part:
            shown = {k: v for k, v in self.settings.values().items() if isinstance(v, (int, float, str))}
            self.accelerator.init_trackers(self.output_dir.name, shown)
        yield
        if self._is_part or self.loop.report_to == "none":
            self.accelerator.wait_for_everyone()
        else:
            self.accelerator.end_training()

    def train(
        self,
        task: Task,
        model: nn.Module,
        save_best: Callable[[nn.Module, Path], None],
        methods: Sequence[Method] = (),
        observers: Sequence[Observer] = (),
        part: str | None = None,
    ) -> TrainingResult:
        """Train one model on a prepared task, from the beginning or from where an interrupted run stood.

        Args:
            save_best: writes the best model so far into a folder, on the main process.
            part: the name of the subfolder for its checkpoints, where the run trains several models.
        """
        folder, resume_from = self.output_dir, self.resume_from
        if part is not None:
            folder = self.output_dir / part
            resume_from = next(reversed(find_checkpoints(folder)), None) if self.is_resumed else None
        own: list[Observer] = [BestModel(task.metric, task.higher_is_better, save_best)]
        if self.loop.measure_sparsity != "never":
            meter = make_meter(model, derivatives=self.loop.measure_sparsity == "always")
            own += [SparsityObserver(meter)] if meter else []
        return train(self.accelerator, model, task, self.loop, folder, methods, [*own, *observers], resume_from)

    @property
    def is_resumed(self) -> bool:
        """Whether the user asked to continue what is in the folder."""
        return self.loop.resume_from_checkpoint is not None

    @contextlib.contextmanager
    def delivered(self, name: str) -> Iterator[Path]:
        """A folder to write a model into, which is in place as `name` when the block ends well.

        The main process writes; all can read it within the block, once they have waited for each other.
        """
        target = self.output_dir / name
        with contextlib.ExitStack() as stack:
            if self.accelerator.is_main_process:
                stack.enter_context(written_beside(target)).mkdir()
            yield temporary_path(target)
            self.accelerator.wait_for_everyone()

    def save_model(self, model: PreTrainedModel, processor: Any, folder: Path) -> None:
        """Write a model with its processor, where it has one, and with its code, unless the user asked for none."""
        model.save_pretrained(folder, include_code=not self.loop.no_code)
        if processor is not None:
            processor.save_pretrained(folder)

    def document(
        self,
        folder: Path,
        results: Mapping[str, Any] | None = None,
        shares: Mapping[str, Sequence[float]] | None = None,
        **settings: Any,
    ) -> None:
        """Write settings, results, figure and card beside a model, see [`document_model`].

        Args:
            settings: that differ for this model from the run's.
        """
        document_model(folder, self.settings, results, shares, **settings)

    @property
    def pushes_best(self) -> bool:
        """Whether the user asked for a push of the best model so far whenever it is saved."""
        return self.loop.push_to_hub and self.loop.hub_strategy == "every_save"

    def push_best(self, folder: Path) -> None:
        """Push the best model so far, where the user asked for it; a failure is a warning."""
        if self.pushes_best:
            push_folder(folder, self.loop, "The best model so far", required=False)

    def push_last(self, name: str) -> None:
        """Push a delivered model, where the user asked for it.

        Raises:
            ValueError: if the Hub refuses, or the connection stays broken.
        """
        if self.loop.push_to_hub:
            push_folder(self.output_dir / name, self.loop, "The model after the last step")

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write `results.json`."""
        write_json(self.output_dir / RESULTS_FILE, results)


def run_task(
    run: Run,
    task: Task,
    start: ModelArguments,
    make_methods: Callable[[PreTrainedModel], Sequence[Method]] = lambda model: (),
    observers: Sequence[Observer] = (),
    made: tuple[PreTrainedModel, Any] | None = None,
) -> dict[str, Any]:
    """Train one model of a task, and write `model/` (after the last step), `best/` and `results.json`.

    Args:
        start: what to train.
        make_methods: from the fresh model to what acts on it after each step.
        made: the model and its processor, where they have been made from `start` already.

    Returns:
        What `results.json` holds.
    """
    if made is None:
        seed_generators(run.loop.seed)
        made = task.make_model(start)
    model, processor = made
    methods = make_methods(model)
    task.prepare(model, processor, run.accelerator)

    def save_best(model: PreTrainedModel, folder: Path) -> None:
        run.save_model(model, processor, folder)
        run.document(folder)
        run.push_best(folder)

    with run.begun(BEST_FOLDER, "model", RESULTS_FILE):
        result = run.train(task, model, save_best, methods, observers)
        results = {
            **result.evaluation,
            "eval_split": task.data.eval_split,
            "training_nonzero_share": None,  # where it is not observed
            **result.observed,
            "num_steps": result.num_steps,
            "num_parameters": model.num_parameters(),
            "seed": run.loop.seed,
        }
        with run.delivered("model") as folder:
            if run.accelerator.is_main_process:
                run.save_model(result.model, processor, folder)
                run.document(folder, results, {"this model": list(layer_shares(results).values())})
        if run.accelerator.is_main_process:
            run.write_results(results)
            run.push_last("model")
    return results

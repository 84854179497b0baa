# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""A trained model for others: what explains it, beside its weights, and its way to the Hub.

The token is the one that `hf auth login` stored, or HF_TOKEN; nothing here sees it.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HTTPError

from sparsight.analysis.plots import plot_sparsity, save_figure
from sparsight.configuration.messages import single_line
from sparsight.hub_cards.model_card import FIGURE, write_model_card
from sparsight.modeling.files import write_json
from sparsight.training.command_line.arguments import Settings
from sparsight.training.engine.loop_arguments import LoopArguments
from sparsight.training.engine.run_folder import ARGUMENTS_FILE, RESULTS_FILE


logger = logging.getLogger(__name__)

# Seconds before each further try of a push that broke off; huggingface_hub has retried single requests by then.
RETRY_AFTER = (1, 4, 16)
_CONNECTION_ERRORS = (HTTPError, OSError, RuntimeError)  # a RuntimeError is what huggingface_hub wraps uploads in


def document_model(
    folder: Path,
    settings: Settings,
    results: Mapping[str, Any] | None = None,
    shares: Mapping[str, Sequence[float]] | None = None,
    **other_settings: Any,
) -> None:
    """Write the settings, the results, a figure of the sparsity and the model card beside a model's weights.

    Args:
        settings: of the run; those about this machine's folders are left out.
        results: what `results.json` holds; without them the card has no numbers.
        shares: what the figure shows, see [`plot_sparsity`]; models without shares are left out.
        other_settings: that are others for this model.
    """
    values = {name: value for name, value in settings.values().items() if name not in settings.names("local")}
    write_json(folder / ARGUMENTS_FILE, {**values, **other_settings, "shown_on_card": settings.names("on_card")})
    if results is not None:
        write_json(folder / RESULTS_FILE, results)
    if measured := {name: layers for name, layers in (shares or {}).items() if layers}:
        save_figure(plot_sparsity(measured), folder / FIGURE)
    write_model_card(folder)


def create_repository(arguments: LoopArguments) -> None:
    """Create the repository, and the branch, where `--push_to_hub` asks for one that is not there yet.

    Raises:
        ValueError: if the Hub refuses or cannot be reached, so that a run fails before it has trained.
    """
    if not arguments.push_to_hub:
        return
    api = HfApi(library_name="sparsight")
    try:
        # A private repository stays private where a later run leaves the flag out.
        api.create_repo(arguments.hub_model_id, private=arguments.hub_private or None, exist_ok=True)
        if arguments.hub_revision:
            api.create_branch(arguments.hub_model_id, branch=arguments.hub_revision, exist_ok=True)
    except _CONNECTION_ERRORS as error:
        raise _refusal(arguments, error) from error


def push_folder(folder: Path, arguments: LoopArguments, commit_message: str, required: bool = True) -> None:
    """Push all files of `folder` as one commit, which is there as a whole or not at all.

    Args:
        required: raise where it fails; otherwise warn, as the training goes on and another push follows.

    Raises:
        ValueError: if the Hub refuses, or the connection broke again at the last try.
    """
    api = HfApi(library_name="sparsight")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for wait in (*RETRY_AFTER, None):
        try:
            # Not `upload_folder`, which may spread a large folder over several commits.
            api.create_commit(
                arguments.hub_model_id,
                [CommitOperationAdd(path.relative_to(folder).as_posix(), path) for path in files],
                commit_message=commit_message,
                revision=arguments.hub_revision,
            )
            return
        except _CONNECTION_ERRORS as error:
            if wait is None or _is_refused(error):
                if required:
                    raise _refusal(arguments, error) from error
                logger.warning(str(_refusal(arguments, error)))
                return
            logger.warning(f"pushing to {arguments.hub_model_id} broke off, trying again in {wait} s")
            time.sleep(wait)


def _is_refused(error: Exception) -> bool:
    """Whether the Hub has answered, and another try would be answered alike."""
    return getattr(getattr(error, "response", None), "status_code", None) in (400, 401, 403, 404)


def _refusal(arguments: LoopArguments, error: Exception) -> ValueError:
    message = single_line(error)
    way_out = "log in with `hf auth login` as one who may write there"
    if not _is_refused(error):
        way_out = "when the Hub is within reach, run this again or push the model's folder with `hf upload`"
    return ValueError(f"hub_model_id: cannot push to {arguments.hub_model_id} ({message}); {way_out}")

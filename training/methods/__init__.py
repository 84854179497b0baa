# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What the papers do to a model while it is trained, whatever the task."""

from dataclasses import dataclass

from transformers import PreTrainedModel

from sparsight.training.command_line.arguments import argument
from sparsight.training.engine.loop import Method
from sparsight.training.methods.activation_sparsity import find_blocks, restrict_layer_norms


@dataclass
class MethodArguments:
    """What is done to the weights after each optimizer step. A new method is entered here and in [`make_methods`]."""

    restrict_layer_norms: bool = argument(
        "Keep the scale of the norm before each MLP at 1 or more, and the zeroth bias within it (algorithm 1 of arXiv "
        "2309.03004).",
        False,
        on_card=True,
    )


def make_methods(model: PreTrainedModel, arguments: MethodArguments) -> list[Method]:
    """The methods that the arguments ask for.

    Raises:
        ValueError: if one does not fit the model.
    """
    methods = []
    if arguments.restrict_layer_norms:
        if not find_blocks(model, required=False):
            family = model.config.model_type
            raise ValueError(f"restrict_layer_norms: needs doubly biased MLPs; {family} has none, so leave it out")
        methods.append(restrict_layer_norms(model))
    return methods

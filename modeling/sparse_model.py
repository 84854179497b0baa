# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What the models of the sparse families share beside the parts themselves."""

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from sparsight.modeling.activations import MixedActivation
from sparsight.modeling.zeroth_bias import ZerothBias


class SparseModelMixin:
    """Put before a `PreTrainedModel`: initialises the sparse parts, and has the portion of JSReLU as a property."""

    @classmethod
    def is_custom_code(cls) -> bool:
        # In custom code, transformers passes over modules whose own parameters are all initialised. That holds for
        # each module without any, such as T5's attention, which would keep the scale of plain linear layers.
        return False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if isinstance(module, ZerothBias):
            init.zeros_(module.weight)
        elif isinstance(module, MixedActivation):
            # Not in the state dict, so a model that was built on the meta device gets it here.
            init.constant_(module.portion, self.config.activation_mix)

    @property
    def activation_mix(self) -> float:
        """Portion m of JSReLU in the activations (1 − m)·ReLU + m·JSReLU; assigning sets it in the config too.

        Raises:
            AttributeError: on assignment, where the config's activation is not `"jsrelu"`.
            StrictDataclassError: on assignment of a value outside [0, 1].
        """
        return self.config.activation_mix

    @activation_mix.setter
    def activation_mix(self, portion: float):
        activations = [module for module in self.modules() if isinstance(module, MixedActivation)]
        if not activations:
            field = self.config.activation_field
            raise AttributeError(
                f'`activation_mix` needs `{field}`="jsrelu", this model has "{getattr(self.config, field)}"'
            )
        previous, self.config.activation_mix = self.config.activation_mix, portion
        try:
            self.config.validate()
        except StrictDataclassError:
            self.config.activation_mix = previous
            raise
        for module in self.modules():
            if isinstance(module, PreTrainedModel):  # T5's stacks have configs of their own
                module.config.activation_mix = portion
        for activation in activations:
            activation.portion.fill_(portion)

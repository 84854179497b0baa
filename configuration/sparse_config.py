# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What the configurations of the sparse families share."""

import math

from sparsight.configuration.overrides import ValidatedOverridesMixin


class SparseConfigMixin(ValidatedOverridesMixin):
    """Checks of the fields `activation_mix`, `jsrelu_linear_above` and `zeroth_bias_clip`, and checked overrides.

    Attributes:
        activation_field: the field that names the activation of the MLP, as it is called in error messages.
        sparse_activations: the values of that field with which the activation is JSReLU.
    """

    activation_field = "hidden_act"
    sparse_activations = ("jsrelu",)

    def validate_sparsity(self):
        """Part of `@strict`-powered validation: the fields that the sparse families add."""
        if not 0 <= self.activation_mix <= 1:
            raise ValueError(f"`activation_mix` must lie in [0, 1], got {self.activation_mix}")
        if not 0 < self.zeroth_bias_clip < math.inf:
            raise ValueError(f"`zeroth_bias_clip` must be positive and finite, got {self.zeroth_bias_clip}")
        if self.jsrelu_linear_above is not None and not 0 < self.jsrelu_linear_above < math.inf:
            raise ValueError(f"`jsrelu_linear_above` must be positive and finite, got {self.jsrelu_linear_above}")
        activation = getattr(self, self.activation_field)
        if activation not in self.sparse_activations:
            for name, neutral in (("jsrelu_linear_above", None), ("activation_mix", 1.0)):
                if getattr(self, name) != neutral:
                    raise ValueError(
                        f"`{name}`={getattr(self, name)} has a meaning with "
                        f'`{self.activation_field}`="{self.sparse_activations[0]}" only, '
                        f'got `{self.activation_field}`="{activation}"'
                    )

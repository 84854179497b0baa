# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Share of non-zero activations, for `evaluate.load("metrics/activation_sparsity")`."""

import datasets
import evaluate
import numpy as np


_DESCRIPTION = "Share of non-zero entries among the activations of an MLP layer. Lower is sparser."

_KWARGS_DESCRIPTION = """
Args:
    activations: `(tokens, features)` outputs of the activation function.
    mask: `(tokens,)`; tokens with 0 are padding and left out. Default: every token counts.
Returns:
    `nonzero_share` in [0, 1] and `num_tokens`, the number of tokens counted.
Examples:
    >>> metric = evaluate.load("metrics/activation_sparsity")
    >>> metric.compute(activations=[[0.0, 1.5], [0.0, 0.0]], mask=[1, 1])
    {'nonzero_share': 0.25, 'num_tokens': 2}
"""


class ActivationSparsity(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=(
                "@article{peng2023theoretical, title={Theoretical Explanation of Activation Sparsity through Flat "
                "Minima and Adversarial Robustness}, author={Peng, Ze and Qi, Lei and Shi, Yinghuan and Gao, Yang}, "
                "journal={arXiv:2309.03004}, year={2023}}"
            ),
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"activations": datasets.Sequence(datasets.Value("float32"))}),
        )

    def _compute(self, activations, mask=None) -> dict[str, float | int]:
        activations = np.asarray(activations)
        if mask is not None:
            mask = np.asarray(mask, dtype=bool)
            if mask.shape != activations.shape[:1]:
                raise ValueError(f"`mask` must have one entry a token, {len(activations)}, got {mask.shape}")
            activations = activations[mask]
        if not activations.size:
            raise ValueError("`activations` has no token to count")
        return {"nonzero_share": np.count_nonzero(activations) / activations.size, "num_tokens": len(activations)}

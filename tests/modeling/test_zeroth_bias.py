# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
import torch

from sparsight import PatchZerothBias, ZerothBias


def test_rows_follow_the_positions_and_end_with_the_last():
    bias = ZerothBias(4, 3)
    torch.nn.init.normal_(bias.weight)
    hidden_states = torch.randn(2, 5, 3)
    added = bias(hidden_states, torch.tensor([1, 3, 4, 0, 100])) - hidden_states
    rows = torch.stack([bias.weight[1], bias.weight[3], torch.zeros(3), bias.weight[0], torch.zeros(3)])
    torch.testing.assert_close(added, rows.expand(2, -1, -1))


def test_gradient_goes_to_the_rows_in_use():
    bias = ZerothBias(4, 3)
    bias(torch.zeros(2, 3, 3), torch.tensor([2, 3, 4])).sum().backward()
    assert bias.weight.grad.tolist() == [[0] * 3, [0] * 3, [2] * 3, [2] * 3]


def test_patch_grid_has_a_row_for_the_class_token():
    bias = PatchZerothBias((2, 3), 5)
    assert bias.weight.shape == (7, 5)
    assert not bias.weight.any()
    assert repr(bias) == "PatchZerothBias(7, 5, grid=(2, 3))"

# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""The zeroth bias of a doubly biased MLP, and what the training methods need to know of a block that has one."""

import torch
from torch import nn


class ZerothBias(nn.Module):
    r"""Adds D to the normalised tokens: y = W₂ σ(W₁(LN(x) + D) + b₁) + b₂ (arXiv 2309.03004, DB-MLP).

    D has one row a token position and starts at zero. Tokens at positions beyond the last get no bias.

    Args:
        num_positions: T, the number of token positions.
        hidden_size: d.
    """

    def __init__(self, num_positions: int, hidden_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_positions, hidden_size))

    def forward(self, hidden_states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Add to each token the bias of its position.

        Args:
            hidden_states: `(batch, tokens, d)`.
            positions: of these tokens, `(tokens,)` or `(batch, tokens)`; not negative.
        """
        num_positions = self.weight.shape[0]
        rows = nn.functional.embedding(positions.clamp(max=num_positions - 1), self.weight)
        # Not a slice: where the positions lie is known on the device alone when they come from a static cache.
        return hidden_states + rows.where((positions < num_positions).unsqueeze(-1), 0)

    def extra_repr(self) -> str:
        num_positions, hidden_size = self.weight.shape
        return f"{num_positions}, {hidden_size}"


class PatchZerothBias(ZerothBias):
    r"""The zeroth bias of a vision transformer: position 0 is the class token's, the others lie on the patch grid.

    Args:
        grid: rows and columns of the patch grid.
        hidden_size: d.
    """

    def __init__(self, grid: tuple[int, int], hidden_size: int):
        super().__init__(grid[0] * grid[1] + 1, hidden_size)
        self.grid = grid

    def interpolate(self, grid: tuple[int, int]) -> torch.Tensor:
        """D for another patch grid, resampled as ViT resamples its position embedding: `(1 + rows·columns, d)`."""
        class_row, patch_rows = self.weight[:1], self.weight[1:]
        patch_rows = patch_rows.reshape(1, *self.grid, -1).permute(0, 3, 1, 2)
        patch_rows = nn.functional.interpolate(patch_rows, size=grid, mode="bicubic", align_corners=False)
        return torch.cat((class_row, patch_rows.flatten(2).squeeze(0).T))

    def forward(self, hidden_states: torch.Tensor, grid: tuple[int, int] | None = None) -> torch.Tensor:
        """Add to each token the bias of its patch.

        Args:
            hidden_states: `(batch, tokens, d)`.
            grid: the patch grid of these tokens, where it may differ from the one the bias was made for.
        """
        bias = self.weight if grid is None or grid == self.grid else self.interpolate(grid)
        return hidden_states + bias

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, grid={self.grid}"


class DoublyBiasedBlock:
    """What training methods have to find in a block of any family: the norm right before the MLP, and the zeroth bias.

    Where PEFT has wrapped one of the two modules (`modules_to_save`), the wrapper is returned.
    """

    @property
    def mlp_norm(self) -> nn.Module:
        """The LayerNorm or RMSNorm right before the MLP."""
        raise NotImplementedError

    @property
    def zeroth_bias(self) -> nn.Module | None:
        """The [`ZerothBias`] of the MLP, None where the config has it switched off."""
        raise NotImplementedError

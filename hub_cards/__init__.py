# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""Model cards: what a checkpoint is and what was measured of it, as the Hub reads it."""

from sparsight.hub_cards.model_card import CardError, make_model_card, write_model_card


__all__ = ["CardError", "make_model_card", "write_model_card"]

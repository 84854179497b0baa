# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""What every family's configuration does with `from_pretrained(..., field=value)`."""

from dataclasses import fields
from typing import Any


class ValidatedOverridesMixin:
    """Overrides of fields go in before construction, so that they are validated together with the rest."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        overrides = {field.name for field in fields(cls)} & kwargs.keys() - {"dtype"}
        return super().from_dict(config_dict | {name: kwargs.pop(name) for name in overrides}, **kwargs)

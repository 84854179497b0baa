# Copyright 2026 The sparsight authors.
# SPDX-License-Identifier: Apache-2.0
"""sparsight: transformers that compute less and whose inner workings can be inspected.

Importing the package registers every family with transformers' Auto classes.
"""

from sparsight.configuration import *  # noqa: F403
from sparsight.configuration import __all__ as _configuration
from sparsight.modeling import *  # noqa: F403
from sparsight.modeling import __all__ as _modeling


__version__ = "0.1.0"
__all__ = [*_configuration, *_modeling]

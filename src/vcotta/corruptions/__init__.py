"""The nineteen image corruptions of CIFAR-10-C, Tiny-ImageNet-C and ImageNet-C as seeded tensor arithmetic.

Example:
    >>> import numpy as np
    >>> from vcotta.corruptions import corrupt
    >>> corrupt(np.zeros((2, 32, 32, 3), dtype=np.uint8), "fog", severity=5, seed=1).shape
    (2, 32, 32, 3)
"""

from __future__ import annotations

from vcotta.corruptions.api import corrupt
from vcotta.corruptions.frost import frost_source
from vcotta.corruptions.severity import EXTRA, GROUPS, STANDARD, TABLES, list_corruptions, nearest_table

__all__ = ["EXTRA", "GROUPS", "STANDARD", "TABLES", "corrupt", "frost_source", "list_corruptions", "nearest_table"]

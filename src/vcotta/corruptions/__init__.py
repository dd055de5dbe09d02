"""The nineteen image corruptions of CIFAR-10-C, Tiny-ImageNet-C and ImageNet-C as seeded tensor maths.

Example:
    >>> import numpy as np
    >>> from vcotta.corruptions import corrupt
    >>> images = np.zeros((2, 32, 32, 3), dtype=np.uint8)
    >>> foggy = corrupt(images, "fog", severity=5, seed=1)
    >>> foggy.shape, foggy.dtype
    ((2, 32, 32, 3), dtype('uint8'))
"""

from __future__ import annotations

from vcotta.corruptions.api import corrupt
from vcotta.corruptions.severity import EXTRA, GROUPS, STANDARD, TABLES, nearest_table
from vcotta.corruptions.textures import frost_source

__all__ = ["EXTRA", "GROUPS", "STANDARD", "TABLES", "corrupt", "frost_source", "nearest_table"]

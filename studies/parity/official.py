"""Imports official code of a method and runs it on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from studies.checkouts import importable


@contextmanager
def official_code(root: Path, replaced: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    """Let official code be imported and run inside the block, as `importable` does, its ``cuda()`` without effect."""
    with (
        importable(root, replaced) as missing,
        patch.object(torch.cuda, "is_available", lambda: False),
        patch.object(torch.Tensor, "cuda", lambda self, *args, **options: self),
        patch.object(nn.Module, "cuda", lambda self, *args, **options: self),
    ):
        yield missing

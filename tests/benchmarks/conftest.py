"""The scripts of benchmarks/ as modules."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest


@pytest.fixture
def script(request) -> ModuleType:
    """The script a test file is named after."""
    return importlib.import_module(f"benchmarks.{request.path.stem.removeprefix('test_')}")

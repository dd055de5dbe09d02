"""The scripts of benchmarks/ as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(request, monkeypatch):
    """The script a test file is named after."""
    name = request.path.stem.removeprefix("test_")
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their module up
    monkeypatch.syspath_prepend(str(FOLDER))  # a script may use another
    spec.loader.exec_module(module)
    return module

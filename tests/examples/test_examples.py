"""The examples run, and do what they say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image

from vcotta.data import load_digits

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """An example as a module, by its name."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # an adapter is saved with the place of its network's class
        spec.loader.exec_module(module)
        return module

    return load


def photograph(folder: Path, count: int) -> None:
    folder.mkdir(exist_ok=True)
    for place, pixels in enumerate(load_digits()[1].images[:count]):
        Image.fromarray(pixels).save(folder / f"{place:04d}.png")


def importable(package: str) -> None:
    """Skip where a package is missing, or does not fit this build of torch."""
    try:
        importlib.import_module(package)
    except Exception as error:  # a wheel for another torch fails in many ways
        pytest.skip(f"{package} cannot be imported here: {error}")


@pytest.mark.parametrize("model", ["torchvision:resnet18", "timm:resnet18"])
def test_a_network_of_torchvisions_or_timms_is_adapted(model, example) -> None:
    importable(model.partition(":")[0])
    adapter = example("vision").main(["--model", model, "--size", "64", "--batch-size", "4", "--batches", "2"])
    assert (adapter.name, adapter.steps, adapter.skipped) == ("tent", 2, 0)


def test_pictures_are_read_from_class_folders(example, tmp_path) -> None:
    for name in ("cat", "dog"):
        photograph(tmp_path / name, 3)
    found = example("vision").pictures(tmp_path, 16, 4, 3)
    assert [images.shape for images in found] == [(4, 3, 16, 16), (2, 3, 16, 16)]
    assert all(torch.all((images >= 0) & (images <= 1)) for images in found)

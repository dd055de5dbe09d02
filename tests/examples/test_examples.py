"""The examples run, and do what they say."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image

import vcotta
from vcotta.data import load_digits
from vcotta.models.wide_resnet import digits_network

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


def test_a_network_of_your_own_is_adapted(example) -> None:
    errors = example("own_network").main(["--method", "bn", "--epochs", "4", "--limit", "50"])
    assert list(errors) == ["source", "bn"]
    assert errors["bn"] < errors["source"]


@pytest.mark.slow
def test_the_example_as_it_is_adapts_with_vcotta(example) -> None:
    errors = example("own_network").main([])
    assert errors["vcotta"] < errors["source"] / 2
    assert errors["vcotta"] < errors["bn"] + 0.02


def photograph(folder: Path, count: int) -> None:
    folder.mkdir(exist_ok=True)
    for place, pixels in enumerate(load_digits()[1].images[:count]):
        Image.fromarray(pixels).save(folder / f"{place:04d}.png")


def test_a_camera_that_was_stopped_continues_exactly(example, tmp_path) -> None:
    camera, class_names = example("camera"), [str(digit) for digit in range(10)]

    def follow(state: str) -> list[tuple[str, str, float]]:
        def make() -> vcotta.Adapter:
            return vcotta.build_adapter("tent", digits_network(0).eval(), lr=0.01)

        options = {"batch_size": 8, "size": 32, "patience": 0.2}
        return camera.follow(tmp_path / "day", tmp_path / state, make, class_names, **options)

    photograph(tmp_path / "day", 16)
    (tmp_path / "day" / ".half.png").write_bytes(b"not yet whole")
    morning = follow("interrupted")
    assert follow("interrupted") == []  # nothing new
    photograph(tmp_path / "day", 20)
    evening = follow("interrupted")
    assert [name for name, _, _ in evening] == [f"{place:04d}.png" for place in range(16, 20)]
    assert morning + evening == follow("whole")
    kept = json.loads((tmp_path / "interrupted" / "seen.json").read_text())
    assert sorted(path.name for path in (tmp_path / "interrupted").iterdir()) == [kept["adapter"], "seen.json"]


@pytest.mark.slow
def test_the_foggy_day_is_labelled(example, tmp_path, capsys) -> None:
    said = example("camera").main([str(tmp_path / "day"), "--demo", "--patience", "0.2"])
    assert len(said) == 96
    labels = load_digits()[1].labels[:96]
    right = sum(int(name) == int(label) for (_, name, _), label in zip(said, labels, strict=True))
    assert right > 80
    assert "0000.png\t" in capsys.readouterr().out


def test_a_camera_without_a_network_is_refused_with_the_options_it_needs(example, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit):
        example("camera").main([str(tmp_path)])
    assert "--weights and --classes" in capsys.readouterr().err


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

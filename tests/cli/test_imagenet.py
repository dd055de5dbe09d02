"""ImageNet-C as published, and a checkpoint as torchvision publishes it, by the usual command."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from vcotta.data import imagenet
from vcotta.models import build_network

WNIDS = ("n01440764", "n01443537", "n01484850")


@pytest.mark.slow
def test_official_folders_and_torchvisions_state_dict_run(command, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(imagenet, "CLASSES", 3)
    rng = np.random.default_rng(0)
    for group, name in (("blur", "defocus_blur"), ("weather", "fog")):
        for number in range(6):
            folder = tmp_path / "ImageNet-C" / group / name / "5" / WNIDS[number % 3]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (224, 224, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"ILSVRC2012_val_{number:08d}.JPEG", "JPEG")
    plain = build_network("resnet-18", seed=1)
    torch.save(plain.state_dict(), tmp_path / "resnet18-f37072fd.pth")
    words = ("run", "--dataset", "imagenet", "--corrupted", "ImageNet-C", "--corruptions", "defocus_blur,fog")
    words += ("--model", "resnet-18", "--weights", "resnet18-f37072fd.pth", "--method", "tent", "--batch-size", "4")
    code, out, err = command(*words, "--out", "run")
    assert code == 0, err
    assert "Continual stream of imagenet-c: 2 corruptions at severity 5, 6 images each" in out
    lines = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert [line["domain"] for line in lines] == ["defocus_blur"] * 2 + ["fog"] * 2
    assert lines[0]["labels"] == [0, 1, 2, 0]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["stream"]["pixels"], manifest["network"]) == ("files", "resnet-18")


@pytest.mark.slow
def test_imagenets_images_are_warmed_up_on_a_folder(command, tmp_path, monkeypatch) -> None:
    """The network is a small one; a folder of source images stands for the training set."""
    monkeypatch.setattr(imagenet, "CLASSES", 3)
    rng = np.random.default_rng(0)
    for place in ("val", "source"):
        for number in range(6):
            folder = tmp_path / place / WNIDS[number % 3]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (224, 224, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"ILSVRC2012_val_{number:08d}.JPEG", "JPEG")
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def make(classes=1000):\n"
        "    return nn.Sequential(nn.AvgPool2d(56), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(),\n"
        "                         nn.Linear(64, classes))\n"
    )
    torch.save(build_network(f"{tmp_path}/net.py:make", 1000).state_dict(), tmp_path / "net.pt")
    assert command("data", "prepare", "imagenet", "--root", ".", "--preprocess", "none")[0] == 0
    network = ("--model", "net.py:make", "--weights", "net.pt")
    words = ("run", "--dataset", "imagenet", *network, "--source", "folder:source", "--source-limit", "5")
    words += ("--corruptions", "contrast", "--batch-size", "3", "--method", "vcotta", "--set", "views=1")
    code, _, err = command(*words, "--out", "run")
    assert code == 0, err
    assert "5 images" in err  # of the warm-up
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["spec"]["source"], manifest["spec"]["source_limit"]) == ("folder:source", 5)
    assert manifest["stream"]["severity_table"] == 224

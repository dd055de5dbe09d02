"""Runs over domains of the user's own folders, and networks fine-tuned on one of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

from vcotta.cli import runs as cli_runs
from vcotta.methods import tent
from vcotta.models import build_network, save_weights


@pytest.fixture
def pets(tmp_path) -> Path:
    """Two classes, told apart by brightness, in three domains of other colours and sizes."""
    rng = np.random.default_rng(0)
    for number, domain in enumerate(("photo", "art", "sketch")):
        for label, kind in enumerate(("cat", "dog")):
            folder = tmp_path / "pets" / domain / kind
            folder.mkdir(parents=True)
            for image in range(12 - 3 * number):
                pixels = rng.normal((60 + 120 * label, 60 + 20 * number, 90), 20, (16, 16, 3)).clip(0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{image}.png")
    return tmp_path / "pets"


@pytest.fixture
def options(pets, tmp_path) -> tuple[str, ...]:
    save_weights(build_network("wrn-10-1", 2), tmp_path / "net.safetensors")
    data = ("--dataset", f"folder:{pets}@16", "--domains", "art,sketch,photo", "--batch-size", "8")
    return ("run", *data, "--model", "wrn-10-1", "--weights", "net.safetensors")


def test_domains_are_met_in_order_and_a_stopped_run_resumes(command, options, tmp_path, monkeypatch) -> None:
    labels = ("--protocol", "correlated", "--protocol-set", "delta=0.1")
    code, out, _ = command(*options, *labels, "--method", "tent", "--out", "whole")
    assert code == 0
    assert "Correlated stream of folder:pets: art, sketch, photo, 54 images as they are, 8 batches of up to 8" in out
    lines = [json.loads(line) for line in (tmp_path / "whole" / "records.jsonl").read_text().splitlines()]
    assert [line["domain"] for line in lines] == ["art"] * 3 + ["sketch"] * 2 + ["photo"] * 3
    manifest = json.loads((tmp_path / "whole" / "manifest.json").read_text())
    assert manifest["spec"]["domains"] == ["art", "sketch", "photo"]
    assert manifest["stream"]["images_per_domain"] == {"art": 18, "sketch": 12, "photo": 24}
    assert manifest["stream"]["delta"] == 0.1
    monkeypatch.setattr(cli_runs, "CHECKPOINT_SECONDS", 0.0)
    taken, seen = tent.TENT.predict_and_adapt, []

    def stops(self, images):
        seen.append(len(images))
        if len(seen) == 6:
            raise RuntimeError("killed")
        return taken(self, images)

    with monkeypatch.context() as patch:
        patch.setattr(tent.TENT, "predict_and_adapt", stops)
        assert command(*options, *labels, "--method", "tent", "--out", "cut", "--checkpoint-every", "2")[0] != 0
    assert len(seen) == 6
    assert command(*options, *labels, "--method", "tent", "--out", "cut", "--resume")[0] == 0
    assert (tmp_path / "cut" / "records.jsonl").read_bytes() == (tmp_path / "whole" / "records.jsonl").read_bytes()
    other = [word if word != "art,sketch,photo" else "sketch,art,photo" for word in options]
    code, _, err = command(*other, *labels, "--method", "tent", "--out", "cut", "--resume")
    assert code == 2
    assert "stream.order is ['art', 'sketch', 'photo'] there" in err
    code, out, _ = command("report", "whole", "--out", "page")
    assert code == 0
    page = (tmp_path / "page" / "report.html").read_text()
    assert all(f">{domain}<" in page for domain in ("art", "sketch", "photo"))


def test_source_images_are_those_of_another_folder(command, options, pets) -> None:
    source = ("--source", f"folder:{pets}/photo", "--source-limit", "16")
    assert command(*options, *source, "--method", "eata", "--out", "eata")[0] == 0
    code, _, err = command(*options, "--method", "eata", "--out", "none")
    assert code == 2
    assert "Expected training images, but folder:" in err


def test_a_network_is_fine_tuned_on_one_domain_with_a_new_classifier(command, pets, tmp_path) -> None:
    before = build_network("wrn-10-1", 5, seed=3)
    save_weights(before, tmp_path / "five.safetensors", network="wrn-10-1")
    start = ("train", "--dataset", f"folder:{pets}/photo@16", "--model", "wrn-10-1", "--init", "five.safetensors")
    code, _, err = command(*start, "--out", "tuned.safetensors", "--epochs", "30", "--batch-size", "8")
    assert (code, "Traceback" in err) == (0, False)
    with safe_open(tmp_path / "tuned.safetensors", "pt") as file:
        about = json.loads(file.metadata()["vcotta"])
    assert (about["classes"], about["training"]["lr"], about["training"]["shift"]) == (2, 0.01, 2)
    assert len(about["init_sha256"]) == 64
    run = ("run", "--dataset", f"folder:{pets}@16", "--domains", "photo", "--model", "wrn-10-1", "--method", "source")
    assert command(*run, "--weights", "tuned.safetensors", "--out", "after")[0] == 0
    assert json.loads((tmp_path / "after" / "summary.json").read_text())["mean"]["error"] < 0.1
    code, _, err = command(*start[:-1], "nowhere.safetensors", "--out", "other.safetensors")
    assert code == 2
    assert "nowhere.safetensors to be weights, but there is no such file" in err

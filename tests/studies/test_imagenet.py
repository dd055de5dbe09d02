"""The study of photographs: its plan, its rows, its tables, and that it continues where it was stopped."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import studies.imagenet.run as study
from studies.imagenet.pacs import DOMAINS, split
from studies.imagenet.table import part_text, summary_text
from vcotta.bayes import save_warmed, to_variational
from vcotta.data.prepared import prepared_dir, write_prepared
from vcotta.models import build_network, save_weights


def row(method: str, error: float, **more) -> dict:
    facts = {"network": "resnet-50-v1", "start": "plain", "preset": None, "seed": 0, "protocol": "continual"}
    facts |= {"images": 100, "views": None, "nll": 1.0, "brier": 0.5, "ece": 0.1, "domains": ["fog", "snow"]}
    facts |= {"errors": [error - 1, error + 1], "seconds_per_corruption": 2.0, "peak_gib": 1.5, "batch_size": 64}
    facts |= {"weights_file_sha256": "0", "hardware": "a GPU", "torch": "2", "precision": "bf16"}
    return facts | {"method": method, "error": error} | more


def test_without_files_the_tables_say_that_nothing_was_measured(tmp_path) -> None:
    for part in ("imagenetc", "tiny-imagenetc", "pacs"):
        assert part_text(part, tmp_path) == f"Not measured yet: `python -m studies.imagenet.run {part}`."
    assert summary_text(tmp_path) == (
        "ImageNet-C is not measured yet. Tiny-ImageNet-C is not measured yet. PACS is not measured yet."
    )


def test_tables_have_means_over_seeds_the_lowest_error_first(tmp_path) -> None:
    rows = [row("bn", 63.0), row("bn", 62.0, seed=1), row("vcotta", 53.5, preset="best", start="warmed", views=8)]
    rows += [row("bn", 59.0, start="warmed")]
    (tmp_path / "imagenetc.json").write_text(json.dumps(rows))
    text = part_text("imagenetc", tmp_path)
    scores = [line for line in text.splitlines() if line.endswith("| 1.50 |")]
    assert [line.split(" | ")[0] for line in scores] == ["| vcotta (best, warmed)", "| bn (warmed)", "| bn"]
    assert "| bn | 62.50 ± 0.71 | 1.000 | 0.500 | 0.100 | 2.00 | 1.50 |" in text
    assert "| bn | 61.5 | 63.5 |" in text
    assert "Batches of 64, seeds 0 and 1 (± is the standard deviation over them); a GPU, torch 2, bf16" in text
    assert "8 views" in text
    said = "On ImageNet-C vcotta (best, warmed) has 53.50 % and the best of the others measured, bn (warmed), 59.00 %."
    assert said in summary_text(tmp_path)


def test_the_five_best_others_are_chosen_from_the_plain_network() -> None:
    rows = [row(name, error) for error, name in enumerate(("bn", "vcotta", "a", "b", "c", "d", "e", "f"))]
    rows += [row("f", -1.0, start="warmed"), row("g", -1.0, network="other"), row("a", 100.0, seed=1)]
    assert study.best_others(rows, "resnet-50-v1") == ["b", "c", "d", "e", "f"]


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> Path:
    """Eight prepared images of Tiny-ImageNet, a plain and a warmed network for them, in a folder of its own."""
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    arrays = rng.integers(0, 256, (8, 64, 64, 3), dtype=np.uint8), np.arange(8)
    meta = {"format": 1, "name": "tiny-imagenet", "class_names": [f"n{k:08d}" for k in range(200)]}
    meta |= {"source": "-", "official": None, "note": "", "licence": "none"}
    write_prepared(prepared_dir("tiny-imagenet"), {"train": arrays, "test": arrays}, meta)
    network = build_network("wrn-10-1", 200)
    save_weights(network, tmp_path / "plain.safetensors")
    save_warmed(to_variational(network), tmp_path / "warm.safetensors")
    return tmp_path


def measure(words: str) -> None:
    study.main(shlex.split(words))


@pytest.mark.slow
def test_rows_are_written_one_by_one_and_kept(tiny, capsys) -> None:
    words = "tiny-imagenetc --model wrn-10-1 --weights plain.safetensors --warmed warm.safetensors --images 6"
    words += " --corruptions fog contrast --methods bn tent vcotta --views 1 --batch-size 3 --out out.json"
    measure(f"{words} --minutes 0")
    assert "0 minutes are over; the same command continues." in capsys.readouterr().out
    measure(words)
    rows = json.loads((tiny / "out.json").read_text())
    assert rows[0].keys() == row("", 0.0).keys()
    assert [(one["method"], one["start"], one["preset"]) for one in rows] == [
        ("bn", "plain", None),
        ("tent", "plain", None),
        ("vcotta", "plain", "best"),
        ("vcotta", "warmed", "best"),
        ("vcotta", "warmed", "paper"),
        ("bn", "warmed", None),
        ("tent", "warmed", None),
    ]
    assert [(len(one["errors"]), one["images"], one["batch_size"]) for one in rows] == [(2, 6, 3)] * 7
    assert rows[0]["domains"] == ["fog", "contrast"]
    manifests = json.loads((tiny / "out-manifests.json").read_text())
    assert len(manifests) == 7
    assert str(tiny) not in json.dumps(manifests)
    before = (tiny / "out.json").read_bytes()
    capsys.readouterr()
    measure(words)
    assert (tiny / "out.json").read_bytes() == before


@pytest.mark.slow
def test_photographs_are_split_and_pacs_is_run(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for number, domain in enumerate(DOMAINS):
        for label, kind in enumerate(("dog", "horse")):
            folder = tmp_path / "PACS" / domain / kind
            folder.mkdir(parents=True)
            for image in range(5):
                pixels = np.full((16, 16, 3), 40 * number + 60 * label + image, np.uint8)
                Image.fromarray(pixels).save(folder / f"{image}.png")
    monkeypatch.setattr(study, "PACS_METHODS", ("source", "bn"))
    save_weights(build_network("wrn-10-1", 7), tmp_path / "seven.safetensors")
    words = "pacs --root PACS --model wrn-10-1 --weights seven.safetensors --epochs 1 --batch-size 2 --out out.json"
    with pytest.warns(UserWarning, match="enlarged"):
        measure(f"{words} --images 2")
    place = split(tmp_path / "PACS", tmp_path / "runs" / "imagenet" / "pacs")
    counts = {path.name: len(list(path.rglob("*.png"))) for path in (place / "stream").iterdir()}
    assert counts == {"art_painting": 10, "cartoon": 10, "sketch": 10, "photo": 2}
    assert len(list((place / "train").rglob("*.png"))) == 8
    rows = json.loads((tmp_path / "out.json").read_text())
    assert [(one["method"], one["protocol"], one["start"]) for one in rows] == [
        ("source", "continual", "plain"),
        ("bn", "continual", "plain"),
        ("source", "correlated", "plain"),
        ("bn", "correlated", "plain"),
    ]
    assert rows[0]["domains"] == list(DOMAINS)

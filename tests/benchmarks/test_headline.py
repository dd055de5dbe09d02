"""The headline's runs are kept, not repeated, and become the rows the page is drawn from."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from vcotta.bayes import save_warmed, to_variational
from vcotta.data.digits import digits_network
from vcotta.experiments.benchmark import BENCHMARKS
from vcotta.models import save_weights
from vcotta.runs import RECORDS, SUMMARY, TIMING


@pytest.fixture
def headline(script, monkeypatch):
    monkeypatch.setattr(script, "find_benchmark", lambda name: BENCHMARKS["digits"])
    monkeypatch.setattr(script, "STANDARD", ("fog", "contrast"))
    monkeypatch.setattr(script, "ROUNDS", 2)
    return script


@pytest.fixture
def files(tmp_path):
    model = digits_network(0)
    save_weights(model, tmp_path / "plain.safetensors")
    save_warmed(to_variational(model), tmp_path / "warmed.safetensors")
    return ["--weights", str(tmp_path / "plain.safetensors"), "--warmed", str(tmp_path / "warmed.safetensors")]


@pytest.mark.filterwarnings("ignore:The frost photographs")
def test_cells_run_once_and_are_collected(headline, files, tmp_path, capsys) -> None:
    out = ["--out", str(tmp_path / "runs"), "--limit", "50"]
    headline.main([*files, *out, "--only", "main/bn-warmed", "--only", "loops"])
    headline.main([*files, *out, "--only", "precision/plain-0"])
    assert len(capsys.readouterr().out.splitlines()) == 3
    headline.main([*files, *out, "--only", "main/bn-warmed"])
    assert not capsys.readouterr().out  # finished already
    headline.main([*out, "--collect", str(tmp_path)])
    assert not capsys.readouterr().out  # a try is no result
    records = list(tmp_path.rglob(RECORDS))
    assert len(records) == 3
    for path in records:
        path.unlink()  # what is collected needs only the small files
    headline.main(["--out", str(tmp_path / "runs" / "try-50"), "--collect", str(tmp_path)])
    (row,) = json.loads((tmp_path / "cifar10c-headline.json").read_text())
    assert row["method"] == "bn-warmed"
    assert len(row["errors"]) == 2
    assert row["error"] == pytest.approx(sum(row["errors"]) / 2)
    assert {"preset", "seed", "nll", "brier", "ece", "seconds_per_corruption", "peak_gib"} < row.keys()
    (loops,) = json.loads((tmp_path / "cifar10c-loops.json").read_text())
    assert len(loops["errors"]) == 2 * headline.ROUNDS
    manifest = json.loads((tmp_path / "cifar10c-precision-manifests.json").read_text())["plain-0"]
    assert manifest["runtime"]["precision"] == "fp32"
    assert str(tmp_path) not in json.dumps(manifest)


@pytest.mark.filterwarnings("ignore:The frost photographs")
def test_a_run_that_was_made_with_other_settings_is_refused(headline, files, tmp_path, monkeypatch) -> None:
    cell = [*files, "--out", str(tmp_path / "runs"), "--limit", "50", "--only", "main/bn-warmed"]
    headline.main(cell)
    digits = replace(BENCHMARKS["digits"], batch_size=25)
    monkeypatch.setattr(headline, "find_benchmark", lambda name: digits)
    with pytest.raises(ValueError, match="batch_size is 50 there and 25 here"):
        headline.main(cell)


@pytest.mark.filterwarnings("ignore:The frost photographs")
def test_a_run_from_another_warm_up_is_refused(headline, files, tmp_path) -> None:
    cell = [*files, "--out", str(tmp_path / "runs"), "--limit", "50", "--only", "main/bn-warmed"]
    headline.main(cell)
    save_warmed(to_variational(digits_network(1)), tmp_path / "warmed.safetensors")
    with pytest.raises(ValueError, match="weights_file_sha256"):
        headline.main(cell)


@pytest.mark.filterwarnings("ignore:The frost photographs")
def test_a_run_that_came_along_in_part_is_not_collected(headline, files, tmp_path) -> None:
    headline.main([*files, "--out", str(tmp_path / "runs"), "--limit", "50", "--only", "main/bn-warmed"])
    (timing,) = tmp_path.rglob(TIMING)
    timing.write_text("".join(timing.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ValueError, match=r"Expected 2 batches of bn .* but got 1 timings"):
        headline.main(["--out", str(tmp_path / "runs" / "try-50"), "--collect", str(tmp_path)])


def test_no_run_starts_after_the_time_is_over(headline, files, tmp_path, capsys) -> None:
    headline.main([*files, "--out", str(tmp_path / "runs"), "--minutes", "-1"])
    assert "left for the next time" in capsys.readouterr().out
    assert not list(tmp_path.rglob(SUMMARY))


@pytest.mark.parametrize(
    ("dataset", "rivals"), [("cifar10", ["tent", "cotta"]), ("cifar100", ["tent", "cotta", "roid"])]
)
def test_every_part_and_every_seed_has_its_cells(headline, dataset, rivals) -> None:
    cells = headline.cells(dataset)
    assert len({cell.folder for cell in cells}) == len(cells)
    for name in (*rivals, "vcotta-best", "vcotta-paper"):
        assert [cell.seed for cell in cells if cell.part == "main" and cell.name == name] == [0, 1, 2]
    assert all(cell.limit is None for cell in cells if cell.part == "main")


@pytest.mark.filterwarnings("ignore:The frost photographs")
def test_another_network_has_a_part_and_rows_of_its_own(headline, files, tmp_path) -> None:
    out = ["--out", str(tmp_path / "runs"), "--limit", "8"]
    for only in ("vcotta-best-0", "source"):
        headline.main([*files, *out, "--network", "wrn-10-1", "--only", only])
    headline.main(["--out", str(tmp_path / "runs" / "try-8"), "--collect", str(tmp_path)])
    rows = json.loads((tmp_path / "cifar10c-carried.json").read_text())
    assert [(row["method"], row["network"], row["preset"]) for row in rows] == [
        ("source", "wrn-10-1", None),
        ("vcotta", "wrn-10-1", "best"),
    ]
    assert "wrn-10-1-vcotta-best-0" in json.loads((tmp_path / "cifar10c-carried-manifests.json").read_text())

"""The headline's runs are kept, not repeated, and become the rows the page is drawn from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies.headline import run as script
from studies.headline.table import gains_text
from vcotta.bayes import save_warmed, to_variational
from vcotta.models import build_network, save_weights
from vcotta.models.wide_resnet import digits_network
from vcotta.runs.run import RECORDS, SUMMARY, TIMING


@pytest.fixture
def given(tmp_path) -> list[str]:
    """The command line of a small try on digits."""
    model = digits_network(0)
    save_weights(model, tmp_path / "plain.safetensors")
    save_warmed(to_variational(model), tmp_path / "warmed.safetensors")
    files = {"weights": "plain.safetensors", "warmed": "warmed.safetensors", "out": "runs"}
    words = [word for option, file in files.items() for word in (f"--{option}", str(tmp_path / file))]
    return ["--dataset", "digits", "--limit", "50", "--corruptions", "fog,contrast", *words]


def test_runs_are_made_once_and_collected(given, tmp_path, capsys) -> None:
    script.main([*given, "--only", "main/bn-warmed", "--only", "loops"])
    script.main([*given, "--only", "precision/plain-0"])
    assert len(capsys.readouterr().out.splitlines()) == 3
    script.main([*given, "--only", "main/bn-warmed"])
    assert not capsys.readouterr().out  # finished already
    script.main(["--out", str(tmp_path / "runs"), "--collect", str(tmp_path)])
    assert not capsys.readouterr().out  # a try is no result
    records = list(tmp_path.rglob(RECORDS))
    assert len(records) == 3
    for path in records:
        path.unlink()  # collecting needs only the small files
    script.main(["--out", str(tmp_path / "runs" / "try-50"), "--collect", str(tmp_path)])
    (row,) = json.loads((tmp_path / "digitsc-headline.json").read_text())
    assert (row["method"], row["preset"], len(row["errors"])) == ("bn-warmed", None, 2)
    assert row["error"] == pytest.approx(sum(row["errors"]) / 2)
    committed = json.loads((script.results_of("headline") / "cifar10c-headline.json").read_text())
    assert row.keys() == committed[0].keys()
    (loops,) = json.loads((tmp_path / "digitsc-loops.json").read_text())
    assert len(loops["errors"]) == 2 * script.ROUNDS
    manifest = json.loads((tmp_path / "digitsc-precision-manifests.json").read_text())["plain-0"]
    assert manifest["runtime"] | {"device": ""} == {
        "device": "",
        "precision": "fp32",
        "channels_last": False,
        "compile": False,
    }
    assert manifest["cell"] == {"part": "precision", "name": "plain", "warmed": True, "seed": 0}
    assert str(tmp_path) not in json.dumps(manifest)


def test_a_run_that_was_made_with_other_settings_is_refused(given) -> None:
    script.main([*given, "--only", "main/bn-warmed"])
    with pytest.raises(ValueError, match="snow"):
        script.main([*given, "--corruptions", "fog,snow", "--only", "main/bn-warmed"])


def test_a_run_from_another_warm_up_is_refused(given, tmp_path) -> None:
    script.main([*given, "--only", "main/bn-warmed"])
    save_warmed(to_variational(digits_network(1)), tmp_path / "warmed.safetensors")
    with pytest.raises(ValueError, match="weights_file_sha256"):
        script.main([*given, "--only", "main/bn-warmed"])


def test_a_run_that_was_copied_in_part_is_not_collected(given, tmp_path) -> None:
    script.main([*given, "--only", "main/bn-warmed"])
    (timing,) = tmp_path.rglob(TIMING)
    timing.write_text("".join(timing.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ValueError, match=r"Expected 2 batches of bn .* but got 1 timings"):
        script.main(["--out", str(tmp_path / "runs" / "try-50"), "--collect", str(tmp_path)])


def test_no_run_starts_after_the_time_is_over(given, tmp_path, capsys) -> None:
    script.main([*given, "--minutes", "-1"])
    assert "main/source-0 and the runs after it are left" in capsys.readouterr().out
    assert not list(tmp_path.rglob(SUMMARY))


@pytest.mark.parametrize(
    ("dataset", "network", "rivals"),
    [("cifar10", "wrn-28-10", ["tent", "cotta"]), ("cifar100", "resnext-29-4x32d", ["tent", "cotta", "roid"])],
)
def test_every_part_and_every_seed_has_its_runs(dataset, network, rivals) -> None:
    specs = script.runs_of(script.Networks(dataset, network, Path("plain"), Path("warmed"), "cpu"))
    assert len({script.folder_of(spec) for spec in specs}) == len(specs)
    for name in (*rivals, "vcotta-best", "vcotta-paper"):
        assert [spec.seed for spec in specs if spec.label == f"main/{name}"] == [0, 1, 2]
    main = [spec for spec in specs if spec.label.startswith("main/")]
    assert all(spec.limit is None and spec.guard is None for spec in main)


def test_another_network_has_a_part_and_rows_of_its_own(given, tmp_path) -> None:
    model = build_network("wrn-10-1")
    save_weights(model, tmp_path / "plain.safetensors")
    save_warmed(to_variational(model), tmp_path / "warmed.safetensors")
    for only in ("vcotta-best-0", "source"):
        script.main([*given, "--limit", "8", "--network", "wrn-10-1", "--only", only])
    script.main(["--out", str(tmp_path / "runs" / "try-8"), "--collect", str(tmp_path)])
    rows = json.loads((tmp_path / "digitsc-carried.json").read_text())
    assert [(row["method"], row["network"], row["preset"]) for row in rows] == [
        ("source", "wrn-10-1", None),
        ("vcotta", "wrn-10-1", "best"),
    ]
    assert "wrn-10-1-vcotta-best-0" in json.loads((tmp_path / "digitsc-carried-manifests.json").read_text())


def test_what_earns_the_gain_names_its_network_and_its_version() -> None:
    manifests = json.loads((script.results_of("headline") / "cifar10c-decomposition-manifests.json").read_text())
    for one in manifests.values():
        assert f"version {one['versions']['vcotta']}, a {one['network'].upper()} " in gains_text()
    assert "the learned standard deviations" not in gains_text()  # none were learned then

from __future__ import annotations

import pytest

from vcotta.experiments import setup
from vcotta.experiments.entries import ENTRIES


def test_the_list_is_whole_whatever_the_width(command, monkeypatch) -> None:
    for width in ("40", "80", "200"):
        monkeypatch.setenv("COLUMNS", width)
        code, out, _ = command("reproduce", "--list")
        assert code == 0
        assert "…" not in out
        for entry in ENTRIES.values():
            for words in (entry.name, entry.title, entry.where):
                assert words in out


def test_it_is_told_how_many_runs_were_there(command, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.streams.STANDARD", ("fog",))
    monkeypatch.setattr("vcotta.experiments.reproduce.html_page", lambda runs: "")
    monkeypatch.setattr(setup, "train", lambda model, *_, **__: model.eval())
    call = ("reproduce", "calibration", "--limit", "6", "--methods", "source,bn", "--workers", "1", "--device", "cpu")
    code, out, err = command(*call, "--seeds", "0")
    assert code == 0
    assert "were there" not in out
    assert err.startswith("calibration begins\n")
    assert "\n2 of 4 runs were there.\n" in command(*call, "--seeds", "0,1")[1]
    assert "\n4 of 4 runs were there.\n" in command(*call, "--seeds", "0,1")[1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("mian",), "Did you mean 'main'"),
        (("main", "--methods", "bn,cota"), "Did you mean 'cotta'"),
        (("augmentations", "--values", "4,x"), "`values` to be numbers separated by commas, but got '4,x'"),
        (("augmentations", "--values", "5"), "`value` to be one of 0, 4, 8, 16, but got '5'"),
        (("main", "--weights", "none.pt"), "none.pt is not there"),
        (("main", "--dataset", "digit"), "Did you mean 'digits'"),
        (("main", "--scale", "all"), "`scale` to be one of quick, full"),
        (("main", "--preset", "papr"), "`preset` to be one of best, paper, authors, but got 'papr'. Did you mean"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(command, tmp_path, arguments, text) -> None:
    code, _, err = command("reproduce", *arguments)
    assert code == 2
    assert text in err
    assert err.count("\n") == 1
    assert not (tmp_path / "reproduced").exists()

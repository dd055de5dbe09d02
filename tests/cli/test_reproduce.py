from __future__ import annotations

import pytest

from vcotta.experiments import build
from vcotta.experiments.paper.experiments import EXPERIMENTS


def test_the_list_is_whole_whatever_the_width(command, monkeypatch) -> None:
    for width in ("40", "80", "200"):
        monkeypatch.setenv("COLUMNS", width)
        code, out, _ = command("reproduce", "--list")
        assert code == 0
        assert "…" not in out
        for experiment in EXPERIMENTS.values():
            for words in (experiment.name, experiment.title, experiment.where):
                assert words in out


def test_the_number_of_runs_that_were_finished_before_is_shown(command, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.experiments.reproduce.html_page", lambda runs: "")
    monkeypatch.setattr(build, "train", lambda model, *_, **__: model.eval())
    call = ("reproduce", "calibration", "--limit", "6", "--methods", "source,bn", "--workers", "1", "--device", "cpu")
    code, out, err = command(*call, "--seeds", "0")
    assert code == 0
    assert "were finished before" not in out
    assert err.startswith("calibration begins\n")
    assert "\n2 of 4 runs were finished before.\n" in command(*call, "--seeds", "0,1")[1]
    assert "\n4 of 4 runs were finished before.\n" in command(*call, "--seeds", "0,1")[1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("mian",), "Did you mean 'main'"),
        (("main", "--methods", "bn,cota"), "Did you mean 'cotta'"),
        (("augmentations", "--values", "4,x"), "`values` to be numbers separated by commas, but got '4,x'"),
        (("augmentations", "--values", "5"), "`value` to be one of 0, 4, 8, 16, but got '5'"),
        (("main", "--weights", "none.pt"), "there is no file none.pt"),
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

"""The open choices: the first answer is the one in force, and finished runs are not repeated."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from vcotta.data.digits import digits_network
from vcotta.experiments.benchmark import BENCHMARKS
from vcotta.methods import configure
from vcotta.models import save_weights


@pytest.fixture
def choices(script, monkeypatch):
    digits = replace(BENCHMARKS["digits"], settings="cifar10")
    monkeypatch.setattr(script, "find_benchmark", lambda name: digits)
    monkeypatch.setattr(script, "NETWORK", None)
    monkeypatch.setattr(script, "SEVERITIES", (5,))
    monkeypatch.setattr(script, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))  # sees what is replaced here
    return script


def test_the_first_answer_of_every_question_is_in_force(choices) -> None:
    for choice in choices.CHOICES:
        usual = configure(choice.method, dataset="cifar10")
        for option, value in choice.answers[0].items():
            assert getattr(usual, option) == value, (choice.method, option)
        configs = [choices.config(choice, answer) for answer in choice.answers]
        assert all(config not in configs[:place] for place, config in enumerate(configs)), choice.question


def test_answers_of_the_same_settings_share_a_run(choices) -> None:
    cells = choices.cells(choices.CHOICES, (0, 1))
    assert len(cells) == 2 * len([cell for cell in cells if cell.seed == 0])
    assert len(cells) < 2 * sum(len(choice.answers) for choice in choices.CHOICES)


def test_choices_are_measured_once_on_the_held_out_corruptions_alone(choices, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(choices, "CHOICES", [one for one in choices.CHOICES if one.method in ("bn", "roid")])
    save_weights(digits_network(0), tmp_path / "net.safetensors")
    asked = ["--weights", str(tmp_path / "net.safetensors"), "--out", str(tmp_path / "found.json"), "--limit", "50"]
    choices.main([*asked, "--only", "bn: stat"])
    assert len(capsys.readouterr().out.splitlines()) == 5
    choices.main([*asked, "--only", "bn"])
    assert not capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert [len(row["errors"]) for row in found["rows"]] == [4] * 5
    assert {row["facts"]["runtime"]["device"] for row in found["rows"]} == {"cpu"}
    roid, bn = found["choices"]
    assert all(not answer["error"] for answer in roid["answers"])  # not measured yet
    by_answer = [answer["error"] for answer in bn["answers"]]
    assert [len(errors) for errors in by_answer] == [1] * 5
    assert by_answer[0] == [row["error"] for row in found["rows"] if row["config"]["statistics"] == "batch"]
    assert str(tmp_path) not in json.dumps(found)

"""The open choices: the first answer is the one in force, and finished runs are not repeated."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from studies.open_choices import run as script
from vcotta.methods import configure
from vcotta.models import save_weights
from vcotta.models.wide_resnet import digits_network


@pytest.mark.parametrize("choice", script.CHOICES, ids=lambda choice: f"{choice.method}: {choice.question}")
def test_the_first_answer_of_every_question_is_in_force(choice) -> None:
    usual = configure(choice.method, dataset="cifar10")
    for option, value in choice.answers[0].items():
        assert getattr(usual, option) == value, option
    configs = [script.settings(choice, answer) for answer in choice.answers]
    assert all(config not in configs[:place] for place, config in enumerate(configs))


def test_answers_of_the_same_settings_share_a_run() -> None:
    specs = script.specs_of(script.SPEC, script.CHOICES, (0, 1))
    assert len(specs) == 2 * len([spec for spec in specs if spec.seed == 0])
    assert len(specs) < 2 * sum(len(choice.answers) for choice in script.CHOICES)


def test_choices_are_measured_once_on_the_held_out_corruptions_alone(tmp_path, capsys) -> None:
    save_weights(digits_network(0), tmp_path / "net.safetensors")
    small = {"data": "digits", "network": None, "weights": tmp_path / "net.safetensors", "severity": 5, "limit": 50}
    spec, out = replace(script.SPEC, **small), tmp_path / "found.json"
    chosen = [choice for choice in script.CHOICES if choice.method == "bn"]
    with ThreadPoolExecutor(1) as pool:
        script.study(spec, chosen, [0], out, pool)
        assert len(capsys.readouterr().out.splitlines()) == 5
        script.study(spec, chosen, [0], out, pool)
        assert not capsys.readouterr().out
    found = json.loads(out.read_text())
    assert [len(row["errors"]) for row in found["rows"]] == [4] * 5
    assert {row["facts"]["runtime"]["device"] for row in found["rows"]} == {"cpu"}
    by_method = {choice["method"]: choice for choice in found["choices"]}
    assert all(not answer["error"] for answer in by_method["roid"]["answers"])  # not measured yet
    by_answer = [answer["error"] for answer in by_method["bn"]["answers"]]
    assert [len(errors) for errors in by_answer] == [1] * 5
    assert by_answer[0] == [row["error"] for row in found["rows"] if row["config"]["statistics"] == "batch"]
    assert str(tmp_path) not in json.dumps(found)
    committed = json.loads((script.results_of("open_choices") / "open-choices.json").read_text())
    assert found["rows"][0].keys() == committed["rows"][0].keys()

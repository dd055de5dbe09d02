"""The same words in a file give the same bytes."""

from __future__ import annotations

import json

import pytest

from vcotta.experiments import build

FILE = """
method = "tent"
out = "file"
limit = 20
batch_size = 10
corruptions = ["fog", "contrast"]
protocol = "loops"
guard = true
overwrite = true
resume = false

[set]
lr = 0.02

[protocol-set]
rounds = 2
"""
WORDS = (
    *("run", "--method", "tent", "--limit", "20", "--batch-size", "10", "--corruptions", "fog,contrast"),
    *("--protocol", "loops", "--protocol-set", "rounds=2", "--guard", "--set", "lr=0.02", "--out", "words"),
)


@pytest.fixture(autouse=True)
def untrained(monkeypatch) -> None:
    monkeypatch.setattr(build, "train", lambda model, *_, **__: model.eval())


def test_the_words_of_a_file_give_the_bytes_of_the_command_line(command, tmp_path) -> None:
    (tmp_path / "run.toml").write_text(FILE)
    assert command(*WORDS)[0] == 0
    assert command("run", "--config", "run.toml")[0] == 0
    specs = [json.loads((tmp_path / out / "manifest.json").read_text())["spec"] for out in ("words", "file")]
    assert specs[0] == specs[1]
    records = [(tmp_path / out / "records.jsonl").read_bytes() for out in ("words", "file")]
    assert records[0] == records[1]


def test_words_on_the_command_line_win_and_other_settings_stay(command, tmp_path) -> None:
    (tmp_path / "run.toml").write_text(FILE)
    words = ("--limit", "10", "--no-guard", "--set", "optimizer=sgd", "--out", "won", "--corruptions", "fog")
    assert command("run", *words, "--config=run.toml")[0] == 0
    spec = json.loads((tmp_path / "won" / "manifest.json").read_text())["spec"]
    assert (spec["limit"], spec["guard"], spec["corruptions"]) == (10, False, ["fog"])
    assert spec["options"] == {"lr": 0.02, "optimizer": "sgd"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limt = 5", "option in run.toml to be one of "),
        ("limt = 5", "but got 'limt'. Did you mean 'limit'? All names: method, out, "),
        ("limt = 5", ". Settings of the method go below a line [set]."),
        ("lr = 0.1", "Settings of the method go below a line [set]."),
        ("limit = ", "Expected run.toml to be a TOML file"),
        ("overwrite = 1", "Expected `overwrite` to be true or false, but got 1."),
        ("[limit]\na = 1", "Expected `limit` to be one value, but got a table of a."),
        ("[set]\nlrr = 1", "Did you mean 'lr'"),
        ('limit = "many"', "--limit"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(command, tmp_path, text, message) -> None:
    (tmp_path / "run.toml").write_text(text)
    code, _, err = command("run", "--method", "tent", "--out", "x", "--config", "run.toml")
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1
    assert "No such file: no.toml" in command("run", "--config", "no.toml")[2]

"""The commands that adapt, run and tune, on a network that is not worth training."""

from __future__ import annotations

import json
import math

import pytest

from vcotta.cli import runs as cli_runs
from vcotta.experiments import build
from vcotta.experiments import tune as tuning
from vcotta.methods import tent
from vcotta.streams import PROTOCOLS


@pytest.fixture
def untrained(monkeypatch) -> None:
    """Let "training" return the network as it was made."""
    monkeypatch.setattr(build, "train", lambda model, *_, **__: model.eval())


def test_weights_are_read_on_digits_too(command, untrained, tmp_path) -> None:
    assert command("train", "--out", "w.safetensors", "--seed", "3")[0] == 0
    (tmp_path / "bad.safetensors").write_bytes((tmp_path / "w.safetensors").read_bytes()[:2000])
    run = ("run", "--method", "bn", "--limit", "10", "--batch-size", "10", "--out")
    assert command(*run, "seed3", "--weights", "w.safetensors")[0] == 0
    hashes = [json.loads((tmp_path / name / "manifest.json").read_text())["weights_sha256"] for name in ("seed3",)]
    assert command(*run, "own", "--seed", "3")[0] == 0
    hashes.append(json.loads((tmp_path / "own" / "manifest.json").read_text())["weights_sha256"])
    assert hashes[0] == hashes[1]
    code, _, err = command(*run, "bad", "--weights", "bad.safetensors")
    assert code == 2
    assert "bad.safetensors" in err


def test_a_run_records_itself_and_is_not_overwritten_unasked(command, untrained, tmp_path) -> None:
    arguments = ("run", "--method", "tent", "--out", "runs/tent", "--limit", "20", "--batch-size", "10")
    code, out, _ = command(*arguments, "--set", "lr=0.02")
    assert code == 0
    assert "jpeg compression" in out
    manifest = json.loads((tmp_path / "runs/tent/manifest.json").read_text())
    assert manifest["config"] == {"lr": 0.02, "optimizer": "adam"}
    assert manifest["stream"]["images_per_domain"] == 20
    assert (manifest["spec"]["data"], manifest["network"]) == ("digits", "digits")
    assert manifest["stream"]["frost"] == "procedural"
    assert len((tmp_path / "runs/tent/records.jsonl").read_text().splitlines()) == 30
    code, _, err = command(*arguments)
    assert code == 2
    assert "overwrite" in err
    assert command(*arguments, "--overwrite")[0] == 0


def test_a_stopped_run_continues_with_resume_and_a_finished_one_is_not_changed(
    command, untrained, tmp_path, monkeypatch
) -> None:
    options = ("run", "--method", "tent", "--limit", "20", "--batch-size", "10", "--corruptions", "fog,contrast")
    assert command(*options, "--out", "whole", "--resume")[0] == 0
    monkeypatch.setattr(cli_runs, "CHECKPOINT_SECONDS", 0.0)
    taken = tent.TENT.predict_and_adapt

    def stop(self, images):
        if self.steps == 3:
            raise KeyboardInterrupt
        return taken(self, images)

    monkeypatch.setattr(tent.TENT, "predict_and_adapt", stop)
    again = (*options, "--out", "run", "--checkpoint-every", "1", "--resume")
    assert command(*again)[0] == 130
    monkeypatch.setattr(tent.TENT, "predict_and_adapt", taken)
    code, _, err = command(*options, "--out", "run")
    assert code == 2
    assert "resume it" in err
    for _ in range(2):
        assert command(*again)[0] == 0
        assert (tmp_path / "run/records.jsonl").read_bytes() == (tmp_path / "whole/records.jsonl").read_bytes()
        resumed = json.loads((tmp_path / "run/manifest.json").read_text())["resumed"]
        assert [place["batch"] for place in resumed] == [3]
    code, _, err = command(*again, "--seed", "1")
    assert code == 2
    assert "seed is 0 there and 1 here" in err


def test_a_run_stopped_by_ctrl_c_resumes_after_its_last_batch(
    command, untrained, tmp_path, monkeypatch, press_ctrl_c
) -> None:
    options = ("run", "--method", "tent", "--limit", "20", "--batch-size", "10", "--corruptions", "fog,contrast")
    taken = tent.TENT.predict_and_adapt

    def pressed(self, images):
        if self.steps == 2:
            press_ctrl_c()
        return taken(self, images)

    monkeypatch.setattr(tent.TENT, "predict_and_adapt", pressed)
    code, _, err = command(*options, "--out", "run")
    assert code == 130
    assert "stopped after 3 of 4 batches; it will resume after 3. Use the same command with --resume" in err
    monkeypatch.setattr(tent.TENT, "predict_and_adapt", taken)
    assert "tent: 3 of 4" in command(*options, "--out", "run", "--resume")[2]
    assert command(*options, "--out", "whole")[0] == 0
    assert (tmp_path / "run/records.jsonl").read_bytes() == (tmp_path / "whole/records.jsonl").read_bytes()


def test_a_finished_run_is_shown_before_any_network_is_made(command, untrained, tmp_path, monkeypatch) -> None:
    assert command("train", "--out", "w.safetensors")[0] == 0
    run = (
        "run",
        "--method",
        "cotta",
        "--set",
        "views=1",
        "--limit",
        "10",
        "--batch-size",
        "10",
        "--corruptions",
        "fog",
    )
    run = (*run, "--weights", "w.safetensors", "--out", "run", "--resume")
    code, first, _ = command(*run)
    assert code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    monkeypatch.setattr(build, "start_network", None)
    code, again, _ = command(*run)
    assert (code, again) == (0, first)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    for changed, reason in ((["--set", "lr=0.5"], "config.lr is"), (["--severity", "3"], "stream.severit")):
        code, _, err = command(*run, *changed)
        assert code == 2
        assert reason in err
    (tmp_path / "w.safetensors").write_bytes(b"another")
    code, _, err = command(*run)
    assert code == 2
    assert "weights_file_sha256 is" in err


PROTOCOL_OPTIONS = {
    "orders": {"order_number": 1},
    "loops": {"rounds": 2},
    "correlated": {"delta": 0},
    "practical": {"delta": 0.5},
    "recurring": {"visits": 2},
    "bursts": {"frames": 3},
    "day_night": {"turns": 2},
}
PROTOCOL_WORDS = {
    "orders": "order=1",
    "loops": "rounds=2",
    "correlated": "delta=0",
    "practical": "delta=0.5",
    "recurring": "visits=2",
    "bursts": "frames=3",
    "day_night": "turns=2",
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_run_follows_each_protocol_and_records_which(command, untrained, tmp_path, name) -> None:
    words = ("--protocol-set", PROTOCOL_WORDS[name]) if name in PROTOCOL_WORDS else ()
    chosen = () if name == "day_night" else ("--corruptions", "fog,contrast")
    run = ("run", "--method", "source", "--limit", "6", *chosen, "--severity", "2")
    code, _, err = command(*run, "--protocol", name, *words, "--out", "run")
    assert code == 0, err
    stream = json.loads((tmp_path / "run/manifest.json").read_text())["stream"]
    assert stream["protocol"] == name
    assert stream.items() >= PROTOCOL_OPTIONS.get(name, {}).items()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--protocol", "loop"), "Did you mean 'loops'"),
        (("--protocol", "loops", "--protocol-set", "rounds=0"), "`rounds` to be at least 1"),
        (("--protocol-set", "rounds=3"), "options of the protocol continual to be none"),
        (("--protocol-set", "rounds"), "`--protocol-set` to be OPTION=VALUE"),
        (("--protocol", "day_night", "--corruptions", "fog"), "no `corruptions` with the protocol day_night"),
    ],
)
def test_a_mistake_in_the_protocol_is_one_line(command, words, text) -> None:
    code, _, err = command("run", "--method", "source", "--out", "run", *words)
    assert code == 2
    assert text in err


def test_tune_looks_at_the_extra_corruptions_only_and_writes_what_it_found(command, untrained, tmp_path) -> None:
    code, out, _ = command(
        "tune", "--method", "tent", "--out", "found.json", "--grid", "lr=1e-4,1e-3", "--limit", "20", "--seeds", "0,1"
    )
    assert code == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["spec"]["corruptions"] == ["speckle_noise", "gaussian_blur", "spatter", "saturate"]
    assert found["seeds"] == [0, 1]
    assert sorted(trial["options"]["lr"] for trial in found["trials"]) == [1e-4, 1e-3]
    assert found["trials"][0]["error"] <= found["trials"][1]["error"]
    assert "--set lr=" in out


def test_a_search_is_kept_though_an_nll_is_infinite(command, monkeypatch, tmp_path) -> None:
    found = [{"options": {"lr": 0.1}, "error": 50.0, "nll": math.inf}]
    monkeypatch.setattr(tuning, "tune", lambda *_, **__: found)
    code, out, _ = command("tune", "--method", "tent", "--out", "found.json")
    assert code == 0
    assert "NLL inf" in out
    assert json.loads((tmp_path / "found.json").read_text())["trials"] == [found[0] | {"nll": None}]


ATTENTIVE = """
import torch
from torch import nn

class OwnAttention(nn.MultiheadAttention):
    pass

class Attentive(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.attention, self.fc = OwnAttention(3, 1, batch_first=True), nn.Linear(3, classes)

    def forward(self, x):
        x = nn.functional.avg_pool2d(x, 8).flatten(2).transpose(1, 2)
        return self.fc(self.attention(x, x, x)[0].mean(1))
"""


def test_source_limit_and_unsupported_reach_the_warm_up_of_both_commands(command, untrained, tmp_path) -> None:
    (tmp_path / "own.py").write_text(ATTENTIVE)
    own = ("--model", "own.py:Attentive", "--source-limit", "100", "--device", "cpu")
    code, _, err = command("warmup", *own, "--out", "no.safetensors")
    assert code == 2
    assert "--unsupported keep` at the command line" in err
    assert command("warmup", *own, "--epochs", "1", "--unsupported", "keep", "--out", "w.safetensors")[0] == 0
    run = ("run", "--method", "vcotta", "--limit", "4", "--corruptions", "fog", "--set", "views=2")
    code, _, err = command(*run, *own, "--unsupported", "keep", "--out", "x")
    assert code == 0
    assert "The network is a plain one, so it is warmed up first: 10 epochs over 100 images." in err
    manifest = json.loads((tmp_path / "x" / "manifest.json").read_text())
    assert manifest["spec"]["source_limit"] == 100
    assert manifest["warm_up"]["unsupported"] == "keep"
    code, _, err = command(*run, "--model", "own.py:Attentive", "--weights", "w.safetensors", "--out", "y")
    assert code == 0
    assert "warmed up first" not in err

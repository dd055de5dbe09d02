from __future__ import annotations

import dataclasses
import json
from unittest.mock import Mock

import pytest

from vcotta._util.tensorfile import read_state, state_kind
from vcotta.experiments import build
from vcotta.experiments import tune as tuning
from vcotta.models import load_weights
from vcotta.models.wide_resnet import digits_network

NO_FOLDER = "afile to be a folder, but it is a file"
NO_FILE = "dir to be a file, but it is a folder"
PLACES = {
    "run": (["run", "--method", "bn", "--out", "afile"], NO_FOLDER),
    "run within a file": (["run", "--method", "bn", "--out", "afile/run"], NO_FOLDER),
    "run --overwrite": (["run", "--method", "bn", "--out", "afile", "--overwrite"], NO_FOLDER),
    "run --tensorboard": (["run", "--method", "bn", "--out", "run", "--tensorboard", "afile"], NO_FOLDER),
    "demo": (["demo", "--out", "afile"], NO_FOLDER),
    "demo --json": (["demo", "--json", "dir"], NO_FILE),
    "reproduce": (["reproduce", "main", "--out", "afile"], NO_FOLDER),
    "report": (["report", "dir", "--out", "afile"], NO_FOLDER),
    "train": (["train", "--out", "afile/w.safetensors"], NO_FOLDER),
    "warmup": (["warmup", "--out", "dir"], NO_FILE),
    "tune": (["tune", "--method", "tent", "--out", "dir"], NO_FILE),
    "bundle": (["bundle", "--out", "afile/b"], NO_FOLDER),
}


@pytest.fixture
def no_work(monkeypatch) -> None:
    """Training fails the test: the error must come before it."""

    def work(*_, **__):
        raise AssertionError("the work began")

    monkeypatch.setattr(build, "train", work)


@pytest.mark.parametrize("case", PLACES)
def test_a_path_that_cannot_be_written_is_an_error_before_the_work(command, no_work, tmp_path, case) -> None:
    arguments, text = PLACES[case]
    (tmp_path / "afile").touch()
    (tmp_path / "dir").mkdir()
    code, _, err = command(*arguments)
    assert code == 2
    assert text in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["afile", "dir"]


@pytest.mark.parametrize("arguments", [("demo", "--out"), ("warmup", "--out")])
def test_a_read_only_file_system_is_an_error_before_the_work(command, no_work, monkeypatch, arguments) -> None:
    refuse = Mock(side_effect=OSError(30, "Read-only file system", "there"))  # no frame of this file: it is the user's
    monkeypatch.setattr("vcotta.cli.output_paths.tempfile.TemporaryFile", refuse)
    code, _, err = command(*arguments, "there/x")
    assert code == 2
    assert err.startswith("Error: Expected to write there/x, but no file can be created in ")
    assert "(Read-only file system)" in err


def test_a_network_a_bundle_and_a_search_are_replaced_only_on_request(command, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(build, "start_network", lambda *_, **__: digits_network())  # untrained
    monkeypatch.setattr(tuning, "tune", lambda *_, **__: [{"options": {"lr": 0.1}, "error": 50.0, "nll": 1.0}])
    monkeypatch.setattr(build, "train", lambda model, *_, **__: model.eval())
    path = tmp_path / "out"
    for arguments in (
        ("train",),
        ("warmup", "--epochs", "1"),
        ("bundle", "--method", "bn"),
        ("tune", "--method", "tent"),
    ):
        path.write_text("of value")
        arguments = (*arguments, "--out", "out")
        code, _, err = command(*arguments)
        assert code == 2
        assert "Expected out not to exist yet, but it does. Choose another file, or replace it with --overwrite" in err
        assert path.read_text() == "of value"
        assert command(*arguments, "--overwrite")[0] == 0
        assert path.read_bytes() != b"of value"


def test_a_finished_run_in_a_folder_that_cannot_be_written_is_still_shown(command, monkeypatch) -> None:
    monkeypatch.setattr(build, "start_network", lambda *_, **__: digits_network())
    run = ("run", "--method", "bn", "--limit", "10", "--corruptions", "fog", "--out", "run", "--resume")
    assert command(*run)[0] == 0
    monkeypatch.setattr("vcotta.cli.output_paths.tempfile.TemporaryFile", None)
    assert command(*run)[0] == 0


def test_training_names_the_network_it_trained_and_says_when_it_begins(command, monkeypatch) -> None:
    monkeypatch.setattr(build, "train", lambda model, *_, **__: model.eval())
    code, out, err = command("train", "--out", "w.safetensors")
    assert code == 0
    assert out.startswith("Wrote digits (a small wrn-10-1) to w.safetensors")
    assert err == "Training begins\n"


def test_training_takes_the_settings_it_is_given_and_writes_them_into_the_file(command, monkeypatch) -> None:
    seen, sizes = [], []

    def remember(model, loader, config, **_):
        seen.append(config)
        sizes.append(len(next(iter(loader))[1]))
        return model.eval()

    monkeypatch.setattr(build, "train", remember)
    given = ("--epochs", "3", "--weight-decay", "1e-4", "--lr", "0.05", "--rise", "0", "--batch-size", "20")
    assert command("train", *given, "--seed", "7", "--out", "w.safetensors")[0] == 0
    (config,) = seen
    assert (config.epochs, config.weight_decay, config.lr, config.rise, config.seed) == (3, 1e-4, 0.05, 0, 7)
    assert sizes == [20]
    saved = load_weights(digits_network(), "w.safetensors").metadata
    assert saved["training"] == dataclasses.asdict(config) | {"batch_size": 20}


def test_an_interrupted_training_prints_where_it_resumes(command, monkeypatch) -> None:
    def stop(*_, **__):
        raise KeyboardInterrupt("2 of 4 epochs are saved: run the same command to continue.")

    monkeypatch.setattr(build, "train", stop)
    code, _, err = command("train", "--out", "w.safetensors")
    assert code == 130
    assert err.splitlines()[-2:] == ["2 of 4 epochs are saved: run the same command to continue.", "Interrupted."]


def test_the_warm_up_takes_the_settings_it_is_given_and_writes_them_into_the_file(command, monkeypatch) -> None:
    monkeypatch.setattr(build, "train", lambda model, *_, **__: model.eval())
    given = ("--epochs", "1", "--lr", "0.002", "--augmix", "--seed", "7")
    assert command("warmup", *given, "--out", "warm.safetensors")[0] == 0
    saved = read_state("warm.safetensors", state_kind("warm.safetensors"))["about"]["config"]
    assert (saved["epochs"], saved["lr"], saved["augmix"], saved["seed"]) == (1, 0.002, True, 7)


def test_a_file_of_another_kind_is_refused_with_a_remedy_for_the_command_and_for_python(command, monkeypatch) -> None:
    monkeypatch.setattr(build, "train", lambda model, *_, **__: model.eval())
    assert command("warmup", "--epochs", "1", "--out", "warm.safetensors")[0] == 0
    for name in (["check"], ["warmup", "--out", "again.safetensors"]):
        code, _, err = command(*name, "--weights", "warm.safetensors")
        assert code == 2
        assert "Give the network it was made of, or read it with `vcotta.bayes.load_warmed`." in err


def test_what_corrupt_writes_of_digits_is_what_run_would_make(command, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(build, "start_network", lambda *_, **__: digits_network())
    assert command("corrupt", "digits", "--name", "contrast", "--out", "c")[0] == 0
    run = ("run", "--method", "bn", "--limit", "20", "--corruptions", "contrast", "--out")
    assert command(*run, "fly")[0] == 0
    code, out, _ = command(*run, "files", "--corrupted", "c")
    assert code == 0
    assert "1 batch of up to 50" in out
    assert json.loads((tmp_path / "fly/manifest.json").read_text())["hardware"].endswith(" 1 torch thread")
    assert (tmp_path / "fly/records.jsonl").read_bytes() == (tmp_path / "files/records.jsonl").read_bytes()

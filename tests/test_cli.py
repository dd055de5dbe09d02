from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import vcotta
from vcotta import cli
from vcotta.experiments import setup


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run the command line in this process; returns (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vcotta", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        output = capsys.readouterr()
        return end.value.code or 0, output.out, output.err

    return call


def test_version_is_printed_by_the_module_too() -> None:
    out = subprocess.run([sys.executable, "-m", "vcotta", "--version"], capture_output=True, text=True, check=True)
    assert out.stdout == f"vcotta {vcotta.__version__}\n"


@pytest.mark.parametrize(
    "name",
    ["", "demo", "methods", "corrupt", "train", "check", "warmup", "run", "tune", "info", "data", "data prepare"],
)
def test_every_command_explains_itself(command, name) -> None:
    code, out, _ = command(*name.split(), "--help")
    assert code == 0
    assert "Usage: vcotta" in out
    if "Commands:" in out:
        assert "..." not in out.split("Commands:")[1]  # no help text is cut


def test_methods_are_listed_with_their_options(command) -> None:
    code, out, _ = command("methods")
    assert code == 0
    assert all(name in out for name in vcotta.list_methods())
    assert "kl_weight=" in out


def test_info_names_versions_device_and_cache(command, tmp_path) -> None:
    code, out, _ = command("info")
    assert code == 0
    assert vcotta.__version__ in out
    assert str(tmp_path / "cache") in out
    assert "procedural" in out


MISTAKES = {
    "an unknown method": (["run", "--method", "vcota", "--out", "x"], "Did you mean 'vcotta'"),
    "an unknown data set": (["run", "--method", "bn", "--dataset", "digit", "--out", "x"], "Did you mean 'digits'"),
    "an unknown option of a method": (["run", "--method", "tent", "--out", "x", "--set", "rl=1"], "'lr'"),
    "a malformed setting": (["run", "--method", "tent", "--out", "x", "--set", "lr"], "OPTION=VALUE"),
    "a severity of 0": (["run", "--method", "bn", "--out", "x", "--severity", "0"], "1 to 5"),
    "a batch size of 0": (["run", "--method", "bn", "--out", "x", "--batch-size", "0"], "batch_size"),
    "no weights": (["run", "--method", "bn", "--dataset", "cifar10", "--out", "x"], "cifar10"),
    "data that is not prepared": (["run", "--method", "bn", "--dataset", "cifar100", "--out", "x"], "cifar100"),
    "weights that are not there": (["run", "--method", "vcotta", "--out", "x", "--weights", "w"], "w"),
    "a missing option": (["run", "--out", "x"], "--method"),
    "an unknown option": (["run", "--methd", "bn"], "--methd"),
    "an unknown command": (["rum"], "rum"),
    "an unknown corruption": (["corrupt", "a.png", "--name", "smog", "--out", "b.png"], "fog"),
    "a file that is not there": (["corrupt", "none.png", "--name", "fog", "--out", "b.png"], "none.png"),
    "data that cannot be fetched": (["data", "fetch", "frst"], "Did you mean 'frost'"),
    "nothing to tune": (["tune", "--method", "bn", "--out", "x.json"], "none to search"),
    "seeds that are not numbers": (["tune", "--method", "tent", "--out", "x", "--seeds", "a"], "whole numbers"),
    "a negative seed": (["demo", "--seed", "-1"], "seed"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_users_mistake_is_one_line_and_exit_code_2(command, mistake, tmp_path) -> None:
    arguments, text = MISTAKES[mistake]
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    code, _, err = command(*arguments)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("Error: ")
    assert text in err
    assert not (tmp_path / "x").exists()


def test_images_folders_and_arrays_are_corrupted(command, tmp_path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    (tmp_path / "in" / "sub").mkdir(parents=True)
    for k, path in enumerate(("a.png", "b.png", "sub/c.png")):
        Image.fromarray(pixels[k]).save(tmp_path / "in" / path)
    np.save(tmp_path / "in.npy", pixels)
    expected = vcotta.corrupt(pixels, "contrast", 3, seed=4)
    options = ("--name", "contrast", "--severity", "3", "--seed", "4", "--out")
    assert command("corrupt", "in", *options, "out")[0] == 0
    assert command("corrupt", "in.npy", *options, "out.npy")[0] == 0
    assert command("corrupt", "in/a.png", *options, "one.png")[0] == 0
    for k, path in enumerate(("a.png", "b.png", "sub/c.png")):
        assert np.array_equal(np.asarray(Image.open(tmp_path / "out" / path)), expected[k])
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "one.png")), expected[0])


@pytest.fixture
def untrained(monkeypatch) -> None:
    """Let "training" return the network as it was made."""
    monkeypatch.setattr(setup, "train", lambda model, *_, **__: model.eval())


def test_a_run_records_itself_and_is_not_overwritten_unasked(command, untrained, tmp_path) -> None:
    arguments = ("run", "--method", "tent", "--out", "runs/tent", "--limit", "20", "--batch-size", "10")
    code, out, _ = command(*arguments, "--set", "lr=0.02")
    assert code == 0
    assert "jpeg compression" in out
    manifest = json.loads((tmp_path / "runs/tent/manifest.json").read_text())
    assert manifest["config"] == {"lr": 0.02, "optimizer": "adam"}
    assert manifest["stream"]["images_per_domain"] == 20
    assert (manifest["dataset"], manifest["network"], manifest["frost"]) == ("digits", "digits", "procedural")
    assert len((tmp_path / "runs/tent/records.jsonl").read_text().splitlines()) == 30
    code, _, err = command(*arguments)
    assert code == 2
    assert "overwrite" in err
    assert command(*arguments, "--overwrite")[0] == 0


def test_tune_looks_at_the_extra_corruptions_only_and_writes_what_it_found(command, untrained, tmp_path) -> None:
    code, out, _ = command(
        "tune", "--method", "tent", "--out", "found.json", "--grid", "lr=1e-4,1e-3", "--limit", "20", "--seeds", "0,1"
    )
    assert code == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["corruptions"] == ["speckle_noise", "gaussian_blur", "spatter", "saturate"]
    assert found["seeds"] == [0, 1]
    assert sorted(trial["options"]["lr"] for trial in found["trials"]) == [1e-4, 1e-3]
    assert found["trials"][0]["error"] <= found["trials"][1]["error"]
    assert "--set lr=" in out


@pytest.fixture
def cifar(tmp_path):
    """A tiny CIFAR-10 in the official binary format, and the same as CIFAR-10-C."""
    generator = np.random.default_rng(0)
    folder = tmp_path / "root" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        records = generator.integers(0, 256, (20, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(CIFAR10_CLASSES) + "\n")
    return tmp_path / "root"


CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@pytest.fixture
def tiny_counts(monkeypatch):
    """CIFAR-10's facts, but for the number of images."""
    from vcotta.data import cifar_facts

    facts = cifar_facts.CIFAR["cifar10"]
    small = {
        split: {stem: file._replace(images=20) for stem, file in files.items()} for split, files in facts.files.items()
    }
    monkeypatch.setitem(cifar_facts.CIFAR, "cifar10", dataclasses.replace(facts, files=small))


def test_cifar10_from_prepared_files_to_a_recorded_run(command, cifar, tiny_counts, tmp_path) -> None:
    code, _, err = command("data", "prepare", "cifar10", "--root", str(cifar))
    assert code == 2
    assert "SHA-256" in err
    assert command("data", "prepare", "cifar10", "--root", str(cifar), "--no-verify")[0] == 0
    assert "100 train, 20 test" in command("data", "list")[1]
    device = ("--device", "cpu")
    code, out, _ = command(
        "train", "--dataset", "cifar10", "--model", "wrn-10-1", "--epochs", "1", "--out", "w.safetensors", *device
    )
    assert code == 0
    assert "error on clean test images" in out
    assert not list(tmp_path.glob("*.training"))
    assert command("train", "--dataset", "cifar10", "--out", "w.safetensors", *device)[0] == 2
    network = ("--dataset", "cifar10", "--model", "wrn-10-1", "--weights", "w.safetensors", *device)
    assert command("check", *network)[0] in (0, 1)
    assert command("warmup", *network, "--epochs", "1", "--out", "warm.safetensors")[0] == 0
    code, out, _ = command("corrupt", "cifar10", "--out", "c", "--severity", "5", *device)
    assert code == 0
    warmed = ("--dataset", "cifar10", "--model", "wrn-10-1", "--weights", "warm.safetensors", *device)
    for name, more in (("fly", ()), ("files", ("--corrupted", "c"))):
        assert command("run", "--method", "vcotta", *warmed, "--set", "views=1", "--out", name, *more)[0] == 0
    made, read = (json.loads((tmp_path / name / "manifest.json").read_text())["stream"] for name in ("fly", "files"))
    assert (made["pixels"], read["pixels"]) == ("generated", "files")
    assert (tmp_path / "fly/records.jsonl").read_bytes() == (tmp_path / "files/records.jsonl").read_bytes()

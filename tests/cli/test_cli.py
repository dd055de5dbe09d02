from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vcotta
from vcotta._util.tensorfile import read_state
from vcotta.cli.options import parse_grid, parse_settings
from vcotta.data import imagenet
from vcotta.data.cifar import CIFAR
from vcotta.experiments import build


def test_version_is_printed_by_the_module_too() -> None:
    out = subprocess.run([sys.executable, "-m", "vcotta", "--version"], capture_output=True, text=True, check=True)
    assert out.stdout == f"vcotta {vcotta.__version__}\n"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "demo",
        "methods",
        "corrupt",
        "train",
        "check",
        "warmup",
        "run",
        "tune",
        "info",
        "bundle",
        "serve",
        "data",
        "data prepare",
        "reproduce",
    ],
)
def test_every_command_explains_itself(command, name) -> None:
    code, out, _ = command(*name.split(), "--help")
    assert code == 0
    assert "Usage: vcotta" in out
    if "Commands:" in out:
        assert "..." not in out.split("Commands:")[1]  # no help text is cut


def test_methods_are_listed_with_what_they_need_and_cost(command) -> None:
    code, out, _ = command("methods")
    assert code == 0
    for name in vcotta.list_methods():
        method = vcotta.methods.find_method(name)
        assert f" {name} " in out
        assert method.card.venue in out


@pytest.mark.parametrize("width", [80, 120])
def test_methods_on_a_narrow_terminal_are_names_and_what_they_do_without_broken_words(
    command, monkeypatch, width
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": str(width)}.items():
        monkeypatch.setenv(name, value)
    out = re.sub(r"\x1b\[[0-9;]*m", "", command("methods")[1])
    assert max(map(len, out.splitlines())) <= width
    cells = [line.split("│")[1:-1] for line in out.splitlines() if line.startswith("│")]
    words = " ".join(what for _, what in cells).split()
    for name in vcotta.list_methods():
        assert vcotta.methods.marked(name) in [cell.strip() for cell, _ in cells]
        assert set(vcotta.methods.find_method(name).summary.split()) <= set(words)
    assert "vcotta methods NAME" in out


def test_a_methods_page_has_the_facts_that_a_narrow_table_leaves_out(command) -> None:
    out = command("methods", "eata")[1]
    assert "Venue: ICML 2022\n" in out
    assert "Needs of the source: 2000 images" in out
    assert "Cost of a batch: 1 forward, 1 backward" in out


def test_an_interruption_prints_a_line_and_exits_with_130(command, monkeypatch) -> None:
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "train", interrupted)
    code, _, err = command("run", "--method", "bn", "--out", "x")
    assert code == 130
    assert "Interrupted" in err


def test_a_method_explains_its_options(command) -> None:
    code, out, _ = command("methods", "vcotta")
    assert code == 0
    assert "margin: Epsilon of the view filter" in out
    assert "\nOn digits: " in out
    assert "flip=False" in out.splitlines()[-2]
    assert "\nOn " not in command("methods", "source")[1]
    assert command("methods", "vcota")[0] == 2
    assert "Step size" in command("methods", "vcotta.methods:TENT")[1]
    assert "label_prior: Infer the label prior" in command("methods", "tent")[1]


@pytest.mark.parametrize("name", vcotta.list_methods())
def test_a_methods_formulas_are_printed_as_text_without_markup(command, name) -> None:
    out = command("methods", name)[1]
    assert not [mark for mark in (":math:", ".. math", "\\", "``", "{", "$") if mark in out.partition("Defaults:")[0]]


def test_info_names_versions_device_and_cache(command, tmp_path) -> None:
    code, out, _ = command("info")
    assert code == 0
    assert vcotta.__version__ in out
    assert str(tmp_path / "cache") in out
    assert "procedural" in out


def test_info_shows_the_size_of_the_parts_of_the_cache(command, tmp_path) -> None:
    (tmp_path / "cache" / "warmed").mkdir(parents=True)
    (tmp_path / "cache" / "warmed" / "a").write_bytes(bytes(3 * 2**19))
    lines = [line.split(maxsplit=1) for line in command("info")[1].splitlines()]
    assert ["warmed", "1.5 MiB in 1 file"] in lines
    assert ["data", "empty"] in lines


@pytest.mark.parametrize("name", ["", "data"])
def test_without_arguments_the_help_is_printed_line_by_line(command, name) -> None:
    asked = command(*name.split(), "--help")
    assert command(*name.split()) == asked
    assert len(asked[1].splitlines()) > 8


def test_settings_are_read_as_what_they_are(command) -> None:
    read = parse_settings(["flip=false", "views=8", "kl-lambda=None", "sampling=none", "alpha=entropy"], "vcotta")
    assert read == {"flip": False, "views": 8, "kl_lambda": None, "sampling": "none", "alpha": "entropy"}
    assert parse_settings(["threshold=none", "flip=TRUE"], "cotta") == {"threshold": None, "flip": True}
    assert parse_grid(["sampling=none,local", "flip=True,false"], "vcotta") == {
        "sampling": ["none", "local"],
        "flip": [True, False],
    }


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


PETS = """
from torch import nn
def linear(classes):
    return nn.Sequential(nn.BatchNorm2d(3), nn.AvgPool2d(56), nn.Flatten(), nn.Linear(48, classes))
"""


@pytest.fixture
def network(tmp_path):
    """Arguments that name a network of one's own, made for any number of classes, and its weights."""
    from safetensors.torch import save_file

    from vcotta.models import build_network

    def make(classes: int, code: str = PETS) -> tuple[str, ...]:
        (tmp_path / "net.py").write_text(code)
        name = f"{tmp_path / 'net.py'}:linear"
        save_file(build_network(name, classes).state_dict(), tmp_path / "net.safetensors")
        return "--model", name, "--weights", str(tmp_path / "net.safetensors"), "--device", "cpu"

    return make


def _save(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, "JPEG")


def test_anybodys_images_are_taken_as_they_are(command, network, tmp_path) -> None:
    for number in range(6):
        _save(tmp_path / "pets" / ("cat", "dog")[number % 2] / f"{number}.jpg", number)
    data = ("--dataset", f"folder:{tmp_path / 'pets'}", *network(2))
    code, out, _ = command("run", "--method", "bn", *data, "--corruptions", "none", "--out", "as-is")
    assert code == 0
    assert "6 images as they are" in out
    manifest, summary = (
        json.loads((tmp_path / "as-is" / f"{name}.json").read_text()) for name in ("manifest", "summary")
    )
    assert (manifest["stream"]["order"], manifest["stream"]["pixels"]) == (["clean"], "clean")
    assert [(part["domain"], part["severity"], part["n"]) for part in summary["domains"]] == [("clean", 0, 6)]
    assert command("run", "--method", "bn", *data, "--corruptions", "fog, contrast", "--out", "two")[0] == 0
    assert json.loads((tmp_path / "two" / "manifest.json").read_text())["stream"]["order"] == ["fog", "contrast"]
    code, _, err = command("run", "--method", "bn", *data[:4], "--out", "no-weights")
    assert code == 2
    assert "vcotta train" not in err


def test_a_network_is_warmed_up_on_anybodys_folder(command, network, tmp_path) -> None:
    for number in range(8):
        _save(tmp_path / "source" / ("cat", "dog")[number % 2] / f"{number}.jpg", number)
    data = ("--dataset", f"folder:{tmp_path / 'source'}@32", *network(2, PETS.replace("56", "8")))
    assert command("warmup", *data, "--epochs", "1", "--no-flip", "--out", "warm.safetensors")[0] == 0
    about = read_state(tmp_path / "warm.safetensors", "vcotta-warmed-1")["about"]
    assert (about["config"]["epochs"], about["config"]["flip"]) == (1, False)
    warmed = (*data[:4], "--weights", "warm.safetensors")
    run = ("run", "--method", "vcotta", "--set", "views=1", "--corruptions", "none")
    assert command(*run, *warmed, "--out", "adapted")[0] == 0
    manifest = json.loads((tmp_path / "adapted" / "manifest.json").read_text())
    assert manifest["stream"]["data"]["image_shape"] == [32, 32, 3]
    code, _, err = command(*run, *data, "--out", "not-warmed")  # a test folder is never taken for source data
    assert code == 2
    assert "Expected training images" in err
    assert "--source folder:DIR" in err
    assert "vcotta warmup --dataset folder:DIR" in err
    code, _, err = command("train", "--dataset", "imagenet", "--model", "resnet-20", "--out", "t.safetensors")
    assert code == 2
    assert (
        "with settings for training, digits, cifar10, cifar100, tiny-imagenet and folder:DIR, but got imagenet" in err
    )


@pytest.mark.parametrize("method", ["eata", "vcotta"])
def test_a_method_learns_from_the_source_folder_it_is_given(command, network, method, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))
    for number in range(8):
        _save(tmp_path / "source" / ("cat", "dog")[number % 2] / f"{number}.jpg", number)
        _save(tmp_path / "pets" / ("cat", "dog")[number % 2] / f"{number}.jpg", 100 + number)
    data = ("--dataset", f"folder:{tmp_path / 'pets'}@32", *network(2, PETS.replace("56", "8")))
    run = ("run", "--method", method, *data, "--corruptions", "none", "--out", "learned")
    assert command(*run)[0] == 2
    _save(tmp_path / "few" / "dog" / "0.jpg", 0)
    code, _, err = command(*run, "--source", f"folder:{tmp_path / 'few'}")
    assert code == 2
    assert "to have the classes of the stream in the same order, but got dog in place of cat" in err
    assert command(*run, "--source", f"folder:{tmp_path / 'nowhere'}")[0] == 2
    assert command(*run, "--source", f"folder:{tmp_path / 'source'}")[0] == 0
    assert json.loads((tmp_path / "learned" / "manifest.json").read_text())["spec"]["source"].endswith("source")
    assert len([*(tmp_path / "cache").glob("*/*.safetensors")]) == 1  # what was learned, at the size of the stream


def test_imagenet_c_is_read_by_subset_by_list_and_resized_twice_only_on_request(
    command, network, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(imagenet, "CLASSES", 2)
    names = [f"n0000000{number % 2}/ILSVRC2012_val_{number:08d}.JPEG" for number in range(4)]
    for number, name in enumerate(names):
        _save(tmp_path / "C" / "fog" / "5" / name, number)
    (tmp_path / "list.txt").write_text(names[3] + "\n")
    own = ("--dataset", "imagenet", *network(1000), "--corrupted", "C", "--corruptions", "fog")

    def stream(out: str, *options: str):
        code, _, err = command("run", "--method", "source", *own, "--out", out, *options)
        return json.loads((tmp_path / out / "manifest.json").read_text())["stream"] if code == 0 else err

    assert stream("all")["images_per_domain"] == 4
    assert stream("subset", "--subset", "2")["images_per_domain"] == 2
    assert stream("list", "--list", "list.txt")["images_per_domain"] == 1
    assert "a second time" in stream("twice", "--preprocess", "res256crop224")
    legacy = stream("legacy", "--preprocess", "res256crop224", "--legacy")
    assert legacy["preprocessing"] == "res256crop224, uint8 / 255"
    assert "preprocess" in stream("unknown", "--preprocess", "crop")


def test_imagenet_is_prepared_by_a_list_without_resizing(command, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(imagenet, "CLASSES", 2)
    names = [f"n0000000{number % 2}/ILSVRC2012_val_{number:08d}.JPEG" for number in range(4)]
    for number, name in enumerate(names):
        _save(tmp_path / "val" / name, number)
    (tmp_path / "list.txt").write_text("\n".join(names[1:]))
    arguments = ("data", "prepare", "imagenet", "--root", ".", "--list", "list.txt")
    assert "a second time" in command(*arguments)[2]
    assert command(*arguments, "--preprocess", "none")[0] == 0
    assert "3 test" in command("data", "list")[1]


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
    facts = CIFAR["cifar10"]
    small = {
        split: {stem: file._replace(images=20) for stem, file in files.items()} for split, files in facts.files.items()
    }
    monkeypatch.setitem(CIFAR, "cifar10", dataclasses.replace(facts, files=small))


@pytest.mark.slow
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
    code, out, err = command("check", *network)  # an epoch on noise teaches nothing, and the check says so
    assert code == 1
    assert "Expected an error well below chance" in out
    assert command("run", "--method", "bn", *network[:4], *device, "--out", "none")[2].startswith(
        "Error: Expected `weights`"
    )
    assert command("warmup", *network, "--epochs", "1", "--out", "warm.safetensors")[0] == 0
    code, out, _ = command("corrupt", "cifar10", "--out", "c", "--severity", "5", *device)
    assert code == 0
    warmed = ("--dataset", "cifar10", "--model", "wrn-10-1", "--weights", "warm.safetensors", *device)
    few = ("--set", "views=1", "--corruptions", "gaussian_noise,fog,jpeg_compression")
    for name, more in (("fly", ()), ("files", ("--corrupted", "c"))):
        assert command("run", "--method", "vcotta", *warmed, *few, "--out", name, *more)[0] == 0
    made, read = (json.loads((tmp_path / name / "manifest.json").read_text())["stream"] for name in ("fly", "files"))
    assert (made["pixels"], read["pixels"]) == ("generated", "files")
    assert (tmp_path / "fly/records.jsonl").read_bytes() == (tmp_path / "files/records.jsonl").read_bytes()
    for name in ("once", "again"):  # the second time with the warmed network of the first, from the cache folder
        code, _, err = command(
            "run", "--method", "vcotta", *network, "--set", "views=1", "--corruptions", "fog", "--out", name
        )
        assert code == 0
        assert ("from the cache" in err) == (name == "again")
    assert (tmp_path / "once/records.jsonl").read_bytes() == (tmp_path / "again/records.jsonl").read_bytes()
    (note,) = (tmp_path / "cache" / "warmed").glob("*.json")
    assert {"sha256", "licence", "weights_sha256", "data_sha256"} <= json.loads(note.read_text()).keys()
    assert len(list((tmp_path / "cache" / "warmed").glob("*.safetensors"))) == 1


def test_a_method_with_presets_says_how_to_choose_one(command) -> None:
    assert "Presets: best, paper, authors; choose one with --set preset=NAME." in command("methods", "vcotta")[1]
    assert "Presets" not in command("methods", "tent")[1]

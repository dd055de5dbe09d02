"""Bundles and checkpoints that were damaged or forged: refused with the documented error, and nothing is run."""

from __future__ import annotations

import copy
import json
import random
import struct
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import vcotta
from vcotta import build_adapter
from vcotta._util.tensorfile import read_state, write_state
from vcotta.runs.checkpoints import restore, save_checkpoint
from vcotta.serve.adapters import Adapters
from vcotta.serve.bundle import load_bundle
from vcotta.serve.engine import Engine

MANIFEST = {"bundle": "x", "method": "tent"}
ODD: list[Any] = [
    None, True, -1, 0, 1, 10**9, 10**30, 0.5, float("nan"), float("inf"), "", "a", "os:system", "wrn-994-99", [], {},
    [1] * 50, [[[]]], {"tensor": "a"}, {"items": 3}, {"list": None}, "torch.nn.modules.linear:Linear", "posix:system",
    "builtins:eval", "x" * 10_000, torch.zeros(0), torch.zeros(3), torch.full((2, 2), float("nan")),
]  # fmt: skip


def damaged_bytes(content: bytes, draw: random.Random) -> bytes:
    """Change, cut, repeat or insert some bytes, most often in the header."""
    data = bytearray(content)
    header = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(draw.choice((1, 1, 2, 8))):
        place = draw.randrange(len(data)) if draw.random() < 0.3 else draw.randrange(min(header, len(data)))
        kind = draw.randrange(5)
        if kind == 0:
            data[place] = draw.randrange(256)
        elif kind == 1:
            data[place] ^= 1 << draw.randrange(8)
        elif kind == 2:
            data[place:place] = draw.randbytes(draw.randrange(1, 20))
        elif kind == 3:
            del data[place : place + draw.choice((1, 4, 100))]
        else:
            data[place:place] = data[place : place + draw.randrange(1, 50)]
        if not data:
            data = bytearray(b"\0")
    return bytes(data[: draw.randrange(1, len(data) + 1)] if draw.random() < 0.1 else data)


def forged_header(content: bytes, draw: random.Random) -> bytes:
    """Change what the JSON header says of tensors and metadata, and keep the file well-formed."""
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    name = draw.choice(list(header))
    kind = draw.randrange(6)
    if name == "__metadata__" or kind == 0:
        about = header["__metadata__"]["vcotta"]
        cut = draw.randrange(len(about))
        header["__metadata__"]["vcotta"] = draw.choice(
            (about[:cut], "[" * 100_000, "{}", "null", "[]", about.replace('"sha256"', '"sha-256"'), about * 2)
        )
    elif kind == 1:
        header[name]["dtype"] = draw.choice(("F64", "F16", "I8", "BOOL", "F8_E4M3", "F4", "C64", "U64", "", "X"))
    elif kind == 2:
        header[name]["shape"] = draw.choice(([], [0], [-1], [2**62, 2**62], [1], [10**9], ["a"], None))
    elif kind == 3:
        header[name]["data_offsets"] = draw.choice(([0, 0], [0, 2**63], [5, 1], [-4, 4], [0], None))
    elif kind == 4:
        del header[name]
    else:
        header["../" + name] = header[name]
    written = json.dumps(header).encode()
    return struct.pack("<Q", len(written)) + written + content[8 + size :]


def forged_state(state: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Put something odd anywhere into a state, which is then sealed with a right hash."""
    state = copy.deepcopy(state)
    for _ in range(draw.choice((1, 1, 1, 3))):
        place: Any = state
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw.choice(keys)
            if isinstance(place[key], (dict, list)) and place[key] and draw.random() < 0.8:
                place = place[key]
                continue
            kind = draw.randrange(4)
            if kind == 0 and isinstance(place, dict):
                del place[key]
            elif kind == 1 and isinstance(place, dict):
                place[draw.choice(("more", "__class__", "name", "0"))] = copy.deepcopy(draw.choice(ODD))
            else:
                place[key] = copy.deepcopy(draw.choice(ODD))
            break
        if not state:
            break
    return state


FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "subprocess.Popen",
    "pickle.find_class",
    "socket.connect",
)
heard: list[str] | None = None


def listen(event: str, _: Any) -> None:
    """Python tells this of all that matters: processes, pickles, connections."""
    if heard is not None and event in FORBIDDEN:
        heard.append(event)


@pytest.fixture(scope="module", autouse=True)
def watched():
    """Listen while the tests of this file last; a hook cannot be taken off again."""
    global heard
    sys.addaudithook(listen)
    heard = []
    yield
    heard = None


def attack(path: Path, kind: str, read: Callable[[Path], object], count: int, seed: int, tmp_path: Path) -> int:
    """Read so many changed files; return how many were refused. Any error but the documented one ends the test."""
    draw, content, state = random.Random(seed), path.read_bytes(), read_state(path, kind)
    target, refused = tmp_path / path.name, 0
    before = set(sys.modules)
    assert heard == []
    for number in range(count):
        how = number % 3
        if how == 2:
            try:
                write_state(target, kind, forged_state(state, draw))
            except (ValueError, TypeError, OverflowError):  # what cannot be written is no file
                continue
        else:
            target.write_bytes((damaged_bytes, forged_header)[how](content, draw))
        try:
            read(target)
        except ValueError:
            refused += 1
        target.unlink(missing_ok=True)
    assert heard == []
    assert not {name for name in set(sys.modules) - before if not name.startswith(("torch.", "numpy.", "vcotta."))}
    return refused


def small_adapter():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(72, 3)
        )
    adapter = build_adapter("tent", net.eval())
    adapter(torch.rand(4, 3, 8, 8))
    return adapter


def fuzz_bundles(bundle_path: Path, tmp_path: Path, count: int, seed: int) -> None:
    def read(path: Path) -> None:
        Engine(Adapters(load_bundle(path)))

    assert attack(bundle_path, "vcotta-bundle-1", read, count, seed, tmp_path) > count / 2


def fuzz_checkpoints(tmp_path: Path, count: int, seed: int) -> None:
    adapter = small_adapter()
    (tmp_path / "kept").mkdir()
    save_checkpoint(tmp_path / "kept", MANIFEST, adapter, 1, {})
    place = tmp_path / "run" / "checkpoints"
    place.mkdir(parents=True)

    def read(path: Path) -> None:
        path.replace(place / "1.safetensors")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if restore(tmp_path / "run", MANIFEST, adapter) is None:
                raise ValueError("refused")

    path = tmp_path / "kept" / "checkpoints" / "1.safetensors"
    assert attack(path, "vcotta-run-1", read, count, seed, tmp_path) > count / 2


def fuzz_adapters(tmp_path: Path, count: int, seed: int) -> None:
    adapter = small_adapter()
    vcotta.save(adapter, tmp_path / "kept.vcotta")
    (tmp_path / "changed").mkdir()
    path = tmp_path / "kept.vcotta"
    assert (
        attack(path, "vcotta-adapter-1", lambda p: vcotta.load(p, adapter.start), count, seed, tmp_path / "changed")
        > count / 2
    )


def test_a_few_damaged_files_are_refused_and_run_nothing(bundle_path, tmp_path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    fuzz_bundles(bundle_path, tmp_path / "a", 45, 0)
    fuzz_checkpoints(tmp_path / "b", 45, 0)
    fuzz_adapters(tmp_path / "c", 45, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_thousands_of_damaged_bundles_are_refused_and_run_nothing(bundle_path, tmp_path, seed) -> None:
    fuzz_bundles(bundle_path, tmp_path, 1500, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_thousands_of_damaged_checkpoints_are_refused_and_run_nothing(tmp_path, seed) -> None:
    fuzz_checkpoints(tmp_path, 1500, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_thousands_of_damaged_adapters_are_refused_and_run_nothing(tmp_path, seed) -> None:
    fuzz_adapters(tmp_path, 1500, seed)

"""Tiny data sets in the official formats, with the published facts replaced to fit them."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vcotta.data.cifar import CIFAR, NPM_ARCHIVE, File

PER_FILE = 4


@dataclasses.dataclass
class TinyCifar:
    """Random records in the layout of the official binary files, and every published form of them."""

    name: str
    records: dict[str, np.ndarray]

    @property
    def facts(self):
        return CIFAR[self.name]

    def binary(self) -> dict[str, bytes]:
        return {f"{stem}.bin": records.tobytes() for stem, records in self.records.items()}

    def python(self) -> dict[str, bytes]:
        coarse = len(self.facts.class_names) == 100
        files = {}
        for stem, records in self.records.items():
            labels = records[:, : self.facts.label_bytes].T.tolist()
            keys = [b"coarse_labels", b"fine_labels"] if coarse else [b"labels"]
            batch = {
                b"batch_label": b"a batch",
                b"data": records[:, self.facts.label_bytes :].copy(),
                **dict(zip(keys, labels, strict=True)),
            }
            files[stem] = pickle.dumps(batch, protocol=2)
        return files

    def npm(self) -> dict[str, bytes]:
        files, labels = {}, {"train": [], "test": []}
        for stem, records in self.records.items():
            pixels = records[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1)
            buffer = io.BytesIO()
            Image.fromarray(pixels).save(buffer, "PNG")
            files[f"{stem}.png"] = buffer.getvalue()
            labels["test" if "test" in stem else "train"] += records[:, 0].tolist()
        return files | {f"{split}_lables.json": json.dumps(values).encode() for split, values in labels.items()}

    def put(self, root: Path, form: str) -> Path:
        """Write one form into ``root``: binary, python (folders), binary.tar, python.tar or npm."""
        kind = form.removesuffix(".tar")
        files = getattr(self, kind)()
        folder = {"binary": self.facts.binary_folder, "python": self.facts.python_folder, "npm": "package"}[kind]
        archive = {"binary": self.facts.binary_archive, "python": self.facts.python_archive, "npm": NPM_ARCHIVE}[kind]
        if form in ("binary", "python"):
            return write_folder(root / folder, files)
        return write_tar(root / archive, {f"{folder}/{name}": contents for name, contents in files.items()})

    def images(self, *stems: str) -> np.ndarray:
        records = np.concatenate([self.records[stem] for stem in stems])
        return records[:, self.facts.label_bytes :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, contents in files.items():
        (folder / name).write_bytes(contents)
    return folder


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, contents in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))
    return path


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tiny_cifar(monkeypatch) -> Callable[[str], TinyCifar]:
    """A factory of tiny stand-ins for CIFAR-10 and CIFAR-100, which count as the official ones."""

    def make(name: str = "cifar10") -> TinyCifar:
        rng, facts = np.random.default_rng(len(name)), CIFAR[name]
        tiny = TinyCifar(name, {})
        files = {}
        for split, official in facts.files.items():
            files[split] = {}
            for stem in official:
                records = rng.integers(0, 256, (PER_FILE, facts.label_bytes + 3072), dtype=np.uint8)
                records[:, : facts.label_bytes] %= 10
                tiny.records[stem] = records
                files[split][stem] = File(PER_FILE, hashlib.sha256(records.tobytes()).hexdigest())
        monkeypatch.setitem(CIFAR, name, dataclasses.replace(facts, files=files))
        return tiny

    return make


@pytest.fixture
def save_image() -> Callable[..., Path]:
    """A function that writes a random image of a given size."""

    def save(path: Path, size: tuple[int, int] = (224, 224), seed: int = 0) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        # Pillow reads the format from the content, so PNG under a JPEG's name keeps every pixel
        Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST).save(path, "PNG")
        return path

    return save


@pytest.fixture
def make_tar() -> Callable[[Path, dict[str, bytes]], Path]:
    """A function that writes a tar archive."""
    return write_tar

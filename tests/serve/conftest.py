"""A small bundle, a service that runs it, and images to send."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vcotta import build_adapter, to_variational
from vcotta.methods import find_method
from vcotta.models import build_network
from vcotta.serve import Bundle, Preprocess, load_bundle, make_bundle, save_bundle
from vcotta.serve.service import Service

NAMES = ("ant", "bee", "cat", "dog")


def small_bundle(method: str = "tent", **options: object) -> Bundle:
    """A bundle of a network with four classes for images of 8 x 8."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = build_network("wrn-10-1", 4, base=4)
        net.train()
        net(torch.rand(64, 3, 8, 8))
    started = to_variational(net.eval()) if find_method(method).needs_variational else net.eval()
    adapter = build_adapter(method, started, **options)
    return make_bundle(adapter, "wrn-10-1", NAMES, Preprocess(8), batch_size=6, base=4)


def same_state(one, other) -> bool:
    """Whether two nested states are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_state(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_state, one, other))
    return one == other


@pytest.fixture(scope="session")
def bundle_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "small.bundle"
    save_bundle(small_bundle(lr=0.01), path)
    return path


@pytest.fixture
def bundle(bundle_path) -> Bundle:
    return load_bundle(bundle_path)


@pytest.fixture
def service(bundle, tmp_path):
    with Service(bundle, state=tmp_path / "state", wait=0.0) as running:
        yield running


@pytest.fixture
def npy() -> Callable[[Tensor | np.ndarray], bytes]:
    """What numpy.save writes of an array."""

    def make(images: Tensor | np.ndarray) -> bytes:
        file = io.BytesIO()
        np.save(file, images.numpy() if isinstance(images, Tensor) else images, allow_pickle=True)
        return file.getvalue()

    return make


@pytest.fixture
def png() -> Callable[..., bytes]:
    """An image file."""

    def make(width: int = 8, height: int = 8, mode: str = "RGB", kind: str = "PNG", seed: int = 0, **more) -> bytes:
        file = io.BytesIO()
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(pixels).convert(mode).save(file, kind, **more)
        return file.getvalue()

    return make


@pytest.fixture(scope="module")
def vcotta_bundle() -> Bundle:
    return small_bundle("vcotta", views=1, lr=0.01, statistics="batch", label_prior=False)


@pytest.fixture
def vcotta_path(vcotta_bundle, tmp_path, monkeypatch):
    """Its file, for replicas in this process."""
    monkeypatch.setattr("vcotta.serve.replica.log_to", lambda _: None)  # would stay after the test
    save_bundle(vcotta_bundle, tmp_path / "vcotta.bundle")
    return tmp_path / "vcotta.bundle"


@pytest.fixture
def fleet(vcotta_path, tmp_path):
    """Two replicas that serve it."""
    from .two_replicas import Fleet

    made = Fleet(vcotta_path, tmp_path / "state")
    yield made
    made.close()

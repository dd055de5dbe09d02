from __future__ import annotations

import pytest

from vcotta.bayes import save_warmed, to_variational
from vcotta.experiments import networks, setup


@pytest.fixture
def untrained(monkeypatch) -> None:
    """Let "training" return the network as it was made: quick, and enough wherever accuracy does not matter."""
    monkeypatch.setattr(setup, "train", lambda model, *_, **__: model.eval())


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """An untrained network and a warm-up of no length, in a cache of their own."""
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(networks, "train_network", lambda benchmark, seed, runtime: benchmark.build(None, seed=seed))
    monkeypatch.setattr(networks, "warm_network", _no_warm_up)
    return tmp_path


def _no_warm_up(benchmark, model, *, seed, runtime, path):
    warmed = to_variational(model)
    save_warmed(warmed, path)
    return warmed

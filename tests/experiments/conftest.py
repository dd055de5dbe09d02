from __future__ import annotations

from dataclasses import replace

import pytest

from vcotta.bayes import save_warmed, to_variational
from vcotta.experiments import build
from vcotta.experiments.paper.experiment import Experiment
from vcotta.runs.spec import RunSpec
from vcotta.streams.protocols import PROTOCOLS


@pytest.fixture
def untrained(monkeypatch, tmp_path) -> None:
    """Let "training" return the network as it was made: quick, and enough wherever accuracy does not matter."""
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "train", lambda model, *_, **__: model.eval())


@pytest.fixture
def quick(untrained, monkeypatch, tmp_path):
    """An untrained network and a warm-up of no length, in a cache of their own."""
    monkeypatch.setattr(build, "warm_up", _no_warm_up)
    return tmp_path


def _no_warm_up(model, *_, path, **__):
    warmed = to_variational(model)
    if path is not None:
        save_warmed(warmed, path)
    return warmed


@pytest.fixture
def on():
    """Return an experiment with its runs on fewer corruptions, but for protocols that have their own."""

    def make(experiment: Experiment, *corruptions: str) -> Experiment:
        def fewer(spec: RunSpec) -> RunSpec:
            return replace(spec, corruptions=corruptions) if PROTOCOLS[spec.protocol].corrupts else spec

        return replace(experiment, specs=lambda chosen: [fewer(spec) for spec in experiment.specs(chosen)])

    return make

from __future__ import annotations

import pytest

from vcotta.experiments import setup


@pytest.fixture
def untrained(monkeypatch) -> None:
    """Let "training" return the network as it was made: quick, and enough wherever accuracy does not matter."""
    monkeypatch.setattr(setup, "train", lambda model, *_, **__: model.eval())

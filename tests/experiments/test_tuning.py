from __future__ import annotations

import pytest

from vcotta.experiments import setup
from vcotta.experiments.benchmark import BENCHMARKS
from vcotta.experiments.tuning import tune


def quiet(label: str, form: str):
    return lambda *values: None


@pytest.mark.parametrize(
    ("space", "options", "text"),
    [
        ({"lrr": [1]}, {}, "'lr'"),
        ({"lr": [1e-3, -1.0]}, {}, "lr"),
        ({"lr": [1e-3]}, {"severities": (0,)}, "1 to 5"),
        ({"lr": [1e-3]}, {"limit": 0}, "limit"),
    ],
)
def test_a_mistake_is_told_before_any_training(space, options, text, monkeypatch) -> None:
    monkeypatch.setattr(setup, "train", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(ValueError, match=text):
        tune(BENCHMARKS["digits"], "tent", space, task=quiet, **options)

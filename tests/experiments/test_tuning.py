from __future__ import annotations

import itertools

import pytest

from vcotta.experiments import setup
from vcotta.experiments.benchmark import BENCHMARKS
from vcotta.experiments.tuning import SPACES, tune
from vcotta.methods import METHODS, configure


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


def test_every_method_with_options_has_a_space_of_settings_that_it_takes() -> None:
    assert SPACES.keys() == METHODS.keys() - {"source"}
    for method, space in SPACES.items():
        assert 1 <= len(space) <= 5
        for dataset in ("cifar10", "digits"):
            for values in itertools.product(*space.values()):
                options = dict(zip(space, values, strict=True))
                config = configure(method, dataset=dataset, **options)
                assert {key: getattr(config, key) for key in options} == options


@pytest.mark.parametrize("method", sorted(SPACES.keys() - {"bn"}))
def test_the_published_settings_are_among_those_tried(method) -> None:
    usual = configure(method, dataset="cifar10")
    assert all(getattr(usual, option) in values for option, values in SPACES[method].items())

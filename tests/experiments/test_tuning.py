from __future__ import annotations

import itertools

import pytest

from vcotta.experiments import setup, tuning
from vcotta.experiments.benchmark import BENCHMARKS
from vcotta.experiments.tuning import SPACES, searched, tune
from vcotta.methods import METHODS, configure
from vcotta.methods.elsewhere import known_method


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


def test_an_interrupted_search_tries_only_what_is_missing(untrained, tmp_path, monkeypatch) -> None:
    make, tried, most = tuning.adapter_for, [], [2]

    def counted(*given, lr, **more):
        if len(tried) == most[0]:
            raise KeyboardInterrupt
        tried.append(lr)
        return make(*given, lr=lr, **more)

    def search(rates, limit=20, kept=tmp_path / "found.json.tuning"):
        return tune(BENCHMARKS["digits"], "tent", {"lr": rates}, limit=limit, task=quiet, checkpoint=kept)

    monkeypatch.setattr(tuning, "adapter_for", counted)
    rates = [1e-4, 1e-3, 1e-2]
    with pytest.raises(KeyboardInterrupt):
        search(rates)
    most[0] = 99
    found = search(rates)
    assert tried == rates
    assert found == search(rates, kept=None)
    assert [row["options"]["lr"] for row in search([1e-3])] == [1e-3]  # what was not asked for is left out
    with pytest.raises(ValueError, match="of another search: limit is 20 there and 30 here"):
        search(rates, limit=30)


def test_a_search_does_not_go_on_with_other_code_of_a_method_of_ones_own(tmp_path) -> None:
    path = tmp_path / "mine.py"
    code = "from vcotta.methods import TENT\nclass Mine(TENT):\n    name = 'mine'\n"
    about = []
    try:
        for text in (code, code, code + "# changed\n"):
            path.write_text(text)
            METHODS.pop("mine", None)
            name = known_method(f"{path}:Mine")
            about.append(searched(BENCHMARKS["digits"], name, (0,), (5,), 20, None, None, None, None))
    finally:
        METHODS.pop("mine", None)
    assert about[0] == about[1]
    assert {key for key in about[0] if about[0][key] != about[2][key]} == {"method_file_sha256"}
    assert searched(BENCHMARKS["digits"], "tent", (0,), (5,), 20, None, None, None, None)["method_file_sha256"] is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"trials": [{}]}'])
def test_a_checkpoint_that_is_none_is_told(text, tmp_path) -> None:
    path = tmp_path / "kept"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"cannot be read\. Move it away"):
        tune(BENCHMARKS["digits"], "tent", {"lr": [1e-3]}, task=quiet, checkpoint=path)


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

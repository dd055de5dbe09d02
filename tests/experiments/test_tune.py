from __future__ import annotations

import itertools

import pytest

from vcotta.experiments import build
from vcotta.experiments import tune as tuning
from vcotta.experiments.tune import SPACES, searched, tune, tune_spec
from vcotta.methods import configure, import_method, list_methods
from vcotta.methods.registry import REGISTERED


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
def test_a_mistake_is_reported_before_any_training(space, options, text, monkeypatch) -> None:
    monkeypatch.setattr(build, "train", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(ValueError, match=text):
        tune(tune_spec("tent", **options), space, task=quiet)


def test_an_interrupted_search_tries_only_what_is_missing(untrained, tmp_path, monkeypatch) -> None:
    run, tried, most = tuning.run_spec, [], [2]

    def counted(spec, **more):
        if len(tried) == most[0]:
            raise KeyboardInterrupt
        tried.append(spec.options["lr"])
        return run(spec, **more)

    def search(rates, limit=20, kept=tmp_path / "found.json.tuning"):
        return tune(tune_spec("tent", limit=limit), {"lr": rates}, task=quiet, checkpoint=kept)

    monkeypatch.setattr(tuning, "run_spec", counted)
    rates = [1e-4, 1e-3, 1e-2]
    with pytest.raises(KeyboardInterrupt):
        search(rates)
    most[0] = 99
    found = search(rates)
    assert tried == rates
    assert found == search(rates, kept=None)
    assert [row["options"]["lr"] for row in search([1e-3])] == [1e-3]  # what was not asked for is left out
    with pytest.raises(ValueError, match=r"of another search: spec\.limit is 20 there and 30 here"):
        search(rates, limit=30)


def test_a_search_does_not_go_on_with_other_code_of_a_method_of_ones_own(tmp_path) -> None:
    path = tmp_path / "mine.py"
    code = "from vcotta.methods import TENT\nclass Mine(TENT):\n    name = 'mine'\n"
    about = []
    try:
        for text in (code, code, code + "# changed\n"):
            path.write_text(text)
            REGISTERED.pop("mine", None)
            name = import_method(f"{path}:Mine")
            about.append(searched(tune_spec(name, limit=20), (0,)))
    finally:
        REGISTERED.pop("mine", None)
    assert about[0] == about[1]
    assert {key for key in about[0] if about[0][key] != about[2][key]} == {"method_file_sha256"}
    assert searched(tune_spec("tent"), (0,))["method_file_sha256"] is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"trials": [{}]}'])
def test_a_file_that_is_no_checkpoint_is_reported(text, tmp_path) -> None:
    path = tmp_path / "kept"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"cannot be read\. Move it away"):
        tune(tune_spec("tent"), {"lr": [1e-3]}, task=quiet, checkpoint=path)


def test_every_method_with_options_has_a_space_of_settings_that_it_takes() -> None:
    assert SPACES.keys() == set(list_methods()) - {"source"}
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

"""Mistakes are one line; the user's own code keeps its traceback."""

from __future__ import annotations

import re
from fractions import Fraction

import httpx
import pytest
import torch

from vcotta.cli.errors import is_from_users_code
from vcotta.experiments import build, grid
from vcotta.methods import registry

METHOD = """
from dataclasses import dataclass
from vcotta.methods import TENT, TENTConfig

@dataclass(frozen=True)
class MineConfig(TENTConfig):
    strength: float = 1.0

class Mine(TENT):
    name = "mine"
    Config = MineConfig

    def predict_and_adapt(self, images):
        return images.nonsense(2)

class Deep(TENT):
    name = "deep"

    def predict_and_adapt(self, images):
        return {}["nothing"] if len(images) < 2 else int("not a number")
"""
NETWORK = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 10)

    def forward(self, x):
        return self.fc(None + x)
"""


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(registry, "REGISTERED", dict(registry.REGISTERED))
    monkeypatch.setattr(build, "train", lambda model, *_, **__: model.eval())
    (tmp_path / "mine.py").write_text(METHOD)
    (tmp_path / "net.py").write_text(NETWORK)
    (tmp_path / "broken.py").write_text("import math\n\nmath.sqrt(-1)\n")


RUN = ("run", "--limit", "4", "--corruptions", "fog", "--out", "x", "--method")


@pytest.mark.parametrize(
    ("words", "line", "message"),
    [
        ((*RUN, "mine.py:Deep"), 'int("not a number")', "ValueError: invalid literal"),
        (("run", "--method", "bn", "--model", "net.py:Net", "--out", "x"), "self.fc(None + x)", "does not take images"),
        ((*RUN, "broken.py:Mine"), "math.sqrt(-1)", "Expected to import"),
    ],
    ids=["method", "network", "import"],
)
def test_an_error_in_the_users_own_code_keeps_its_traceback(command, words, line, message) -> None:
    code, _, err = command(*words)
    assert code == 1
    assert "Traceback (most recent call last)" in err
    assert line in err
    assert message in err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((*RUN, "mine.py:Mine", "--set", "lr=-1"), "Expected `lr` to be at least 0, but got -1."),
        ((*RUN, "mine.py:Mine", "--set", "strenth=1"), "Did you mean 'strength'?"),
        ((*RUN, "mine.py:Nobody"), "Expected the Class in mine.py"),
    ],
)
def test_mistakes_around_the_users_own_code_are_one_line(command, words, text) -> None:
    code, _, err = command(*words)
    assert code == 2
    assert err.startswith("Error: ")
    assert text in err
    assert len(err.splitlines()) == 1


def test_unsupported_with_a_method_that_has_no_warm_up_is_named_as_the_option(command) -> None:
    code, _, err = command(*RUN, "tent", "--unsupported", "keep")
    assert code == 2
    assert err.startswith("Error: Expected `--unsupported` only with a method whose network is warmed up, but tent ")


def test_a_missing_gpu_is_answered_with_the_option_for_the_cpu(command, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", "cuda:1"):
        code, _, err = command(*RUN, "bn", "--device", device)
        assert code == 2
        assert f"but got {device} and torch sees no GPU. Use --device cpu or " in err


def test_debug_shows_where_any_error_happened(command) -> None:
    for words in (("run", "--debug", "--method", "vcota", "--out", "x"), ("--debug", *RUN, "vcota")):
        with pytest.raises(ValueError, match="Did you mean 'vcotta'"):
            command(*words)


def test_an_error_that_no_one_foresaw_is_one_line_with_advice_to_debug(command, monkeypatch) -> None:
    monkeypatch.setattr(grid, "stream_for", Fraction)  # which fails in its own file
    code, _, err = command(*RUN, "bn")
    assert code == 2
    assert err.startswith("Error: argument should be a string or a Rational instance")
    assert re.search(r"[a-z()]\. Add --debug to see where this happened\.\n$", err)


def test_an_installed_package_is_a_library_unless_it_registered_a_method(monkeypatch) -> None:
    with pytest.raises(TypeError) as caught:
        httpx.URL(7)
    error = caught.value
    assert is_from_users_code(error)  # it passed through this file
    error = error.with_traceback(error.__traceback__.tb_next)
    assert not is_from_users_code(error)
    method = type("Theirs", (registry.find_method("tent"),), {"__module__": "httpx.methods"})
    monkeypatch.setitem(registry.REGISTERED, "theirs", method)
    assert is_from_users_code(error)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ((*RUN, "tent", "--lr", "0.001"), "No such option: --lr. It is a setting of tent: write --set lr=0.001."),
        ((*RUN, "tent", "--lr=1e-4"), "It is a setting of tent: write --set lr=1e-4."),
        ((*RUN, "vcotta", "--kl-lambda", "2"), "It is a setting of vcotta: write --set kl_lambda=2."),
        (("run", "--views", "8"), "write --set views=8."),
    ],
)
def test_an_option_that_is_a_setting_of_the_method_is_answered_with_set(command, words, hint) -> None:
    code, _, err = command(*words)
    assert code == 2
    assert hint in err
    assert len(err.splitlines()) == 1


def test_the_hint_is_for_the_method_in_the_config_file(command, tmp_path) -> None:
    (tmp_path / "run.toml").write_text('method = "tent"\nout = "x"\n')
    for config in (("--config", "run.toml"), ("--config=run.toml",)):
        assert "It is a setting of tent: write --set lr=1." in command("run", *config, "--lr", "1")[2]
        assert "It is a setting" not in command("run", *config, "--views", "8")[2]
        assert "It is a setting of cotta" in command("run", *config, "--method", "cotta", "--views", "8")[2]


def test_another_unknown_option_has_no_such_hint(command) -> None:
    for words in ((*RUN, "tent", "--speed", "9"), (*RUN, "tent", "--views", "9"), ("check", "--views", "9")):
        assert "It is a setting" not in command(*words)[2]

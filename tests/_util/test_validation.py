"""Settings: each field has its type and keeps its bounds."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
import torch

import vcotta
from vcotta._util.validation import (
    Count,
    NonNegative,
    NonNegativeInt,
    Positive,
    Settings,
    UnitInterval,
    at_least,
    below,
    between,
)


@dataclass(frozen=True)
class Config(Settings):
    lr: Positive = 0.1
    decay: NonNegative = 0.0
    beta: UnitInterval = 0.9
    views: NonNegativeInt = 0
    epochs: Count | None = None
    alpha: Literal["linear", "exact"] | UnitInterval = "linear"
    rise: Annotated[float, at_least(0), below(1)] = 0.5
    side: Annotated[int, between(1, 8)] = 8
    flip: bool = True
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Narrow(Config):
    lr: Annotated[float, at_least(1)] = 1.0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 1},
        {"decay": 0},
        {"beta": 0.0},
        {"beta": 1},
        {"epochs": None},
        {"epochs": 1},
        {"alpha": "exact"},
        {"alpha": 0.25},
        {"rise": 0.0},
        {"names": ("a", "b")},
    ],
)
def test_values_within_their_bounds_are_accepted(options: dict[str, Any]) -> None:
    config = Config(**options)
    assert all(getattr(config, name) == value for name, value in options.items())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": 0}, ValueError, "Expected `lr` to be more than 0, but got 0."),
        ({"lr": float("nan")}, ValueError, "Expected `lr` to be float, but got nan."),
        ({"lr": float("inf")}, ValueError, "Expected `lr` to be float, but got inf."),
        ({"lr": True}, ValueError, "Expected `lr` to be float, but got True."),
        ({"lr": "fast"}, TypeError, "Expected `lr` to be float, but got 'fast'."),
        ({"decay": -1}, ValueError, "Expected `decay` to be at least 0, but got -1."),
        ({"beta": 1.5}, ValueError, "Expected `beta` to lie in [0, 1], but got 1.5."),
        ({"views": 1.5}, ValueError, "Expected `views` to be a whole number, but got 1.5."),
        ({"epochs": 0}, ValueError, "Expected `epochs` to be at least 1, but got 0."),
        ({"epochs": "two"}, TypeError, "Expected `epochs` to be a whole number or None, but got 'two'."),
        ({"alpha": 2.0}, ValueError, "Expected `alpha` to lie in [0, 1], but got 2.0."),
        ({"alpha": "linea"}, ValueError, "linear"),
        ({"rise": -0.1}, ValueError, "Expected `rise` to be at least 0, but got -0.1."),
        ({"rise": 1}, ValueError, "Expected `rise` to be less than 1, but got 1."),
        ({"side": 9}, ValueError, "Expected `side` to lie in [1, 8], but got 9."),
        ({"flip": 1}, ValueError, "Expected `flip` to be True or False, but got 1."),
    ],
)
def test_a_value_outside_its_bounds_or_type_is_refused_by_name(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        Config(**options)
    assert message in str(caught.value)


def test_a_subclass_inherits_the_bounds_it_does_not_redeclare() -> None:
    with pytest.raises(ValueError, match="`lr` to be at least 1"):
        Narrow(lr=0.5)
    with pytest.raises(ValueError, match="`beta` to lie in"):
        Narrow(beta=2.0)


@dataclass(frozen=True)
class Image(Settings):
    channels: Literal[1, 3] = 3


@pytest.mark.parametrize("channels", [2, True, 1.0, torch.empty(0), torch.ones(3)], ids=repr)
def test_a_choice_of_numbers_refuses_every_other_value_and_type(channels: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="channels"):
        Image(channels)


def test_a_misspelt_setting_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"setting of Guard to be one of .*'colapse'\. Did you mean 'collapse'\?"):
        vcotta.Guard(colapse=0.2)
    with pytest.raises(ValueError, match=r"setting of WarmUpConfig .*Did you mean 'epochs'\?"):
        vcotta.WarmUpConfig(epoch=2)
    with pytest.raises(ValueError, match=r"setting of TENTConfig .*Did you mean 'optimizer'\?"):
        vcotta.methods.TENTConfig(optimiser="adam")
    with pytest.raises(ValueError, match=r"setting of Runtime .*Did you mean 'device'\?"):
        dataclasses.replace(vcotta.Runtime(), devise="cpu")

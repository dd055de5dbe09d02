"""A method that is checked, and the register of the claims that it must keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import vcotta
from vcotta import to_variational
from vcotta.bayes import is_variational
from vcotta.methods import find_method

from .promises import PROMISES, Promise

__all__ = ["CLAIMS", "Subject", "claim", "claims_of", "same", "snapshot"]


@dataclass(frozen=True)
class Subject:
    """A method to check.

    Attributes:
        name: Its name.
        promise: What it promises.
        tiny: Makes a small network, as the fixture does.
        images: Makes images, as the fixture does.
    """

    name: str
    promise: Promise
    tiny: Callable[..., nn.Module]
    images: Callable[..., Tensor]

    @property
    def trains(self) -> bool:
        return "lr" in find_method(self.name).Config.__dataclass_fields__

    def network(self, norm: str = "batch", **arguments: int) -> nn.Module:
        make = self.promise.network or self.tiny
        return make(**arguments) if norm == "batch" else make(norm, **arguments)

    def build(self, model: nn.Module | None = None, **options: Any) -> vcotta.Adapter:
        model = self.network() if model is None else model
        method = find_method(self.name)
        if method.needs_variational and not is_variational(model):
            model = to_variational(model)
        if method.needs_source:
            draws = torch.Generator().manual_seed(0)
            classes = [module for module in model.modules() if isinstance(module, nn.Linear)][-1].out_features
            labels = torch.arange(24) % classes
            options["source"] = [(torch.rand(24, 3, 8, 8, generator=draws), labels) for _ in range(2)]
        return vcotta.build_adapter(self.name, model, **(self.promise.options | options))

    def other(self, name: str) -> vcotta.Adapter:
        return Subject(name, replace(PROMISES[name], network=self.promise.network), self.tiny, self.images).build()

    def stream(self, batches: int = 4) -> list[Tensor]:
        return [self.images(n=6, seed=seed) for seed in range(batches)]

    def lr(self, lr: float) -> dict[str, float]:
        return {"lr": lr} if self.trains else {}


Check = Callable[[Subject], None]
CLAIMS: dict[str, tuple[Check, Callable[[Subject], bool]]] = {}


def claim(applies: Callable[[Subject], bool] = lambda subject: True) -> Callable[[Check], Check]:
    """Add a check to those that every method, or every one of a kind, must pass."""

    def add(check: Check) -> Check:
        CLAIMS[check.__name__] = check, applies
        return check

    return add


def claims_of(name: str, promise: Promise) -> list[str]:
    """The claims that apply to a method."""
    subject = Subject(name, promise, nn.Identity, torch.zeros)
    return [claimed for claimed, (_, applies) in CLAIMS.items() if applies(subject)]


def snapshot(adapter: vcotta.Adapter) -> dict[str, Tensor]:
    state = adapter.state_dict()
    tensors = {f"{role}.{key}": value for role, net in state["networks"].items() for key, value in net.items()}
    return tensors | {f"memory.{key}": value for key, value in state["memory"].items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)

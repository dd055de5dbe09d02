"""What the common tests must know of each method; a new method needs one entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from vcotta.models import ViT

__all__ = ["PROMISES", "Promise", "network_for", "tiny_vit"]


def tiny_vit(norm: str = "batch", channels: int = 3, classes: int = 4, seed: int = 0) -> nn.Module:
    """A seeded vision transformer for images of 8 pixels, in place of a tiny network with any normalisation."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = ViT(8, 4, 2, 8, 2, classes=classes, channels=channels, mean=None, std=None)
        for parameter in net.parameters():  # larger than usual, so that predictions differ
            nn.init.normal_(parameter, float(parameter.ndim == 1), 0.4)
    return net.eval()


@dataclass(frozen=True)
class Promise:
    """One method under test.

    Attributes:
        passes: Forward and backward passes over the first batch, with ``options``.
        options: Options that make it small and quick.
        still: The method it equals when its step size is 0, together with ``still_options``; None if there is none.
        single: Options with which a single image is predicted as by the source; None if it never is, by design.
        before: Whether the prediction returned is from before the update.
        averaged: Networks that change without being trained.
        moves_statistics: Whether running statistics of BatchNorm change, by design.
        network: Makes the network that it needs, if it does not take any.
    """

    passes: tuple[int, int]
    options: dict[str, Any] = field(default_factory=dict)
    still: str | None = None
    still_options: dict[str, Any] = field(default_factory=dict)
    single: dict[str, Any] | None = field(default_factory=dict)
    before: bool = True
    averaged: tuple[str, ...] = ("teacher",)
    moves_statistics: bool = False
    network: Callable[..., nn.Module] | None = None


PROMISES = {
    "source": Promise((1, 0)),
    "bn": Promise((1, 0)),
    "tent": Promise((1, 1), still="bn"),
    "adacontrast": Promise(
        (5, 1),
        {"queue": 32, "refine_after": 12, "flip": False},
        single={"lr": 0.0},
        before=False,
        moves_statistics=True,
    ),
    "cotta": Promise(
        (4, 1),
        {"views": 2, "threshold": 1.1},
        still="bn",
        still_options={"threshold": 0.0},
        single={"threshold": 0.0},
    ),
    "eata": Promise((1, 1), {"entropy_margin": 1.1, "similarity_margin": 1.1}, still="bn"),
    "rotta": Promise(
        (3, 1),
        {"capacity": 4, "update_every": 6},
        still="source",
        still_options={"alpha": 0.0},
        moves_statistics=True,
    ),
    "petal": Promise(
        (4, 1),
        {"views": 2, "threshold": 1.1, "epochs": 3},
        still="bn",
        still_options={"threshold": 0.0, "source_lr": 0.0, "swa_lr": 0.0},
        single={"threshold": 0.0, "source_lr": 0.0, "swa_lr": 0.0},
    ),
    "rmt": Promise((3, 1), still="bn"),
    "santa": Promise((3, 1), still="bn"),
    "palm": Promise((2, 2), still="bn"),
    "surgeon": Promise((3, 2), still="bn"),
    "obao": Promise((3, 1), {"margin": 1.1, "buffer": 10}, still="bn"),
    "tca": Promise(
        (6, 1),
        {"views": 2, "threshold": 1.1},
        still="bn",
        still_options={"threshold": 0.0},
        single={"threshold": 0.0},
    ),
    "roid": Promise(
        (2, 1), still="bn", still_options={"prior_correction": "none"}, single={"prior_correction": "none"}
    ),
    "sar": Promise((2, 2), {"entropy_margin": 1.1}, still="bn"),
    "rdumb": Promise((1, 1), {"entropy_margin": 1.1, "similarity_margin": 1.1, "period": 3}, still="bn"),
    "cmf": Promise((2, 1), still="bn", still_options={"prior_correction": "none"}, single={"prior_correction": "none"}),
    "deyo": Promise((2, 1), {"entropy_margin": 1.1, "drop": -1.0}, still="bn"),
    "foa": Promise((5, 0), {"prompts": 1, "population": 4}, single=None, network=tiny_vit),
    "come": Promise((1, 1), still="bn"),
    "rem": Promise((3, 1), still="source", network=tiny_vit),
    "ecotta": Promise((1, 1), {"margin": 1.1, "warm_up_epochs": 1}, single=None),
    "becotta": Promise((1, 1), {"margin": 1.1, "warm_up_epochs": 1}, single=None, averaged=("warmed",)),
    "swa": Promise((3, 1), still="bn"),
    "dss": Promise((2, 1), still="bn"),
    "vida": Promise(
        (4, 1),
        {"views": 2, "high_rank": 4},
        still="bn",
        still_options={"warm_up_images": 0},
        single={"warm_up_images": 0},
    ),
    "continual-mae": Promise((4, 1), {"views": 2}, still="bn"),
    "dvp": Promise((2, 1), still="bn"),
    "vcotta": Promise(
        (7, 1),
        {"views": 2},
        still="bn",
        still_options={"inference": "x0", "statistics": "batch", "label_prior": False},
        single={"inference": "x0", "statistics": "batch", "label_prior": False},
    ),
    "vcl": Promise(
        (7, 1),
        {"views": 2},
        still="bn",
        still_options={"inference": "x0", "statistics": "batch", "label_prior": False},
        single={"inference": "x0", "statistics": "batch", "label_prior": False},
    ),
}


def network_for(name: str, tiny: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """What makes networks for a method: the fixture ``tiny``, unless the method needs others."""
    return PROMISES[name].network or tiny

"""The embedded benchmark: a small network on handwritten digits, trained on the spot, with every method's settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from vcotta.bayes import WarmUpConfig, load_warmed, warm_up
from vcotta.corruptions import STANDARD
from vcotta.data import batches
from vcotta.data.digits import DIGITS_BATCH, DIGITS_TRAINING, digits_network, load_digits
from vcotta.methods import METHODS, Adapter, build_adapter
from vcotta.report.progress import Report
from vcotta.streams import ContinualStream
from vcotta.training import train

__all__ = [
    "OPTIONS",
    "WARM_UP",
    "digits_adapter",
    "digits_network_for",
    "digits_stream",
    "train_digits",
    "warm_up_digits",
]

WARM_UP = WarmUpConfig(epochs=10, lr=4e-3, flip=False)
"""Chosen, as are `OPTIONS`, on the four extra corruptions at severities 3 to 5 with the constants of ImageNet-C, which
are about as hard for digits as the fifteen (`vcotta tune --severities 3,4,5 --table 224`)."""

OPTIONS: dict[str, dict[str, Any]] = {
    "source": {},
    "bn": {},
    "tent": {"lr": 1e-2},
    "cotta": {"lr": 1e-2, "beta": 0.98, "views": 8, "flip": False},
    "vcotta": {"dataset": "digits"},
}
"""Each method's options on digits where they differ from its defaults."""


def train_digits(seed: int, progress: Report | None = None) -> nn.Module:
    """Train the source network on the 1 000 training digits.

    Args:
        seed: Seed of initial weights, batch order and augmentation.
        progress: Called with (epochs done, epochs, loss).
    """
    train_data, _ = load_digits()
    loader = batches(train_data.images, train_data.labels, DIGITS_BATCH, shuffle_seed=seed)
    return train(digits_network(seed), loader, replace(DIGITS_TRAINING, seed=seed), progress=progress)


def warm_up_digits(model: nn.Module, seed: int, progress: Report | bool = False) -> nn.Module:
    """Warm the source network up on the digits it was trained on."""
    return warm_up(model, _source(seed), replace(WARM_UP, seed=seed), progress=progress)


def digits_network_for(method: str, seed: int, weights: Path | None, task: Callable[[str, str], Report]) -> nn.Module:
    """Train the network a method starts from, warmed up if it needs that.

    Args:
        method: One of `list_methods`.
        seed: Seed of training and warm-up.
        weights: A warmed network to read instead of making one, for methods that need it.
        task: Starts a line of the progress display.
    """
    variational = METHODS[method].needs_variational
    if weights is not None:
        if not variational:
            raise ValueError(f"Expected no `weights` for {method}, which starts from the plain network.")
        return load_warmed(digits_network(seed), weights)
    model = train_digits(seed, task("Training", "loss {:.3f}"))
    return warm_up_digits(model, seed, task("Warm-up", "loss {:.3f}")) if variational else model


def digits_adapter(method: str, model: nn.Module, seed: int, **options: Any) -> Adapter:
    """Build a method with its settings for digits; ``vcotta`` takes the warmed network, the others the plain one.

    Args:
        method: One of `list_methods`.
        model: The trained network, or the warmed one for ``vcotta``.
        seed: Seed of the adapter.
        options: Options that differ from `OPTIONS`.
    """
    settings = OPTIONS.get(method, {}) | options
    source = None if method in METHODS and METHODS[method].needs_variational else _source(seed)
    return build_adapter(method, model, source=source, seed=seed, **settings)


def digits_stream(
    seed: int,
    corruptions: Sequence[str] = STANDARD,
    severity: int | Sequence[int] = 5,
    batch_size: int = DIGITS_BATCH,
    limit: int | None = None,
    table: int | None = None,
) -> ContinualStream:
    """The 797 test digits through the corruptions, one after another."""
    return ContinualStream(load_digits()[1], corruptions, severity, batch_size, limit, seed, table=table)


def _source(seed: int) -> Any:
    train_data, _ = load_digits()
    return batches(train_data.images, train_data.labels, DIGITS_BATCH, shuffle_seed=seed)

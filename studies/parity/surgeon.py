"""SURGEON, whose official code differs from ours in three places that can be mended one by one to tell them apart."""

from __future__ import annotations

import contextlib
import importlib
import io
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from studies.parity.benchmark import VIEWS, make, replaced
from studies.parity.pairs import Pair, Step
from studies.parity.subject import Subject

MENDED = {
    "pairs": "a layer's gradient is paired with its own size",
    "probe": "the gradient left by the last step is cleared before the ten images",
    "norm": "BatchNorm's gradient is that of its forward pass",
}


def surgeon(subject: Subject, *, mended: tuple[str, ...]) -> Step:
    """Return SURGEON's step for normalisation layers alone, with some of the differences mended."""
    with contextlib.redirect_stdout(io.StringIO()):  # it prints every layer
        official = make(subject, ".", "das", "DAS", changes={"BN_ONLY": True})
    module = importlib.import_module("methods.das")
    if "pairs" in mended:
        combined = module.get_tgi

        def by_name(params: Any, grads: Any, names: list[str], memories: Any) -> Any:
            sizes, total = memories
            return combined(params, grads, names, [{name: sizes[name] for name in names}, total])

        module.get_tgi = by_name
    if "norm" in mended:
        for layer in official.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.forward_for_backward = partial(_plain_norm, layer)

    def step(images: Tensor) -> Tensor:
        if "probe" in mended:
            official.optimizer.zero_grad()
        logits: Tensor = official.forward_and_adapt([images])
        return logits.detach().log_softmax(-1)

    return step


def _plain_norm(layer: nn.BatchNorm2d, x: Tensor, weight: Tensor, bias: Tensor, *statistics: Tensor) -> Tensor:
    return torch.nn.functional.batch_norm(x, None, None, weight, bias, training=True, momentum=0.0, eps=layer.eps)


def _pairs() -> list[Pair]:
    found = []
    names = list(MENDED)
    for mended in ((), *combinations(names, 2), tuple(names)):
        left = [name for name in names if name not in mended]
        variant = {0: "all three mended", 1: f"all but {left[0]} mended" if left else "", 3: ""}[len(left)]
        found.append(
            Pair(
                "surgeon",
                "kadmkbl/SURGEON",
                partial(surgeon, mended=mended),
                {},
                ".",
                replaced,
                "cfgs/cifar10_c/das.yaml",
                (VIEWS, "the ten images are ours", *(MENDED[name] for name in mended)),
                variant,
            )
        )
    return found


PAIRS = tuple(_pairs())

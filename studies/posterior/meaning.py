"""Whether a posterior means something: its widths, and what draws from it predict."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from vcotta import Runtime, sampling
from vcotta.bayes.layers import variational_layers
from vcotta.data.types import to_tensor
from vcotta.nn.batch_norm import use_batch_statistics
from vcotta.nn.rng import OwnRng

DRAWS = 8
BEFORE: dict[str, Any] = {"lr": 3e-4, "relative": False, "sigma_travel": None, "kl_weight": 0.7, "held_back": 0.0}
"""The warm-up before: one absolute step for means and rho, which learns no widths."""
PLAIN: dict[str, Any] = {"augmix": False}
Images = tuple[Any, Any]
"""Images and their labels."""


class Meaning:
    """Scores of means and draws on clean images and on corrupted ones, with each batch's statistics.

    Args:
        runtime: Where to compute.
        batch_size: Images in a batch.
        clean: Clean images.
        corrupted: Images of each corruption; may be made on the way.
    """

    def __init__(self, runtime: Runtime, batch_size: int, clean: Images, corrupted: Iterable[Images]) -> None:
        self.runtime, self.batch_size, self.clean = runtime, batch_size, clean
        self.corrupted = list(corrupted)

    def of(self, net: nn.Module) -> dict[str, Any]:
        """Return error and NLL in four cases, and by how much the standard deviations of a layer vary."""
        sigmas = [F.softplus(layer.weight_rho) for _, layer in variational_layers(net)]
        spread = sorted((sigma.std() / sigma.mean()).item() for sigma in sigmas)
        found = {
            "clean": self.scores(net, *self.clean),
            "clean_draws": self.scores(net, *self.clean, draws=DRAWS),
            "corrupted": _mean([self.scores(net, *part, batchwise=True) for part in self.corrupted]),
            "corrupted_draws": _mean([self.scores(net, *part, batchwise=True, draws=DRAWS) for part in self.corrupted]),
        }
        return {
            **{name: {"error": error, "nll": nll} for name, (error, nll) in found.items()},
            "spread": {"least": round(spread[0], 3), "median": round(spread[len(spread) // 2], 3)},
        }

    @torch.no_grad()
    def scores(
        self, net: nn.Module, images: Any, labels: Any, *, batchwise: bool = False, draws: int = 0
    ) -> tuple[float, float]:
        """Error in per cent and NLL, of the means or of the mean prediction of draws."""
        net = self.runtime.place(copy.deepcopy(net))
        if batchwise:
            use_batch_statistics(net, True)
        found = []
        with OwnRng(0, self.runtime.device).scope():
            for start in range(0, len(images), self.batch_size):
                batch = self.runtime.place_images(to_tensor(np.asarray(images[start : start + self.batch_size])))
                with sampling(net) if draws else nullcontext():
                    passes = [self.runtime.forward(net, batch).log_softmax(-1) for _ in range(max(1, draws))]
                found.append(torch.stack(passes).logsumexp(0).cpu() - math.log(len(passes)))
        log_probs, truth = torch.cat(found), torch.as_tensor(np.asarray(labels))
        wrong = (log_probs.argmax(-1) != truth).double().mean().item()
        return round(100 * wrong, 3), round(F.nll_loss(log_probs, truth).item(), 4)


def _mean(scores: Sequence[tuple[float, float]]) -> tuple[float, float]:
    error, nll = np.mean(scores, axis=0)
    return round(float(error), 3), round(float(nll), 4)

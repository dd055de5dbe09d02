"""Protection of an adapter against its own stream: what is watched, and what is done about it.

A guard compares, on every batch, what the adapted network says with what the frozen source network says, and both with
the stream's own past. What it keeps are a few numbers and two class histograms, on the device; its verdict is a tensor,
too, so that the host never waits for it: an update is dropped on the device, and the rest is done after the step, when
the host reads that step's numbers anyway.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from vcotta.fields import check_fields

__all__ = ["Action", "Guard", "Watch"]

Action = Literal["skip", "pull", "restart", "pause"]
"""What was done: ``skip`` the update, whose loss or gradient was not finite; besides skipping it ``pull`` the networks
towards the source; ``restart`` from the source; or ``pause``, wait at the source until the stream is as before."""

SURE = 0.9
"""Probability from which the source counts as sure of an image."""


@dataclass(frozen=True)
class Guard:
    """Which protections an adapter has; None switches one off.

    An update that is not finite is never taken, with or without a guard. Each other protection has a bound; beyond it
    the adapter learns nothing and is pulled back towards the source, batch after batch. Nothing is judged during the
    first ``window`` images, which tell what is usual.

    Attributes:
        unsure: The source network's mean entropy over recent images may reach this share of log C, for C classes, or
            three times its past level, if that is more. Beyond, the source knows nothing of what it sees (noise, a
            constant image, one class that BatchNorm cannot normalise), and there is nothing to learn from it.
        contradiction: Of the recent images that the source is sure of (probability 0.9), the adapted network may
            call this share something else.
        collapse: The class histogram of recent predictions may be this far from its past, in total variation, 0 to 1.
            It cannot tell a collapse from a stream that is sorted by class: switch it off for those.
        drift: KL(student || source) for each weight may be so many times what it was after ``window`` images (or 1,
            if that is more). Variational networks only.
        pull: Share of the way back to the source that the networks are taken at each such batch, 0 to 1.
        patience: After so many such batches in a row the adapter starts again from the source.
        window: Images of a histogram, and of the beginning; None for 50 a class. Entropies and contradictions are
            averaged over a fifth of it.

    Example:
        >>> Guard(collapse=None)  # labels come in any order
        Guard(unsure=0.3, contradiction=0.25, collapse=None, drift=10.0, pull=0.1, patience=20, window=None)
    """

    unsure: float | None = 0.3
    contradiction: float | None = 0.25
    collapse: float | None = 0.5
    drift: float | None = 10.0
    pull: float = 0.1
    patience: int = 20
    window: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("unsure", "contradiction", "collapse", "pull"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"Expected `{name}` to lie in [0, 1], but got {value}.")
        for name in ("drift", "patience", "window"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"Expected `{name}` to be more than 0, but got {value}.")


class Watch:
    """What a guard remembers of a stream, and its verdict on the latest batch.

    Args:
        guard: The settings.
        device: Where the numbers are kept.

    Attributes:
        seen: Images seen.
        alarms: Batches in a row that were beyond a bound.
        looked: Whether the batch of this step was judged yet.
    """

    def __init__(self, guard: Guard, device: torch.device | str) -> None:
        self.guard, self.device = guard, device
        self.seen = self.alarms = 0
        self.usual_drift: float | None = None
        self.looked = False
        self._memory: dict[str, Tensor] = {"calm": torch.ones((), dtype=torch.bool, device=device)}
        self._signals: dict[str, Tensor] = {}

    @property
    def calm(self) -> Tensor:
        """Whether the adapter may learn, a scalar on the device."""
        return self._memory["calm"]

    @torch.no_grad()
    def look(self, source: Tensor, adapted: Tensor) -> None:
        """Judge a batch by the log-probabilities that the source and the adapted network give it, (batch, classes)."""
        batch, classes = source.shape
        window = self.guard.window or 50 * classes
        plain = batch / (self.seen + batch)  # share in a mean over everything, where that is not long yet
        fast, slow = (max(1 - (1 - 1 / max(1, size)) ** batch, plain) for size in (window / 5, window))
        now = _averages(source, adapted)
        before = self._memory if self.seen else now
        recent = {key: before[key].lerp(value, slow if key == "classes" else fast) for key, value in now.items()}
        if self.seen < window:
            self._signals, calm = {}, torch.ones_like(self.calm)
            past = {"past_entropy": recent["entropy"], "past_classes": recent["classes"]}
        else:
            past = {key: self._memory[key] for key in ("past_entropy", "past_classes")}
            calm = self._judge(recent, past, math.log(classes))
            rising = recent["entropy"] > past["past_entropy"]  # what is usual falls at once and rises slowly
            share = slow * calm.float()  # no torch.where of numbers: those would be copied to the device
            past = {
                "past_entropy": past["past_entropy"].lerp(recent["entropy"], share * (1 - 0.9 * rising.float())),
                "past_classes": past["past_classes"].lerp(recent["classes"], share / 10),
            }
        self._memory = {"calm": calm, **recent, **past}
        self.seen += batch
        self.looked = True

    def _judge(self, recent: dict[str, Tensor], past: dict[str, Tensor], chance: float) -> Tensor:
        guard = self.guard
        bounds = {
            "unsure": guard.unsure and (3 * past["past_entropy"]).clamp_min(guard.unsure * chance),
            "contradiction": guard.contradiction,
            "collapse": guard.collapse,
        }
        self._signals = {
            "unsure": recent["entropy"],
            "contradiction": recent["contradicted"] / recent["sure"].clamp_min(0.1),
            "collapse": (recent["classes"] - past["past_classes"]).abs().sum() / 2,
        }
        alarms = {name: self._signals[name] > bound for name, bound in bounds.items() if bound is not None}
        self._signals |= {f"{name} alarm": alarm for name, alarm in alarms.items()}
        return ~torch.stack([*alarms.values(), torch.zeros_like(self.calm)]).any()

    def signals(self, drift: Tensor | None) -> dict[str, Tensor]:
        """What the host is to read of this step: the numbers, and which of them are beyond their bounds."""
        self.looked = False
        return self._signals | ({} if drift is None or self.guard.drift is None else {"drift": drift})

    def verdict(self, read: dict[str, Any], classes: int) -> list[str]:
        """Return which bounds the step was beyond, from what was read of its `signals`; count it."""
        causes = [name.removesuffix(" alarm") for name, value in read.items() if value is True]
        if (drift := read.get("drift")) is not None and self.guard.drift is not None:
            if self.seen < (self.guard.window or 50 * classes):
                self.usual_drift = drift
            elif drift > self.guard.drift * max(1.0, self.usual_drift or 0.0):
                causes.append("drift")
        self.alarms = self.alarms + 1 if causes else 0
        return causes

    def state_dict(self) -> dict[str, Any]:
        """Settings, memory and counts."""
        return {
            "settings": asdict(self.guard),
            "memory": {name: tensor.clone() for name, tensor in self._memory.items()},
            "counts": {"seen": self.seen, "alarms": self.alarms, "usual_drift": self.usual_drift},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` of the same settings."""
        self._memory = {name: tensor.to(self.device, copy=True) for name, tensor in state["memory"].items()}
        counts = state["counts"]
        self.seen, self.alarms, self.usual_drift = counts["seen"], counts["alarms"], counts["usual_drift"]
        self._signals, self.looked = {}, False


def _averages(source: Tensor, adapted: Tensor) -> dict[str, Tensor]:
    """Means over the batch; an image whose probabilities are not finite counts as one that the source knows not."""
    confidence, label = source.exp().max(-1)
    sure, choice = confidence > SURE, adapted.argmax(-1)
    one_hot = choice.unsqueeze(-1) == torch.arange(source.shape[-1], device=source.device)
    return {
        "entropy": -(source.exp() * source).sum(-1).nan_to_num(nan=math.log(source.shape[-1])).mean(),
        "sure": sure.float().mean(),
        "contradicted": (sure & (label != choice)).float().mean(),
        "classes": one_hot.float().mean(0),
    }

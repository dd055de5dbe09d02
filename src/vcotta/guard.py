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
ENOUGH = 2000
"""Images that tell what is usual of an average, however many classes there are; a histogram takes 50 a class."""


@dataclass(frozen=True)
class Guard:
    """Which protections an adapter has; None switches one off.

    An update that is not finite is never taken, with or without a guard. Each other protection has a bound; beyond it
    the adapter learns nothing and is pulled back towards the source, batch after batch. Nothing is judged during the
    first ``window`` images, which tell what is usual.

    Attributes:
        unsure: Of what the source network could tell about an image, log C nats for C classes but log 10 at most, its
            mean over recent images, log C - entropy, may lack this share; where it told less in the past, it may lack
            a quarter of that. Beyond, the source knows nothing of what it sees (noise, a constant image, one class
            that BatchNorm cannot normalise), and there is nothing to learn from it.
        contradiction: Of the recent images that the source is sure of (probability 0.9), the adapted network may
            call this share something else.
        collapse: The class histogram of recent predictions may be this far from its past, in total variation, 0 to 1.
            It cannot tell a collapse from a stream that is sorted by class: switch it off for those.
        overconfidence: Of the source's mean entropy over recent images the adapted network may have lost this share. A
            network that collapses is sure of everything, long before it says the same to everything; where the source
            has next to no doubts itself, less than 1 % of log C, there is little to lose and nothing to see.
        drift: KL(student || source) for each weight may be so many times what it was after ``window`` images (or 1,
            if that is more). Variational networks only; None saves the time to compute it.
        pull: Share of the way back to the source that the networks are taken at each such batch, 0 to 1.
        patience: After so many such batches in a row the adapter starts again from the source.
        window: Images of a histogram, and of the beginning; None for 50 a class, and at most 2000 for all but the
            histogram. Entropies and contradictions are averaged over a fifth of it.

    Example:
        >>> Guard(collapse=None)  # labels come in any order
        Guard(unsure=0.3, contradiction=0.25, collapse=None, overconfidence=0.95, drift=10.0, pull=0.1, patience=20, \
window=None)
    """

    unsure: float | None = 0.3
    contradiction: float | None = 0.25
    collapse: float | None = 0.5
    overconfidence: float | None = 0.95
    drift: float | None = 10.0
    pull: float = 0.1
    patience: int = 20
    window: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("unsure", "contradiction", "collapse", "overconfidence", "pull"):
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
        self.looked = False
        self._memory: dict[str, Tensor] = {"calm": torch.ones((), dtype=torch.bool, device=device)}
        self._signals: dict[str, Tensor] = {}

    @property
    def calm(self) -> Tensor:
        """Whether the adapter may learn, a scalar on the device."""
        return self._memory["calm"]

    @torch.no_grad()
    def look(self, source: Tensor, adapted: Tensor, drift: Tensor | None = None) -> None:
        """Judge a batch by the log-probabilities that the source and the adapted network give it, (batch, classes).

        ``drift`` is the scalar of `Adapter.drift`, on the device.
        """
        batch, classes = source.shape
        window = self.guard.window or 50 * classes
        brief = self.guard.window or min(window, ENOUGH)
        plain = batch / (self.seen + batch)  # share in a mean over everything, where that is not long yet
        fast, slow, slowest = (max(1 - (1 - 1 / max(1, n)) ** batch, plain) for n in (brief / 5, brief, window))
        now = _averages(source, adapted)
        before = self._memory if self.seen else now
        recent = {key: before[key].lerp(value, slowest if key == "classes" else fast) for key, value in now.items()}
        begun, settled = self.seen >= brief, self.seen >= window
        past = {
            "past_entropy": self._memory["past_entropy"] if begun else recent["entropy"],
            "past_classes": self._memory["past_classes"] if settled else recent["classes"],
        }
        if drift is not None:
            past["past_drift"] = self._memory["past_drift"] if begun else drift.nan_to_num(0.0, 0.0)
        chance = math.log(classes)
        self._signals = self._measure(recent, past, drift, settled, chance) if begun else {}
        alarms = self._alarms(past, chance)
        calm = ~torch.stack([*alarms.values(), torch.zeros_like(self.calm)]).any()
        self._signals |= alarms
        share = calm.float() / 10  # no torch.where of numbers: those would be copied to the device
        falling = (recent["entropy"] < past["past_entropy"]).float()  # a level that was calm stays so for long
        past["past_entropy"] = past["past_entropy"].lerp(recent["entropy"], slow * share * (1 - 0.9 * falling))
        past["past_classes"] = past["past_classes"].lerp(recent["classes"], slowest * share)
        self._memory = {"calm": calm, **recent, **past}
        self.seen += batch
        self.looked = True

    def _measure(
        self, recent: dict[str, Tensor], past: dict[str, Tensor], drift: Tensor | None, settled: bool, chance: float
    ) -> dict[str, Tensor]:
        doubt = recent["entropy"]
        measured = {
            "unsure": doubt,
            "contradiction": recent["contradicted"] / recent["sure"].clamp_min(0.1),
            "overconfidence": (doubt - recent["adapted_entropy"]) / doubt.clamp_min(chance / 100),
        }
        if settled:
            measured["collapse"] = (recent["classes"] - past["past_classes"]).abs().sum() / 2
        return measured if drift is None else measured | {"drift": drift}

    def _alarms(self, past: dict[str, Tensor], chance: float) -> dict[str, Tensor]:
        """Which of the signals are beyond their bounds; one that is not a number is."""
        guard, bounds = self.guard, dict[str, Tensor | float | None]()
        bounds |= {name: getattr(guard, name) for name in ("contradiction", "collapse", "overconfidence")}
        if guard.unsure is not None:
            least = (1 - guard.unsure) * min(chance, math.log(10))  # what the source must tell, in nats
            bounds["unsure"] = chance - (0.75 * (chance - past["past_entropy"])).clamp_max(least)
        if guard.drift is not None and "past_drift" in past:
            bounds["drift"] = guard.drift * past["past_drift"].clamp_min(1)
        judged = ((name, value, bounds.get(name)) for name, value in self._signals.items())
        return {f"{name} alarm": ~(value <= bound) for name, value, bound in judged if bound is not None}

    def signals(self) -> dict[str, Tensor]:
        """What the host is to read of this step: the numbers, and which of them are beyond their bounds."""
        self.looked = False
        return self._signals

    def verdict(self, read: dict[str, Any]) -> list[str]:
        """Return which bounds the step was beyond, from what was read of its `signals`; count it."""
        causes = [name.removesuffix(" alarm") for name, value in read.items() if value is True]
        self.alarms = self.alarms + 1 if causes else 0
        return causes

    def state_dict(self) -> dict[str, Any]:
        """Settings, memory and counts."""
        return {
            "settings": asdict(self.guard),
            "memory": {name: tensor.clone() for name, tensor in self._memory.items()},
            "counts": {"seen": self.seen, "alarms": self.alarms},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` of the same settings."""
        self._memory = {name: tensor.to(self.device, copy=True) for name, tensor in state["memory"].items()}
        counts = state["counts"]
        self.seen, self.alarms = counts["seen"], counts["alarms"]
        self._signals, self.looked = {}, False


def _averages(source: Tensor, adapted: Tensor) -> dict[str, Tensor]:
    """Means over the batch; an image whose probabilities are not finite counts as one that the source knows not."""
    confidence, label = source.exp().max(-1)
    sure, choice = confidence > SURE, adapted.argmax(-1)
    one_hot = choice.unsqueeze(-1) == torch.arange(source.shape[-1], device=source.device)
    doubts = (
        torch.special.entr(net.exp()).sum(-1).nan_to_num(nan=math.log(net.shape[-1])) for net in (source, adapted)
    )
    entropy, adapted_entropy = (doubt.mean() for doubt in doubts)
    return {
        "entropy": entropy,
        "adapted_entropy": adapted_entropy,
        "sure": sure.float().mean(),
        "contradicted": (sure & (label != choice)).float().mean(),
        "classes": one_hot.float().mean(0),
    }

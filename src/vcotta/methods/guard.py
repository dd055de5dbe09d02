"""Protection of an adapter against collapse and drift.

On every batch a guard compares the predictions of the adapted network with those of the frozen source network, and both
with the stream's past. Its numbers and its verdict stay on the device, so that the host never waits: an update is
dropped on the device, and pulling back or restarting happens after the step, when the host reads the step's numbers.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from vcotta._util.validation import Count, Positive, Settings, UnitInterval
from vcotta.methods.probe import IMAGES, ProbeWatch, pull

if TYPE_CHECKING:
    from vcotta.methods.base import Adapter

__all__ = ["Action", "DiversityWarning", "Guard", "Watch"]

Action = Literal["skip", "pull", "restart", "pause", "note"]
"""What was done: ``skip`` the update, whose loss or gradient was not finite; ``pull`` the networks towards the source,
besides skipping the update (after it, if the probe is the cause); ``restart`` from the source; ``pause``, stay at the
source until the alarms end; or ``note``, nothing: batches hold few classes (cause ``"diversity"``), which the adapter
handles."""


class DiversityWarning(UserWarning):
    """The batches of a stream seem to hold few classes."""


SURE = 0.9
"""Probability from which the source counts as sure of an image."""
ENOUGH = 2000
"""Images after which an average is known well, however many classes there are; a histogram takes 50 per class."""


@dataclass(frozen=True)
class Guard(Settings):
    """Which protections an adapter has; None switches one off.

    An update that is not finite is never taken, with or without a guard. Each other protection is a signal with a
    bound. On a batch where a signal is beyond its bound the adapter learns nothing and is pulled towards the source.
    Nothing is judged during the first ``window`` images, from which the usual values are measured.

    Attributes:
        unsure: The source's information about an image is log C - entropy, in nats, for C classes. Its mean over recent
            images must be at least (1 - ``unsure``) log C (log 10 for more than ten classes), or three quarters of its
            past value if that is less. Otherwise the source does not recognise the images (noise, a constant image).
        contradiction: Largest share of the recent images the source is sure of (probability 0.9) that the adapted
            network may classify otherwise.
        collapse: Largest total variation, 0 to 1, between the class histograms of recent and of past predictions.
            A long spell of one class looks like one.
        overconfidence: Largest share of the source's mean entropy over recent images that the adapted network may have
            lost. Source entropies below 1 % of log C count as that.
        drift: KL(student || source) per weight may be this many times its value after ``window`` images, or this many
            nats if that value is below 1. Variational networks only.
        pull: Share of the way to the source by which the networks are pulled back on each such batch.
        patience: The adapter restarts from the source after this many such batches in a row.
        window: Length of the histograms and of the beginning, in images; None for 50 per class, and at most 2000 for
            all but the histograms. Entropies and contradictions are averaged over a fifth of it.

    Example:
        >>> Guard(overconfidence=None)
        Guard(unsure=0.3, contradiction=0.25, collapse=0.5, overconfidence=None, drift=10.0, pull=0.1, patience=20, \
window=None)
    """

    unsure: UnitInterval | None = 0.3
    contradiction: UnitInterval | None = 0.25
    collapse: UnitInterval | None = 0.5
    overconfidence: UnitInterval | None = 0.95
    drift: Positive | None = 10.0
    pull: UnitInterval = 0.1
    patience: Count = 20
    window: Count | None = None


class Watch:
    """A guard's memory of a stream, and its verdict on the latest batch.

    Attributes:
        seen: Images seen.
        probe: What is known of the probe.
        alarms: Batches in a row on which a signal was beyond its bound.
        judged: Whether the batch of this step has been judged already.
    """

    def __init__(self, guard: Guard, device: torch.device | str) -> None:
        self.guard, self.device = guard, device
        self.seen = self.alarms = 0
        self.judged = False
        self.probe = ProbeWatch()
        self._batch = 0
        self._memory: dict[str, Tensor] = {"calm": torch.ones((), dtype=torch.bool, device=device)}
        self._signals: dict[str, Tensor] = {}

    @property
    def calm(self) -> Tensor:
        """Whether the adapter may learn, a scalar on the device."""
        return self._memory["calm"]

    @torch.no_grad()
    def judge(self, source: Tensor, adapted: Tensor, drift: Tensor | None = None) -> None:
        """Judge a batch by log-probabilities of source and adapted network, (batch, classes), and `Adapter.drift`."""
        batch, classes = source.shape
        self._batch = batch
        window = self.guard.window or 50 * classes
        brief = self.guard.window or min(window, ENOUGH)
        plain = batch / (self.seen + batch)  # weight of a batch in a mean over the whole stream, while that is short
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
        share = calm.float() / 10  # a factor instead of torch.where with numbers, which would be copied to the device
        falling = (recent["entropy"] < past["past_entropy"]).float()  # the past level falls ten times as slowly
        past["past_entropy"] = past["past_entropy"].lerp(recent["entropy"], slow * share * (1 - 0.9 * falling))
        past["past_classes"] = past["past_classes"].lerp(recent["classes"], slowest * share)
        self._memory = {"calm": calm, **recent, **past}
        self.seen += batch
        self.judged = True

    def _measure(
        self, recent: dict[str, Tensor], past: dict[str, Tensor], drift: Tensor | None, settled: bool, chance: float
    ) -> dict[str, Tensor]:
        entropy = recent["entropy"]
        measured = {
            "unsure": entropy,
            "contradiction": recent["contradicted"] / recent["sure"].clamp_min(0.1),
            "overconfidence": (entropy - recent["adapted_entropy"]) / entropy.clamp_min(chance / 100),
        }
        if settled:
            measured["collapse"] = (recent["classes"] - past["past_classes"]).abs().sum() / 2
        return measured if drift is None else measured | {"drift": drift}

    def _alarms(self, past: dict[str, Tensor], chance: float) -> dict[str, Tensor]:
        """Which signals are beyond their bounds; a signal that is not a number is."""
        guard, bounds = self.guard, dict[str, Tensor | float | None]()
        bounds |= {name: getattr(guard, name) for name in ("contradiction", "collapse", "overconfidence")}
        if guard.unsure is not None:
            least = (1 - guard.unsure) * min(chance, math.log(10))  # the information required, in nats
            bounds["unsure"] = chance - (0.75 * (chance - past["past_entropy"])).clamp_max(least)
        if guard.drift is not None and "past_drift" in past:
            bounds["drift"] = guard.drift * past["past_drift"].clamp_min(1)
        judged = ((name, value, bounds.get(name)) for name, value in self._signals.items())
        return {f"{name} alarm": ~(value <= bound) for name, value, bound in judged if bound is not None}

    def signals(self) -> dict[str, Tensor]:
        """Return the numbers that the host reads after a step, and which of them are beyond their bounds."""
        self.judged = False
        return self._signals

    def verdict(self, read: dict[str, Any]) -> list[str]:
        """Return which bounds the step was beyond, given its `signals` as the host read them; count the step."""
        causes = [name.removesuffix(" alarm") for name, value in read.items() if value is True]
        self.alarms = self.alarms + 1 if causes else 0
        return causes

    def state_dict(self) -> dict[str, Any]:
        """Settings, memory and counts."""
        return {
            "settings": asdict(self.guard),
            "memory": {name: tensor.clone() for name, tensor in self._memory.items()},
            "counts": {"seen": self.seen, "alarms": self.alarms},
            "probe": self.probe.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of the same settings."""
        self._memory = {name: tensor.to(self.device, copy=True) for name, tensor in state["memory"].items()}
        counts = state["counts"]
        self.seen, self.alarms = counts["seen"], counts["alarms"]
        if "probe" in state:  # not in states made before there were probes
            self.probe.load_state_dict(state["probe"])
        self._signals, self.judged = {}, False

    def act(self, adapter: Adapter, read: dict[str, Any]) -> None:
        """Apply the verdict on a step, given its `signals` as the host read them; note it in the adapter's ``last``.

        A restart keeps the guard's own memory: without it the guard would take the stream that ruined the adapter as
        usual.
        """
        skipped = bool(adapter.last["skipped"])
        action: Action | None = "skip" if skipped else None
        causes = self.verdict(read) + ["not finite"] * skipped
        if self.alarms:
            over = self.alarms - self.guard.patience
            action = "pull" if over < 0 else "restart" if over == 0 else "pause"
            if action == "pull" and not pull(adapter, self.guard.pull):
                action = "restart"
            if action == "restart":
                adapter.restart()
        if IMAGES in adapter.prepared and adapter.networks:
            before, action = action, action or self.probe.act(adapter, self._batch)
            causes += ["probe"] * (action != before)
        if action is not None:
            adapter.last["guard"] = {"causes": causes, "action": action}


def _averages(source: Tensor, adapted: Tensor) -> dict[str, Tensor]:
    """Means over the batch; probabilities that are not finite count as a uniform distribution."""
    confidence, label = source.exp().max(-1)
    sure, choice = confidence > SURE, adapted.argmax(-1)
    one_hot = choice.unsqueeze(-1) == torch.arange(source.shape[-1], device=source.device)
    entropies = (
        torch.special.entr(net.exp()).sum(-1).nan_to_num(nan=math.log(net.shape[-1])) for net in (source, adapted)
    )
    entropy, adapted_entropy = (values.mean() for values in entropies)
    return {
        "entropy": entropy,
        "adapted_entropy": adapted_entropy,
        "sure": sure.float().mean(),
        "contradicted": (sure & (label != choice)).float().mean(),
        "classes": one_hot.float().mean(0),
    }

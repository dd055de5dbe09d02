"""Protocols of a camera's own troubles: useless frames, and nights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, ClassVar

import numpy as np

from vcotta._util.errors import counted
from vcotta._util.validation import Count
from vcotta.corruptions import STANDARD
from vcotta.streams.continual import Continual, Domain, Labels, Segment
from vcotta.streams.frames import USELESS

__all__ = ["Bursts", "DayNight"]


@dataclass(frozen=True)
class Bursts(Continual):
    """`Continual` with bursts of useless frames: does a method survive what nobody can classify?

    A burst comes in the middle of each domain and before each domain but the first. Its frames are black, noise, or the
    last image before it again and again (``stuck``), in turns. The adapter sees them like any others, in batches of
    their own, which are called ``blank``, ``noise`` or ``stuck`` and have the label of the last image before them. They
    are not scored: the errors of a run are those of the real images, each of which comes once in each domain. The
    protocol is ours.

    Attributes:
        frames: Number of frames in a burst.

    Example:
        >>> plan = Bursts(frames=8).plan(("fog", "snow"), (5,), np.zeros(40, np.int64), seed=0)
        >>> [(segment.useless or segment.domains[0][0], len(segment.images)) for segment in plan]
        [('fog', 20), ('blank', 8), ('fog', 20), ('noise', 8), ('snow', 20), ('stuck', 8), ('snow', 20)]
    """

    name: ClassVar[str] = "bursts"
    draws_images: ClassVar[bool] = True

    frames: Count = 32

    def plan(self, corruptions: Sequence[str], severities: Sequence[int], labels: Labels, seed: int) -> list[Segment]:
        """Return the two halves of each domain, with a burst between any two segments."""
        segments: list[Segment] = []
        kinds = cycle(USELESS)
        for whole in super().plan(corruptions, severities, labels, seed):
            for half in np.array_split(whole.images, min(2, len(whole.images))):
                if segments:
                    last = segments[-1]
                    frames = np.full(self.frames, last.images[-1])
                    segments.append(Segment(last.domains, frames, useless=next(kinds)))
                segments.append(Segment(whole.domains, half))
        return segments

    def describe(self) -> dict[str, Any]:
        """Return the protocol's name, its number, and the frames that are not scored."""
        return {**super().describe(), "unscored": list(USELESS)}

    def remark(self) -> str:
        """Return the length of the bursts."""
        return f"with bursts of {counted(self.frames, 'useless frame')}"


@dataclass(frozen=True)
class DayNight(Continual):
    """Clean and dark images in turns, all images in each: does a method come back in good order?

    Dark images have 2 ** severity times less light, `vcotta.streams.frames.darken`: 32 times less at severity 5. There
    are no other corruptions. The protocol is ours, after the cameras in the introduction of PeTTA (Hoang, Vo and Do,
    NeurIPS 2024).

    Attributes:
        turns: Number of days, each followed by a night.

    Example:
        >>> plan = DayNight(turns=2).plan((), (5,), np.zeros(3, np.int64), seed=0)
        >>> [segment.domains[0] for segment in plan]
        [('clean', 0), ('dark', 5), ('clean', 0), ('dark', 5)]
    """

    name: ClassVar[str] = "day_night"
    kind: ClassVar[str] = "Day and night"
    corrupts: ClassVar[bool] = False

    turns: Count = 5

    def ordered(self, corruptions: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the two domains; raises if there are corruptions to choose."""
        if tuple(corruptions) not in ((), STANDARD):
            raise ValueError(
                f"Expected no `corruptions` with the protocol {self.name}, whose images are clean or dark, but got "
                f"{', '.join(corruptions)}. Leave them out."
            )
        return ("clean", "dark")

    def domains(self, corruptions: Sequence[str], severities: Sequence[int]) -> tuple[Domain, ...]:
        """Return clean images, and dark ones of each severity."""
        return (("clean", 0), *(("dark", severity) for severity in severities))

    def _visits(self, corruptions: Sequence[str], severities: Sequence[int]) -> list[Domain]:
        return [domain for level in severities for domain in (("clean", 0), ("dark", level))] * self.turns

    def contents(self, corruptions: Sequence[str]) -> str:
        """Return the kinds of images."""
        return "clean and dark images"

    def remark(self) -> str:
        """Return the number of turns."""
        return f"in {counted(self.turns, 'turn')}"

"""Test protocols as data: which corrupted images arrive, in which order, in what batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from vcotta._messages import unknown_name
from vcotta.corruptions import EXTRA, STANDARD, TABLES, corrupt, nearest_table
from vcotta.data import CorruptedSource, ImageSource, Pixels

__all__ = ["Batch", "ContinualStream", "Stream"]


@dataclass(frozen=True, eq=False)
class Batch:
    """One step of a stream.

    Attributes:
        index: Place in the stream, from 0.
        domain: Name of the corruption, or ``clean``.
        severity: Its severity, 1 to 5, or 0 where there is no corruption.
        images: Floats (n, channels, height, width) in [0, 1].
        labels: Integers (n,), for scoring only; no adapter sees them.
    """

    index: int
    domain: str
    severity: int
    images: Tensor
    labels: Tensor


class Stream(Protocol):
    """What `run_stream` needs of a protocol."""

    def __len__(self) -> int:
        """Return the number of batches."""

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Yield the batches from index ``start`` on."""

    def describe(self) -> dict[str, Any]:
        """Return all that determines the stream, as JSON can hold it."""


@dataclass(frozen=True, eq=False)
class ContinualStream:
    """The standard continual protocol: one corruption after another, each image of the data once for each.

    Images are corrupted when their batch is asked for, from ``seed`` and their place in the data alone, so every
    iteration, and one that starts in the middle, gives the same pixels. The short last batch of a domain is kept.
    Data that are stored corrupted, such as CIFAR-10-C, are taken as they are; ``seed`` and ``table`` then do nothing.
    So are other images with ``corruptions=("none",)``: a single domain called ``clean``, of severity 0.

    Attributes:
        data: Clean test images, or a `CorruptedSource`.
        corruptions: Names in order of appearance, or ``("none",)``.
        severity: 1 to 5, or several of them, visited in order as separate domains within each corruption.
        batch_size: Images in a batch.
        limit: Use only this many images, the first ones, of each domain; None for all.
        seed: Seed of the corruptions.
        device: Where the batches are put; None for the CPU.
        table: Severity constants, 32, 64 or 224, as in `corrupt`; None for those of the image size.

    Example:
        >>> from vcotta.data.digits import load_digits
        >>> stream = ContinualStream(load_digits()[1], ("fog", "frost"), severity=3, batch_size=100, limit=250)
        >>> [(batch.domain, len(batch.labels)) for batch in stream]
        [('fog', 100), ('fog', 100), ('fog', 50), ('frost', 100), ('frost', 100), ('frost', 50)]
        >>> print(stream)
        Continual stream of digits-test: 2 corruptions at severity 3, 250 images each, 6 batches of up to 100, seed 0.
    """

    data: ImageSource | CorruptedSource
    corruptions: Sequence[str] = STANDARD
    severity: int | Sequence[int] = 5
    batch_size: int = 200
    limit: int | None = None
    seed: int = 0
    device: str | torch.device | None = None
    table: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.corruptions, str):
            raise TypeError(
                f"Expected `corruptions` to be a sequence of names, but got {self.corruptions!r}. Write "
                f"({self.corruptions!r},) for a single one."
            )
        if not self.corruptions:
            raise ValueError("Expected `corruptions` to name at least one corruption, but got none.")
        self._check_domains()
        if not _is_int(self.batch_size) or self.batch_size < 1:
            raise ValueError(f"Expected `batch_size` to be at least 1, but got {self.batch_size!r}.")
        if not len(self.data):
            raise ValueError("Expected `data` to hold at least one image, but got none.")
        if self.limit is not None and (not _is_int(self.limit) or not 1 <= self.limit <= len(self.data)):
            raise ValueError(
                f"Expected `limit` to be 1 to {len(self.data)}, the number of images, but got {self.limit!r}. Leave it "
                "None to use all of them."
            )
        if not _is_int(self.seed) or self.seed < 0:
            raise ValueError(f"Expected `seed` to be an integer of at least 0, but got {self.seed!r}.")

        if self.table is not None and self.table not in TABLES:
            raise ValueError(f"Expected `table` to be one of {', '.join(map(str, TABLES))}, but got {self.table!r}.")
        if isinstance(self.data, CorruptedSource):
            for name, severity in self.domains:
                self.data.corrupted(name, severity)  # what is missing is said now, not in the middle of a run

    def _check_domains(self) -> None:
        if self._clean:
            if isinstance(self.data, CorruptedSource):
                raise ValueError(f"Expected clean images for corruptions=('none',), but {self.data.name} has none.")
            return
        known = (*STANDARD, *EXTRA)
        for name in self.corruptions:
            if name == "none":
                raise ValueError("Expected 'none' to be the only one of `corruptions`, but got others beside it.")
            if name not in known:
                raise unknown_name("corruptions", name, known)
        if not self.severities:
            raise ValueError("Expected `severity` to be 1 to 5, but got none.")
        for severity in self.severities:
            if not _is_int(severity) or not 1 <= severity <= 5:
                raise ValueError(
                    f"Expected `severity` to be 1 to 5, but got {severity!r}. Use 5 for the usual protocol."
                )

    @property
    def _clean(self) -> bool:
        return tuple(self.corruptions) == ("none",)

    @property
    def severities(self) -> tuple[int, ...]:
        """The severities of each corruption, in order; 0 alone where there is no corruption."""
        if self._clean:
            return (0,)
        return (self.severity,) if isinstance(self.severity, int) else tuple(self.severity)

    @property
    def domains(self) -> tuple[tuple[str, int], ...]:
        """The domains (corruption, severity) in order."""
        names = ("clean",) if self._clean else self.corruptions
        return tuple((name, severity) for name in names for severity in self.severities)

    @property
    def images_per_domain(self) -> int:
        """How many images each domain has."""
        return len(self.data) if self.limit is None else self.limit

    def __len__(self) -> int:
        return len(self.domains) * self._batches_per_domain

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Yield the batches from index ``start`` on, exactly as a whole iteration would."""
        if not 0 <= start <= len(self):
            raise ValueError(f"Expected `start` to be 0 to {len(self)}, the number of batches, but got {start}.")
        return (self._batch(index) for index in range(start, len(self)))

    def _batch(self, index: int) -> Batch:
        domain, place = divmod(index, self._batches_per_domain)
        name, severity = self.domains[domain]
        first = place * self.batch_size
        last = min(first + self.batch_size, self.images_per_domain)
        if isinstance(self.data, CorruptedSource):
            pixels = torch.from_numpy(self.data.corrupted(name, severity)[first:last].copy()).to(self.device)
        else:
            pixels = torch.from_numpy(self.data.images[first:last].copy()).to(self.device)
            if not self._clean:
                pixels = corrupt(pixels, name, severity, seed=self.seed, offset=first, table=self.table)
        labels = torch.from_numpy(self.data.labels[first:last].copy()).to(self.device)
        return Batch(index, name, severity, pixels.permute(0, 3, 1, 2).contiguous().float().div_(255), labels)

    @property
    def _batches_per_domain(self) -> int:
        return -(-self.images_per_domain // self.batch_size)

    def describe(self) -> dict[str, Any]:
        """Return all that determines the stream, for the manifest of a run."""
        pixels: Pixels
        if isinstance(self.data, CorruptedSource):
            pixels, digest = self.data.corrupted(*self.domains[0]), self.data.corrupted_sha256(self.domains)
            made: dict[str, Any] = {"pixels": "files", "severity_table": None, "seed": None}
        else:
            pixels, digest = self.data.images, self.data.sha256()
            table = self.table or nearest_table(*pixels.shape[1:3])
            made = {"pixels": "generated", "severity_table": table, "seed": self.seed}
        if self._clean:
            made = {"pixels": "clean", "severity_table": None, "seed": None}
        files = getattr(pixels, "preprocess", None)  # how files became images of this size
        return {
            "protocol": "continual",
            "order": ["clean"] if self._clean else list(self.corruptions),
            "severities": list(self.severities),
            **made,
            "images_per_domain": self.images_per_domain,
            "batch_size": self.batch_size,
            "preprocessing": f"{files}, uint8 / 255" if files else "uint8 / 255",
            "data": {
                "name": self.data.name,
                "images": len(self.data),
                "image_shape": list(pixels.shape[1:]),
                "classes": len(self.data.class_names),
                "sha256": digest,
            },
        }

    def __str__(self) -> str:
        end = f"{len(self)} batches of up to {self.batch_size}"
        if self._clean:
            return f"Stream of {self.data.name}: {self.images_per_domain} images as they are, {end}."
        kinds, levels = len(self.corruptions), self.severities
        at = f"severity {levels[0]}" if len(levels) == 1 else f"severities {', '.join(map(str, levels))}"
        made = "from files" if isinstance(self.data, CorruptedSource) else f"seed {self.seed}"
        return (
            f"Continual stream of {self.data.name}: {kinds} corruption{'s' * (kinds > 1)} at {at}, "
            f"{self.images_per_domain} images each, {end}, {made}."
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

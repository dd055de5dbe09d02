"""Streams: the batches of a test protocol, made one at a time."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vcotta._util.errors import counted, unknown_name
from vcotta.corruptions import EXTRA, STANDARD, TABLES, corrupt, frost_source, nearest_table
from vcotta.corruptions.frost import FrostSource
from vcotta.data import CorruptedSource, DomainData, ImageSource, Pixels
from vcotta.streams.batch import Batch, Stream
from vcotta.streams.continual import Labels
from vcotta.streams.frames import darken, useless_frames
from vcotta.streams.protocols import Continual, Domain, Segment, build_protocol

__all__ = ["Batch", "ProtocolStream", "Stream", "make_stream"]


@dataclass(frozen=True, eq=False)
class ProtocolStream:
    """The batches of a protocol; `make_stream` makes one.

    Each batch is corrupted when it is needed. The pixels of an image depend only on ``seed`` and its index in the data,
    so they are the same in every iteration, also one that starts in the middle, and in every protocol. The last batch
    of a segment may be short. Corrupted files, such as CIFAR-10-C, are read as they are; ``table`` is then not used,
    and ``seed`` only if the protocol draws the order of images. With ``corruptions=("none",)`` the images are not
    corrupted: they are a single domain called ``clean``, of severity 0, or those of a `DomainData`.

    Attributes:
        data: Clean test images, a `CorruptedSource`, or a `DomainData`, which is not corrupted.
        corruptions: Names in order of appearance, or ``("none",)``.
        severity: 1 to 5, or several of them: separate domains, in order, within each corruption.
        batch_size: Images in a batch.
        limit: Use only this many images, the first ones, of each domain; None for all.
        seed: Seed of the corruptions, and of the order of images where the protocol draws it.
        device: Where the batches are put; None for the CPU.
        table: Severity constants, 32, 64 or 224, as in `corrupt`; None for those of the image size.
        protocol: Which images arrive in which order.
        frost: Textures of the corruption ``frost``, fixed when the stream is made; None if frost is not generated.

    Example:
        >>> from vcotta.data import load_digits
        >>> from vcotta.streams.protocols import Gradual
        >>> stream = ProtocolStream(load_digits()[1], ("fog",), severity=2, limit=250, protocol=Gradual())
        >>> [(batch.domain, batch.severity, len(batch.labels)) for batch in stream]
        [('fog', 1, 200), ('fog', 1, 50), ('fog', 2, 200), ('fog', 2, 50), ('fog', 1, 200), ('fog', 1, 50)]
    """

    data: ImageSource | CorruptedSource | DomainData
    corruptions: Sequence[str] = STANDARD
    severity: int | Sequence[int] = 5
    batch_size: int = 200
    limit: int | None = None
    seed: int = 0
    device: str | torch.device | None = None
    table: int | None = None
    protocol: Continual = field(default_factory=Continual)
    frost: FrostSource | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if isinstance(self.corruptions, str):
            raise TypeError(
                f"Expected `corruptions` to be a sequence of names, but got {self.corruptions!r}. Write "
                f"({self.corruptions!r},) for a single one."
            )
        if not self.corruptions:
            raise ValueError("Expected `corruptions` to name at least one corruption, but got none.")
        if not hasattr(self.protocol, "plan"):
            raise TypeError(
                f"Expected `protocol` to be a protocol, but got {self.protocol!r}. Use `make_stream` to give a name."
            )
        self._check_domains()
        names = self._names if isinstance(self.data, DomainData) else self.corruptions
        self.protocol.ordered(names)  # raises if there are too few corruptions for the order
        if not _is_int(self.batch_size) or self.batch_size < 1:
            raise ValueError(f"Expected `batch_size` to be at least 1, but got {self.batch_size!r}.")
        if not len(self.data):
            raise ValueError("Expected `data` to hold at least one image, but got none.")
        most, of = len(self.data), ""
        if isinstance(self.data, DomainData):
            most, of = self.data.smallest, " of the smallest domain"
        if self.limit is not None and (not _is_int(self.limit) or not 1 <= self.limit <= most):
            raise ValueError(
                f"Expected `limit` to be 1 to {most}, the number of images{of}, but got "
                f"{self.limit!r}. Leave it out to use all of them."
            )
        if not _is_int(self.seed) or self.seed < 0:
            raise ValueError(f"Expected `seed` to be an integer of at least 0, but got {self.seed!r}.")
        if self.table is not None and self.table not in TABLES:
            raise ValueError(f"Expected `table` to be one of {', '.join(map(str, TABLES))}, but got {self.table!r}.")
        if isinstance(self.data, CorruptedSource):
            for name, severity in self.domains:
                self.data.corrupted(name, severity)  # raises now, not in the middle of a run, if files are missing
        elif any(name == "frost" and severity for name, severity in self.domains):
            object.__setattr__(self, "frost", frost_source())

    def _check_domains(self) -> None:
        if isinstance(self.data, DomainData) and not (self._clean and self.protocol.corrupts):
            wrong = f"the protocol {self.protocol.name}" if self._clean else f"corruptions={tuple(self.corruptions)}"
            raise ValueError(
                f"Expected `corruptions` to be ('none',), as {self.data.name} has domains of its own, and a protocol "
                f"that visits them, but got {wrong}."
            )
        if isinstance(self.data, CorruptedSource) and (self._clean or not self.protocol.corrupts):
            needed_by = "corruptions=('none',)" if self._clean else f"the protocol {self.protocol.name}"
            raise ValueError(f"Expected clean images for {needed_by}, but {self.data.name} has none.")
        if self._clean:
            return
        known = (*STANDARD, *EXTRA)
        for name in self.corruptions:
            if name == "none":
                raise ValueError("Expected 'none' to be the only one of `corruptions`, but got others beside it.")
            if name not in known:
                raise unknown_name("corruptions", name, known)
        given = (self.severity,) if isinstance(self.severity, int) else tuple(self.severity)
        if not given:
            raise ValueError("Expected `severity` to be 1 to 5, but got none.")
        for severity in given:
            if not _is_int(severity) or not 1 <= severity <= 5:
                raise ValueError(
                    f"Expected `severity` to be 1 to 5, but got {severity!r}. Use 5 for the usual protocol."
                )

    @property
    def _clean(self) -> bool:
        return tuple(self.corruptions) == ("none",)

    @property
    def _names(self) -> tuple[str, ...]:
        if isinstance(self.data, DomainData):
            return tuple(self.data.parts)
        return ("clean",) if self._clean else tuple(self.corruptions)

    @property
    def severities(self) -> tuple[int, ...]:
        """The severities of each corruption, in order; only 0 if there is no corruption."""
        return (0,) if self._clean else self.protocol.severities(self.severity)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The domains (corruption, severity) in the order of ``corruptions``; that of the protocol may differ."""
        return self.protocol.domains(self._names, self.severities)

    @property
    def images_per_domain(self) -> int | dict[str, int]:
        """Number of images of each domain, by name where they differ."""
        if self.limit is not None:
            return self.limit
        if isinstance(self.data, DomainData):
            return {name: len(part) for name, part in self.data.parts.items()}
        return len(self.data)

    @cached_property
    def _plan(self) -> list[Segment]:
        labels: Labels
        if isinstance(self.data, DomainData):
            labels = {name: part.labels[: self.limit] for name, part in self.data.parts.items()}
        else:
            labels = self.data.labels[: self.limit]
        return self.protocol.plan(self._names, self.severities, labels, self.seed)

    @cached_property
    def _ends(self) -> list[int]:
        """For each segment the index of the batch after its last."""
        return list(accumulate(-(-len(segment.images) // self.batch_size) for segment in self._plan))

    def __len__(self) -> int:
        return self._ends[-1]

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Yield the batches from index ``start`` on, the same as in a whole iteration."""
        if not 0 <= start <= len(self):
            raise ValueError(f"Expected `start` to be 0 to {len(self)}, the number of batches, but got {start}.")
        return (self._batch(index) for index in range(start, len(self)))

    def _batch(self, index: int) -> Batch:
        number = bisect_right(self._ends, index)
        segment, before = self._plan[number], self._ends[number - 1] if number else 0
        first = (index - before) * self.batch_size
        part = slice(first, first + self.batch_size)
        images = segment.images[part]
        which = None if segment.which is None or len(segment.domains) == 1 else segment.which[part]
        labels = torch.from_numpy(self._labels(segment.domains, which, images)).to(self.device)
        reset = segment.reset and not first
        if segment.useless is not None:
            pixels = self._pixels(segment.domains[0], images)
            frames = useless_frames(segment.useless, pixels, self.seed, number, first)
            return Batch(index, segment.useless, 0, _to_floats(frames), labels, reset)
        if which is None:
            name, severity = segment.domains[0]
            return Batch(index, name, severity, _to_floats(self._pixels((name, severity), images)), labels, reset)
        alike = len({severity for _, severity in segment.domains}) == 1
        names, severities = zip(*(segment.domains[kind] for kind in which), strict=True)
        return Batch(
            index,
            "mixed",
            segment.domains[0][1] if alike else 0,
            _to_floats(self._mixed_pixels(segment.domains, which, images)),
            labels,
            reset,
            names,
            severities,
        )

    def _labels(
        self, domains: Sequence[Domain], which: NDArray[np.int64] | None, images: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the labels of images, ``which`` of the domains each is of if there are several."""
        if not isinstance(self.data, DomainData):
            return self.data.labels[images]
        of = [self.data.parts[name].labels for name, _ in domains]
        if which is None:
            return of[0][images]
        return np.array([of[kind][image] for kind, image in zip(which, images, strict=True)], np.int64)

    def _mixed_pixels(self, domains: Sequence[Domain], which: NDArray[np.int64], images: NDArray[np.int64]) -> Tensor:
        members = [np.flatnonzero(which == kind) for kind in range(len(domains))]
        parts = [
            self._pixels(domain, images[chosen]) for domain, chosen in zip(domains, members, strict=True) if len(chosen)
        ]
        back = torch.from_numpy(np.concatenate(members).argsort())
        joined = torch.cat(parts)
        return joined[back.to(joined.device)]

    def _pixels(self, domain: Domain, images: NDArray[np.int64]) -> Tensor:
        """Return the corrupted bytes of these images, all of one domain."""
        source = self._source(domain)
        pixels = torch.from_numpy(_read(source, images)).to(self.device)
        if not domain[1] or isinstance(self.data, CorruptedSource):
            return pixels
        if domain[0] == "dark":
            return darken(pixels, domain[1])
        return corrupt(pixels, *domain, seed=self.seed, offset=images, table=self.table, textures=self.frost)

    def _source(self, domain: Domain) -> Pixels:
        """Return all images of a domain, before any corruption here."""
        if isinstance(self.data, DomainData):
            return self.data.parts[domain[0]].images
        return self.data.corrupted(*domain) if isinstance(self.data, CorruptedSource) else self.data.images

    def describe(self) -> dict[str, Any]:
        """Return all that determines the stream, for the manifest of a run."""
        pixels = self._source(self.domains[0])
        seed = self.seed if self.protocol.draws_images else None
        if isinstance(self.data, CorruptedSource):
            digest = self.data.corrupted_sha256(self.domains)
            made: dict[str, Any] = {"pixels": "files", "severity_table": None, "seed": seed, "frost": None}
        else:
            digest = self.data.sha256()
            table = self.table or nearest_table(*pixels.shape[1:3])
            made = {"pixels": "generated", "severity_table": table, "seed": self.seed, "frost": self.frost}
        if self._clean or not self.protocol.corrupts:
            pixels_are = "clean" if self._clean else "generated"
            made = {"pixels": pixels_are, "severity_table": None, "seed": seed, "frost": None}
        files = getattr(pixels, "preprocess", None)  # how image files were resized
        return {
            **self.protocol.describe(),
            "order": list(self.protocol.ordered(self._names)),
            "severities": list(self.protocol.path(self.severities)),
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
        end = [f"{counted(len(self), 'batch', 'batches')} of up to {self.batch_size}"]
        if remark := self.protocol.remark():
            end.append(remark)
        stored = isinstance(self.data, CorruptedSource)
        if stored:
            end.append("from files")
        if self.protocol.draws_images or not (stored or self._clean or not self.protocol.corrupts):
            end.append(f"seed {self.seed}")
        if isinstance(self.data, DomainData):
            images = sum(len(segment.images) for segment in self._plan)
            what = f"{', '.join(self.protocol.ordered(self._names))}, {counted(images, 'image')} as they are"
            return f"{self.protocol.kind} stream of {self.data.name}: {what}, {', '.join(end)}."
        if self._clean:
            return f"Stream of {self.data.name}: {self.images_per_domain} images as they are, {', '.join(end)}."
        levels = self.protocol.path(self.severities)
        at = f"severity {levels[0]}" if len(levels) == 1 else f"severities {', '.join(map(str, levels))}"
        return (
            f"{self.protocol.kind} stream of {self.data.name}: {self.protocol.contents(self._names)} at {at}, "
            f"{self.images_per_domain} images each, {', '.join(end)}."
        )


def make_stream(
    protocol: str | Continual,
    data: ImageSource | CorruptedSource | DomainData,
    corruptions: Sequence[str] | None = None,
    severity: int | Sequence[int] = 5,
    batch_size: int = 200,
    limit: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    table: int | None = None,
    **options: Any,
) -> ProtocolStream:
    """Make the stream of a protocol.

    Args:
        protocol: One of `PROTOCOLS`, for example ``continual``, or a protocol object.
        data: Clean test images, corrupted ones from files, or those of several domains.
        corruptions: Names in order; None for the fifteen standard ones, ``("none",)`` for the images as they are. With
            ``day_night`` and with a `DomainData` there are none to choose.
        severity: 1 to 5, or several; for ``gradual`` the peak, or the way up.
        batch_size: Images in a batch.
        limit: Use only this many images of each domain.
        seed: Seed of the corruptions, and of the order of images if the protocol draws it.
        device: Where the batches are put.
        table: Severity constants, 32, 64 or 224; None for those of the image size.
        options: The protocol's numbers, as in `build_protocol`.

    Example:
        >>> from vcotta.data import load_digits
        >>> stream = make_stream("continual", load_digits()[1], ("fog", "snow"), severity=3, batch_size=100, limit=150)
        >>> [(batch.domain, len(batch.labels)) for batch in stream]
        [('fog', 100), ('fog', 50), ('snow', 100), ('snow', 50)]
        >>> print(make_stream("loops", load_digits()[1], ("fog", "snow"), limit=300, rounds=3))
        Continual stream of digits-test: 2 corruptions at severity 5, 300 images each, 12 batches of up to 200, \
in 3 rounds, seed 0.
    """
    if isinstance(data, Tensor | np.ndarray | list | tuple):
        raise TypeError(
            f"Expected `data` to be images with labels, such as vcotta.data.ImageData, but got {type(data).__name__}. "
            "Images without labels need no stream: call the adapter on each batch."
        )
    if isinstance(protocol, str):
        protocol = build_protocol(protocol, **options)
    elif options:
        raise ValueError(f"Expected {', '.join(options)} only with the name of a protocol, but got {protocol!r}.")
    usual = ("none",) if isinstance(data, DomainData) else STANDARD
    names = usual if corruptions is None else corruptions
    return ProtocolStream(data, names, severity, batch_size, limit, seed, device, table, protocol)


def _read(source: Pixels, images: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return a copy of the images with these indices; scattered ones in files are decoded by a few threads."""
    first, last = int(images[0]), int(images[-1]) + 1
    if np.array_equal(images, np.arange(first, last)):
        return source[first:last].copy()
    if isinstance(source, np.ndarray):
        return np.asarray(source[images])
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return np.concatenate(list(pool.map(lambda index: source[index : index + 1], images.tolist())))


def _to_floats(pixels: Tensor) -> Tensor:
    return pixels.permute(0, 3, 1, 2).contiguous().float().div_(255)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

"""`RunSpec`: the one description of a run."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from vcotta._util.errors import unknown_name
from vcotta._util.files import sha256
from vcotta.bayes import WarmUpConfig
from vcotta.corruptions import STANDARD
from vcotta.methods import DATASETS, Guard, choose_guard, configure, find_method
from vcotta.nn.runtime import Runtime
from vcotta.streams.protocols import build_protocol

__all__ = ["RunSpec", "Start", "without_paths"]

Start = Literal["source", "warmed", "unwarmed", "scratch"]
"""The network a run starts from: the ``source`` network; that network ``warmed`` up, or made variational without a
warm-up (``unwarmed``); or a variational network trained from ``scratch``."""

_PATHS = ("weights", "corrupted")


@dataclass(frozen=True, eq=False)
class RunSpec:
    """All that determines a run: data, network, method, stream, seeds, guard and runtime.

    ``vcotta run``, ``demo``, ``tune``, ``reproduce``, ``bundle`` and the studies all make one and give it to
    `vcotta.experiments.grid.run_spec`, so that equal specs give equal bytes. The manifest of a run has it as
    ``spec`` (`to_json`). Specs are equal if they have the same words, where ``start``, ``guard``, ``precision`` and
    ``options`` may leave the usual value out; ``label`` does not count.

    Attributes:
        method: Name of the method, one of `list_methods`.
        data: Name of the data set, such as ``digits``, ``cifar10`` or ``folder:DIR``.
        network: Name of the network; None for the data set's own.
        weights: File of its weights, or of a warmed network; None trains one if the data set is digits.
        options: Options of the method in place of the data set's settings; for VCoTTA also ``preset``.
        start: The network it starts from; None for ``warmed`` if the method needs a variational network, else
            ``source``.
        warm_up: Settings of the warm-up in place of those of the data set and preset.
        source: Data set that methods learn from and warm up on before testing; None for the training images of
            ``data``.
        source_share: Share of the source images that the run learns from before testing, the first ones.
        source_limit: Number of the source images that the run learns from before testing, the first ones; None for
            all.
        protocol: Name of the test protocol, one of `PROTOCOLS`.
        protocol_options: Its numbers, as in `build_protocol`.
        domains: Of ``folder:DIR``, the sub-folders that the stream visits in this order, each with a folder for each
            class; empty for class folders in DIR itself.
        corruptions: Their names in order, or ``("none",)``, as always with ``domains``.
        severity: 1 to 5, or several.
        table: Severity constants, 32, 64 or 224; None for those of the image size.
        batch_size: Images in a batch; None for the data set's own number.
        limit: Images of each domain; None for all.
        corrupted: Folder of corrupted files, such as CIFAR-10-C; None corrupts on the fly.
        corrupted_options: How those files are read: ``preprocess``, ``legacy``, ``subset``, ``list_file``.
        seed: Seed of all that the run makes: the network where it is trained or warmed up here, and the adapter.
        stream_seed: Seed of the corrupted images and of their order. It is apart from ``seed`` because a published
            corrupted test set is the same in every run.
        guard: Protections of the adapter, see `Guard`; None for what the method and its preset declare.
        device: ``cpu``, ``cuda``, ...
        precision: ``fp32``, ``bf16`` or ``fp64``; None for ``bf16`` on a GPU and ``fp32`` elsewhere.
        label: Row of a table that the run belongs to.

    Example:
        >>> spec = RunSpec("tent", options={"lr": 0.01}, protocol="loops", protocol_options={"rounds": 3}, seed=1)
        >>> print(spec)
        tent on digits, options={'lr': 0.01}, protocol=loops, protocol_options={'rounds': 3}, seed=1
        >>> RunSpec.from_json(spec.to_json()) == spec
        True
        >>> RunSpec("vcotta") == RunSpec("vcotta", options={"preset": "best", "views": 8}, guard=True, label="8 views")
        True
        >>> RunSpec("vcotta").key == RunSpec("vcotta", seed=1).key
        False
    """

    method: str
    data: str = "digits"
    network: str | None = None
    weights: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    start: Start | None = None
    warm_up: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    source_share: float = 1.0
    source_limit: int | None = None
    protocol: str = "continual"
    protocol_options: Mapping[str, Any] = field(default_factory=dict)
    domains: Sequence[str] = ()
    corruptions: Sequence[str] = STANDARD
    severity: int | Sequence[int] = 5
    table: int | None = None
    batch_size: int | None = None
    limit: int | None = None
    corrupted: Path | None = None
    corrupted_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    stream_seed: int = 0
    guard: Guard | bool | None = None
    device: str = "cpu"
    precision: Literal["fp32", "bf16", "fp64"] | None = None
    label: str = ""

    def __post_init__(self) -> None:
        for name in _PATHS:
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, Path(path))
        _ = self.config  # raises for an unknown method or a wrong option
        build_protocol(self.protocol, **self.protocol_options)
        self._check_domains()
        _check_warm_up(self.warm_up)
        if self.start not in (None, *get_args(Start)):
            raise unknown_name("start", self.start, get_args(Start))
        if self.start == "source" and find_method(self.method).needs_variational:
            raise ValueError(
                f"Expected `start` to be warmed, unwarmed or scratch for {self.method}, which needs a variational "
                "network, but got 'source'."
            )
        if self.warm_up and self.resolved_start == "source":
            raise ValueError(f"Expected `warm_up` only with a warm-up, but got it for {self}.")
        learns = self.resolved_start != "source" or find_method(self.method).card.source != "nothing"
        if not (self.whole_source or learns):
            given = "source_share" if self.source_limit is None else "source_limit"
            raise ValueError(f"Expected `{given}` only where source images are learned from, but got {self}.")
        if self.source_limit is not None and (type(self.source_limit) is not int or self.source_limit < 1):
            raise ValueError(f"Expected `source_limit` to be a whole number from 1, but got {self.source_limit!r}.")
        if self.source_limit is not None and self.source_share != 1:
            raise ValueError("Expected `source_share` or `source_limit`, but got both.")
        if not 0 < self.source_share <= 1:
            raise ValueError(f"Expected `source_share` to be above 0 and at most 1, but got {self.source_share}.")
        if self.corrupted_options and self.corrupted is None:
            raise ValueError(
                f"Expected {', '.join(self.corrupted_options)} only together with `corrupted`, but got no such folder."
            )
        for name in ("seed", "stream_seed"):
            if type(value := getattr(self, name)) is not int or value < 0:
                raise ValueError(f"Expected `{name}` to be a whole number from 0, but got {value!r}.")
        if not (self.guard is None or isinstance(self.guard, bool | Guard)):
            raise TypeError(f"Expected `guard` to be a Guard, True, False or None, but got {self.guard!r}.")
        levels = (self.severity,) if isinstance(self.severity, int) else tuple(self.severity)
        if not levels or not all(type(level) is int and 1 <= level <= 5 for level in levels):
            raise ValueError(f"Expected `severity` to be 1 to 5, or several of them, but got {self.severity!r}.")
        if self.precision not in (None, "fp32", "bf16", "fp64"):
            raise unknown_name("precision", self.precision, ("fp32", "bf16", "fp64"))

    def _check_domains(self) -> None:
        if not self.domains:
            return
        if not self.data.startswith("folder:"):
            raise ValueError(f"Expected `domains` only with the data set folder:DIR, but got them with {self.data}.")
        if isinstance(self.domains, str) or len(set(self.domains)) != len(self.domains) or "" in self.domains:
            raise ValueError(
                f"Expected `domains` to be names of different folders, but got {self.domains!r}. To visit them again "
                "use the protocol loops."
            )
        if tuple(self.corruptions) not in (STANDARD, ("none",)) or self.corrupted is not None:
            raise ValueError(
                "Expected no corruptions with `domains`, whose images are taken as they are, but got "
                f"{', '.join(self.corruptions) if self.corrupted is None else self.corrupted}. Leave them out."
            )
        object.__setattr__(self, "corruptions", ("none",))

    @property
    def config(self) -> Any:
        """The method's config: the data set's settings with ``options`` on top."""
        return configure(self.method, **self.settings)

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments for `build_adapter` and `configure`: ``options``, and the data set whose settings they change."""
        return {**_settings(self.data), **self.options}

    @property
    def resolved_start(self) -> Start:
        """``start``, or its usual value."""
        return self.start or ("warmed" if find_method(self.method).needs_variational else "source")

    @property
    def resolved_guard(self) -> Guard | None:
        """The guard of the adapter: ``guard``, or what the method and preset declare."""
        return choose_guard(self.method, self.guard, self.options)

    @property
    def whole_source(self) -> bool:
        """Whether the run may learn from all source images."""
        return self.source_share == 1 and self.source_limit is None

    @property
    def runtime(self) -> Runtime:
        """Device and precision; raises `ValueError` where this machine does not have the device."""
        return Runtime(self.device, self.precision)

    @property
    def weights_file_sha256(self) -> str | None:
        """Hash of the file ``weights``, None where there is none."""
        if self.weights is None:
            return None
        stat = self.weights.stat()
        return _file_sha256(self.weights, stat.st_mtime_ns, stat.st_size)

    @property
    def key(self) -> str:
        """A name for the folder of the run: method, seed, and a hash of all that determines the run."""
        facts = {**without_paths(self.to_json()), "weights_file_sha256": self.weights_file_sha256}
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.method}-{self.seed}-{digest}"

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON can hold it, with the usual start, guard and precision in place of None."""
        guard, device = self.resolved_guard, torch.device(self.device).type
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        if self.source_limit is None:  # runs from before there was a limit keep their keys
            del given["source_limit"]
        if not self.domains:  # likewise
            del given["domains"]
        return {
            **{name: _plain(value) for name, value in given.items()},
            "options": _plain(self._unusual_options()),
            "start": self.resolved_start,
            "guard": asdict(guard) if guard else False,
            "precision": self.precision or ("bf16" if device == "cuda" else "fp32"),
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> RunSpec:
        """Make a spec from the result of `to_json`, such as the ``spec`` of a manifest.

        Raises:
            ValueError: A name or value is wrong.
        """
        known = [one.name for one in fields(cls)]
        for name in facts:
            if name not in known:
                raise unknown_name("field of a RunSpec", name, known)
        guard = facts.get("guard")
        several = ("domains", "corruptions", "severity")
        lists = {name: tuple(facts[name]) for name in several if isinstance(facts.get(name), list)}
        return cls(**{**facts, **lists, "guard": Guard(**guard) if isinstance(guard, Mapping) else guard})

    def _unusual_options(self) -> dict[str, Any]:
        """The options without those that repeat the usual value."""
        method, given = find_method(self.method), dict(self.options)
        if method.find_preset(given.get("preset")) == method.find_preset(None):
            given.pop("preset", None)
        chosen = {name: value for name, value in given.items() if name in ("preset", "dataset")}
        usual = asdict(configure(self.method, **{**_settings(self.data), **chosen}))
        kept = {name: value for name, value in given.items() if name in chosen or usual.get(name) != value}
        same = configure(self.method, **{**_settings(self.data), **kept}) == self.config
        return kept if same else given  # a method's settings may depend on which options are given

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunSpec) and self._words() == other._words()

    def __hash__(self) -> int:
        return hash(self._words())

    def _words(self) -> str:
        return json.dumps({**self.to_json(), "label": None}, sort_keys=True)

    def __str__(self) -> str:
        parts = [f"{self.method} on {self.data}"]
        for one in fields(self)[2:]:
            value = getattr(self, one.name)
            if one.name != "label" and value != one.default and value != {}:
                parts.append(f"{one.name}={value}")
        return ", ".join(parts)


def without_paths(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the label and the paths of files from the JSON of a spec; hashes of the files identify a run instead."""
    kept = {name: value for name, value in facts.items() if name not in ("label", *_PATHS)}
    files = kept.get("corrupted_options") or {}
    return {**kept, "corrupted_options": {name: value for name, value in files.items() if name != "list_file"}}


def _settings(data: str) -> dict[str, str]:
    """The data set whose settings a method uses; ImageNet's for data sets that methods have no settings for."""
    return {"dataset": data if data in DATASETS else "imagenet"}


def _check_warm_up(settings: Mapping[str, Any]) -> None:
    known = [one.name for one in fields(WarmUpConfig)]
    for name in settings:
        if name not in known:
            raise unknown_name("setting of a warm-up", name, known)
    WarmUpConfig(**settings)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, os.PathLike) else value


@functools.lru_cache(maxsize=16)
def _file_sha256(path: Path, modified: int, size: int) -> str:
    return sha256(path)

"""What a method declares about itself: a card for the table of methods, settings and named presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vcotta._util.errors import unknown_name

__all__ = ["Card", "Declared", "Preset"]


@dataclass(frozen=True)
class Card:
    """One row in the table of methods.

    Attributes:
        venue: Where the method was published.
        trains: What it trains: ``nothing``, ``normalisation``, ``everything``, ...
        source: What it needs of the source data before testing, ``nothing`` or in words.
        passes: Forward and backward passes over a batch, N being the number of views.
        provenance: What it was written from. A ``reconstruction`` is written from the abstract and what others say of
            the paper, since neither its text nor code could be read: what is ours is listed in its docstring.
        distributed: Whether several processes can share a batch and give the result of one, as the tests show.
        without_batch_norm: What it cannot do on networks without BatchNorm, to follow its name in the warning that
            such a network then gets; empty if it works there as elsewhere.
    """

    venue: str
    trains: str
    source: str
    passes: str
    provenance: Literal["official code", "re-implementation", "paper text", "reconstruction"]
    distributed: bool = False
    without_batch_norm: str = ""


@dataclass(frozen=True)
class Preset:
    """Named settings of a method, chosen by ``build_adapter(..., preset=NAME)``.

    Attributes:
        settings: Fields of the method's config that differ from its defaults.
        datasets: Fields that differ further, by data set.
        warm_up: For methods on variational networks: fields of `WarmUpConfig` that differ from the usual warm-up.
        warm_up_datasets: Fields of `WarmUpConfig` that differ further, by data set.
        guarded: Whether `build_adapter` adds a `Guard` when the caller does not choose one.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    datasets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    warm_up: Mapping[str, Any] = field(default_factory=dict)
    warm_up_datasets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    guarded: bool = False


class Declared:
    """The class attributes of a method.

    Attributes:
        name: The method's name in `build_adapter`.
        summary: What it does, in a few words.
        card: Where it comes from, what it needs and what it costs.
        Config: The method's frozen settings; its defaults are for CIFAR10-C or any network.
        datasets: Settings that differ from these defaults by data set, see `vcotta.methods.DATASETS`.
        presets: Named settings, the first the default; empty for a method with one set of settings.
        needs_source: Whether it must be prepared on source data before its first batch.
        needs_variational: Whether the model must be a variational network.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    card: ClassVar[Card]
    Config: ClassVar[type[Any]]
    datasets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    presets: ClassVar[Mapping[str, Preset]] = {}
    needs_source: ClassVar[bool] = False
    needs_variational: ClassVar[bool] = False

    @classmethod
    def settings_for(cls, dataset: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that a data set and a preset, ``options["preset"]``, change in the config."""
        preset = cls.find_preset(options.get("preset"))
        return {**cls.datasets.get(dataset or "", {}), **preset.settings, **preset.datasets.get(dataset or "", {})}

    @classmethod
    def find_preset(cls, name: str | None) -> Preset:
        """Return the preset of that name; for None the first, or an empty one if the method has none."""
        if name is None:
            return next(iter(cls.presets.values()), Preset())
        if not cls.presets:
            raise ValueError(f"Expected no `preset` for {cls.name}, which has none, but got {name!r}.")
        if name not in cls.presets:
            raise unknown_name("preset", name, cls.presets)
        return cls.presets[name]

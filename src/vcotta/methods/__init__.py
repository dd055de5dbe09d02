"""The methods, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import Tensor, nn

from vcotta._messages import unknown_name
from vcotta.bayes import WarmUpConfig, is_variational, warm_up
from vcotta.distributed import World
from vcotta.guard import Guard
from vcotta.methods.adacontrast import AdaContrast, AdaContrastConfig
from vcotta.methods.base import Adapter
from vcotta.methods.bn import BN, BNConfig
from vcotta.methods.cmf import CMF, CMFConfig
from vcotta.methods.cotta import CoTTA, CoTTAConfig
from vcotta.methods.deyo import DeYO, DeYOConfig
from vcotta.methods.eata import EATA, EATAConfig
from vcotta.methods.obao import OBAO, OBAOConfig
from vcotta.methods.palm import PALM, PALMConfig
from vcotta.methods.petal import PETAL, PETALConfig
from vcotta.methods.rdumb import RDumb, RDumbConfig
from vcotta.methods.rmt import RMT, RMTConfig
from vcotta.methods.roid import ROID, ROIDConfig
from vcotta.methods.rotta import RoTTA, RoTTAConfig
from vcotta.methods.santa import SANTA, SANTAConfig
from vcotta.methods.sar import SAR, SARConfig
from vcotta.methods.source import Source, SourceConfig
from vcotta.methods.surgeon import SURGEON, SURGEONConfig
from vcotta.methods.tca import TCA, TCAConfig
from vcotta.methods.tent import TENT, TENTConfig
from vcotta.methods.vcotta import VCoTTA, VCoTTAConfig
from vcotta.runtime import Runtime

__all__ = [
    "BN",
    "CMF",
    "DATASETS",
    "EATA",
    "METHODS",
    "OBAO",
    "PALM",
    "PETAL",
    "RMT",
    "ROID",
    "SANTA",
    "SAR",
    "SURGEON",
    "TCA",
    "TENT",
    "AdaContrast",
    "AdaContrastConfig",
    "Adapter",
    "BNConfig",
    "CMFConfig",
    "CoTTA",
    "CoTTAConfig",
    "DeYO",
    "DeYOConfig",
    "EATAConfig",
    "OBAOConfig",
    "PALMConfig",
    "PETALConfig",
    "RDumb",
    "RDumbConfig",
    "RMTConfig",
    "ROIDConfig",
    "RoTTA",
    "RoTTAConfig",
    "SANTAConfig",
    "SARConfig",
    "SURGEONConfig",
    "Source",
    "SourceConfig",
    "TCAConfig",
    "TENTConfig",
    "VCoTTA",
    "VCoTTAConfig",
    "build_adapter",
    "check_distributed",
    "choose_guard",
    "configure",
    "distribute",
    "list_methods",
]

DATASETS = ("cifar10", "cifar100", "imagenet", "digits")
"""The data sets that methods have settings for."""

METHODS: dict[str, type[Adapter]] = {
    method.name: method
    for method in (
        Source,
        BN,
        TENT,
        AdaContrast,
        CoTTA,
        EATA,
        RoTTA,
        PETAL,
        RMT,
        SANTA,
        PALM,
        SURGEON,
        OBAO,
        TCA,
        ROID,
        SAR,
        RDumb,
        CMF,
        DeYO,
        VCoTTA,
    )
}


def list_methods() -> list[str]:
    """Return the names `build_adapter` knows.

    Example:
        >>> list_methods()  # doctest: +NORMALIZE_WHITESPACE
        ['source', 'bn', 'tent', 'adacontrast', 'cotta', 'eata', 'rotta', 'petal', 'rmt', 'santa', 'palm', 'surgeon',
         'obao', 'tca', 'roid', 'sar', 'rdumb', 'cmf', 'deyo', 'vcotta']
    """
    return list(METHODS)


def build_adapter(
    name: str,
    model: nn.Module,
    *,
    source: Iterable[tuple[Tensor, Tensor]] | None = None,
    guard: Guard | bool | None = None,
    **options: Any,
) -> Adapter:
    """Make an adapter by name.

    Args:
        name: One of `list_methods`.
        model: A classifier that takes images in [0, 1]; it is copied. ``vcotta`` wants a variational network, or a
            plain one together with ``source``, on which it is then warmed up.
        source: Source data, yielding (images in [0, 1], labels), for methods that prepare on it; others ignore it. It
            is read before testing and never at test time; by a warm-up once an epoch.
        guard: Protections against collapse and drift, see `Guard`; True for the usual ones, False for none, None for
            the usual ones if the method is ``vcotta`` with its preset ``best``, and none for any other.
        options: Fields of the method's config, such as ``lr`` or ``views``; besides ``seed`` and ``runtime``, which
            every adapter takes, ``dataset``, one of `DATASETS`, whose settings the fields then start from, and for
            ``vcotta`` ``preset`` (see `VCoTTAConfig.preset`) and ``warmup``, a `WarmUpConfig` for a plain network;
            with ``flip=False`` the warm-up does not mirror images either.

    Returns:
        The adapter, ready for its first batch.

    Example:
        >>> import torch
        >>> adapter = build_adapter("source", nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), seed=1)
        >>> adapter(torch.rand(5, 3, 2, 2)).shape
        torch.Size([5, 2])
    """
    shared: dict[str, Any] = {key: options.pop(key) for key in ("seed", "runtime") if key in options}
    runtime: Runtime | None = shared.get("runtime")
    warmup = options.pop("warmup", None) if name == VCoTTA.name else None
    shared["guard"] = choose_guard(name, guard, options)
    if name in METHODS:
        presets = ("preset", "warmup") if METHODS[name] is VCoTTA else ()
        _check_names(METHODS[name], options, (*presets, "dataset", "seed", "runtime"))
    config = configure(name, **options)
    method = METHODS[name]
    if not isinstance(model, nn.Module):
        raise TypeError(f"Expected `model` to be a torch.nn.Module, but got {type(model).__name__}.")
    if warmup is not None and not isinstance(warmup, WarmUpConfig):
        raise TypeError(f"Expected `warmup` to be a WarmUpConfig, but got {warmup!r}. Try WarmUpConfig(epochs=2).")
    if warmup is not None and is_variational(model):
        raise ValueError("Expected `warmup` only with a plain network, but got one that is variational already.")
    if method.needs_variational and not is_variational(model) and source is not None:
        warmup = warmup or WarmUpConfig()
        warmup = replace(warmup, flip=warmup.flip and config.flip)
        model = warm_up(model, source, warmup, runtime=runtime)
    adapter = method(model, config, **shared)
    if source is not None:
        adapter.prepare(source)
    return adapter


def configure(name: str, **options: Any) -> Any:
    """Make the config of a method from options, as `build_adapter` does; unknown names are refused with the nearest.

    Example:
        >>> configure("tent", lr=1e-4)
        TENTConfig(lr=0.0001, optimizer='adam')
    """
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    method = METHODS[name]
    dataset = options.pop("dataset", None)
    if dataset is not None and dataset not in DATASETS:
        raise unknown_name("dataset", dataset, DATASETS)
    presets = {key: options.pop(key) for key in ("preset",) if key in options and method is VCoTTA}
    _check_names(method, options)
    if method is VCoTTA:
        return VCoTTAConfig.preset(presets.get("preset", "best"), dataset or "cifar10", **options)
    return method.Config(**{**method.settings_for(dataset, options), **options})


def _check_names(method: type[Adapter], options: Mapping[str, Any], others: Sequence[str] = ()) -> None:
    """Raise unless every option is a field of the method's config, or one of what else the caller takes."""
    known = [field.name for field in fields(method.Config)]
    for key in options:
        if key not in (*known, *others):
            if not known:
                raise ValueError(f"Expected no options for {method.name}, but got {key!r}.")
            raise unknown_name(f"option of {method.name}", key, [*known, *others])


def check_distributed(name: str) -> None:
    """Raise unless several processes can share the batches of a method.

    Example:
        >>> check_distributed("vcotta")
    """
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    if not METHODS[name].facts.distributed:
        able = ", ".join(other for other, method in METHODS.items() if method.facts.distributed)
        raise ValueError(
            f"Expected a method whose batches several processes can share, but got {name}. Run it in one process, or "
            f"choose one of {able}."
        )


def choose_guard(name: str, guard: Guard | bool | None, options: Mapping[str, Any]) -> Guard | None:
    """The protections of an adapter, as asked for in `build_adapter` or as usual for its method and preset.

    Example:
        >>> choose_guard("tent", None, {}) is None, choose_guard("vcotta", None, {}) is None
        (True, False)
    """
    if guard is None:
        guard = name == VCoTTA.name and options.get("preset", "best") == "best"
    return Guard() if guard is True else guard or None


def distribute(adapter: Adapter, world: World) -> None:
    """Let an adapter share every batch with the same adapter of other processes, from the first one's state.

    From then on all processes must call it with the same whole batches. Each gets the whole prediction, the same as
    one process would, up to rounding.

    Args:
        adapter: The adapter, of the same method, settings and architecture in every process.
        world: The processes, from `vcotta.distributed.join_world`.

    Raises:
        ValueError: If the method cannot be shared, with those that can.

    Example:
        >>> adapter = build_adapter("bn", nn.Sequential(nn.Flatten(), nn.Linear(12, 2)))
        >>> distribute(adapter, World())  # a process of its own: nothing changes
    """
    if world.size > 1:
        if type(adapter).facts.distributed is False:
            check_distributed(adapter.name)
        state = world.share_state(adapter.state_dict() if world.leads else None)
        if not world.leads:
            adapter.load_state_dict(state)
    adapter.world = world

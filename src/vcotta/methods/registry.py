"""Methods by name: registration, plug-ins, settings, guard and adapter."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from inspect import signature
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from vcotta._util.errors import nearest, unknown_name
from vcotta._util.plugins import imported
from vcotta._util.validation import check_kind
from vcotta._util.warn import warn
from vcotta.bayes import WarmUpConfig, is_variational, warm_up
from vcotta.methods.base import Adapter
from vcotta.methods.card import MARK
from vcotta.methods.guard import Guard
from vcotta.methods.state import adapter_state
from vcotta.nn.distributed import World
from vcotta.nn.runtime import Runtime

__all__ = [
    "DATASETS",
    "ENTRY_POINTS",
    "build_adapter",
    "check_distributed",
    "choose_guard",
    "configure",
    "distribute",
    "find_method",
    "import_method",
    "list_general_methods",
    "list_methods",
    "marked",
    "register_method",
    "warm_up_settings",
]

DATASETS = ("cifar10", "cifar100", "imagenet", "digits")
"""The data sets that methods have settings for."""

ENTRY_POINTS = "vcotta.methods"
"""The group of entry points by which an installed package adds methods: ``name = "package.module:Class"``."""

REGISTERED: dict[str, type[Adapter]] = {}
"""The methods registered so far; `find_method` and `list_methods` also load those of installed packages."""

_tried: set[str] = set()  # entry points that were loaded, or failed to

_LABEL = re.compile(r"(`?[a-z0-9-]*`?)(.*)", re.DOTALL)  # the method, and what follows

Method = TypeVar("Method", bound=type[Adapter])


def register_method(method: Method) -> Method:
    """Make an `Adapter` class known by its ``name`` to `build_adapter`, `configure`, `load` and the command line.

    Use it as a class decorator. A class registered again replaces itself, so that a module can be reloaded.

    Raises:
        TypeError: It is no `Adapter` class, or lacks a declaration.
        ValueError: Another class has that name.

    Example:
        >>> from vcotta.methods import TENT
        >>> register_method(TENT) is TENT
        True
    """
    if not _is_method(method):
        raise TypeError(f"Expected a class derived from vcotta.Adapter, but got {method!r}.")
    if missing := [part for part in ("name", "summary", "card", "Config") if not hasattr(method, part)]:
        raise TypeError(f"Expected the class {method.__qualname__} to declare {', '.join(missing)}, but it does not.")
    if not is_dataclass(method.Config):
        raise TypeError(
            f"Expected the Config of {method.__qualname__} to be a dataclass, but {method.Config!r} is none. Put "
            "@dataclass(frozen=True) above it."
        )
    other = REGISTERED.get(method.name, method)
    if (other.__module__, other.__qualname__) != (method.__module__, method.__qualname__):
        raise ValueError(
            f"Expected {method.__qualname__} to have a name of its own, but {method.name!r} is the name of "
            f"{other.__module__}.{other.__qualname__}. Choose another `name`."
        )
    REGISTERED[method.name] = method
    return method


def find_method(name: str) -> type[Adapter]:
    """Return the class of a method, also one of an installed package.

    Example:
        >>> find_method("tent").__name__
        'TENT'
    """
    if name not in REGISTERED:
        _load_plugins()
    if name not in REGISTERED:
        raise unknown_name("method", name, REGISTERED)
    return REGISTERED[name]


def list_methods() -> list[str]:
    """Return the names `build_adapter` knows, those of installed packages last.

    Example:
        >>> list_methods()[:31]  # doctest: +NORMALIZE_WHITESPACE
        ['source', 'bn', 'tent', 'adacontrast', 'cotta', 'eata', 'rotta', 'petal', 'rmt', 'santa', 'palm',
         'surgeon', 'obao', 'tca', 'roid', 'sar', 'rdumb', 'cmf', 'deyo', 'foa', 'come', 'rem', 'ecotta', 'becotta',
         'swa', 'dss', 'vida', 'continual-mae', 'dvp', 'vcotta', 'vcl']
    """
    _load_plugins()
    return list(REGISTERED)


def marked(label: str) -> str:
    """Return a label as tables show it: a reconstruction's name at its beginning gets a mark.

    A table with a mark in it needs the footnote `vcotta.methods.RECONSTRUCTION_NOTE`.

    Example:
        >>> marked("cotta"), marked("swa lr=0.1") == "swa \N{DAGGER} lr=0.1"
        ('cotta', True)
    """
    name, more = _LABEL.fullmatch(label).groups()  # type: ignore[union-attr]
    method = REGISTERED.get(name.strip("`"))
    if method is None or method.card.provenance != "reconstruction" or more.startswith(f" {MARK}"):
        return label
    return f"{name} {MARK}{more}"


def list_general_methods() -> list[str]:
    """Return the methods of `list_methods` that do not ask for a vision transformer.

    Example:
        >>> "tent" in list_general_methods(), "foa" in list_general_methods()
        (True, False)
    """
    return [name for name in list_methods() if not REGISTERED[name].needs_tokens]


def import_method(name: str) -> str:
    """Return the name of a method; ``package.module:Class`` or ``path/to/file.py:Class`` is imported and registered.

    Raises:
        ValueError: There is no such module or class, it cannot be imported, or its name is another method's.
        TypeError: It is no `Adapter`.

    Example:
        >>> import_method("tent"), import_method("vcotta.methods:TENT")
        ('tent', 'tent')
    """
    if name.endswith(".py"):
        raise ValueError(f"Expected a method, but got the file {name}. Name its class too: {name}:Class.")
    if ":" not in name:
        return name
    with imported(name, "method", "Class", _is_method) as method:
        registered: type[Adapter] = register_method(method)
    return registered.name


def _is_method(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Adapter) and value is not Adapter


@functools.cache
def _plugins() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=ENTRY_POINTS))


def _load_plugins() -> None:
    """Register the methods of installed packages; warn of one that cannot be loaded."""
    for plugin in _plugins():
        if plugin.value in _tried:
            continue
        _tried.add(plugin.value)
        try:
            register_method(plugin.load())
        except Exception as error:
            package = "an installed package" if plugin.dist is None else f"the package {plugin.dist.name}"
            warn(
                f"The method {plugin.name!r} ({plugin.value}) of {package} cannot be loaded and is left out: "
                f"{type(error).__name__}: {error} Update or uninstall the package."
            )


def build_adapter(
    name: str,
    model: nn.Module,
    *,
    source: Iterable[tuple[Tensor, Tensor]] | None = None,
    dataset: str | None = None,
    preset: str | None = None,
    guard: Guard | bool | None = None,
    warmup: WarmUpConfig | None = None,
    unsupported: Literal["error", "keep"] | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    runtime: Runtime | None = None,
    config: Any = None,
    probe: tuple[Tensor, Tensor] | None = None,
    **options: Any,
) -> Adapter:
    """Make an adapter by name.

    Args:
        name: One of `list_methods`.
        model: A classifier that takes images in [0, 1]; it is copied. VCoTTA warms up a plain network on ``source``.
        source: Source data, yielding (images in [0, 1], labels), for methods that prepare on it. Others ignore it, but
            for a look at mirrored images if their views are mirrored. It is never read at test time; a warm-up reads it
            once an epoch.
        dataset: One of `DATASETS`: start from the method's settings for it.
        preset: Named settings, for methods that declare ``presets``; None for the first of them.
        guard: Protection against collapse and drift; True for the default `Guard`, False for none, None for what the
            preset declares.
        warmup: Settings of the warm-up; None for the defaults with what the preset changes. With ``flip=False`` in the
            options it does not mirror images either.
        unsupported: What the warm-up does about layers that cannot be variational, in place of
            ``warmup.unsupported``: ``"error"``, or ``"keep"`` to leave them as point parameters.
        seed: Seed of the adapter's random numbers.
        device: Short for ``runtime=Runtime(device)``.
        runtime: Device and precision; by default the device that the model is on.
        config: A config of the method, such as ``TENTConfig(lr=1e-4)``, in place of options; unlike options, its fields
            are known to a type checker. ``dataset`` and ``preset`` then choose guard and warm-up only.
        probe: Labelled source images for the guard, see `Adapter.add_probe` and `vcotta.data.make_probe`. Without them
            adaptation is source-free.
        options: Fields of the method's config, such as ``lr`` or ``views``.

    Example:
        >>> import torch
        >>> adapter = build_adapter("source", nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), seed=1)
        >>> adapter(torch.rand(5, 3, 2, 2)).shape
        torch.Size([5, 2])
    """
    if not isinstance(name, str):
        raise TypeError(_not_a_name(name, model))
    method = find_method(name)
    if config is None:
        _check_options(method, options)
        config = configure(name, dataset=dataset, preset=preset, **options)
    else:
        _check_config(method, config, options)
    if not isinstance(model, nn.Module):
        raise TypeError(f"Expected `model` to be a torch.nn.Module, but got {type(model).__name__}.")
    if device is not None:
        if runtime is not None:
            raise ValueError(
                f"Expected `device` or `runtime`, but got both. Write Runtime({str(device)!r}, ...) alone."
            )
        runtime = Runtime(str(device))
    if warmup is not None or unsupported is not None:
        _check_warmup(method, model, warmup)
    look = True
    if method.needs_variational and not is_variational(model) and source is not None:
        look = False  # the warm-up has looked
        warmup = warmup or WarmUpConfig(**warm_up_settings(name, dataset, preset))
        warmup = replace(warmup, flip=warmup.flip and getattr(config, "flip", True))
        model = warm_up(model, source, warmup, runtime=runtime, unsupported=unsupported)
    protection = choose_guard(name, guard, {"preset": preset})
    adapter = method(model, config, seed=seed, runtime=runtime, guard=protection)
    if source is not None:
        adapter.prepare(source, look=look)
    elif adapter.needs_source:
        warn(
            f"{name} learns from source data ({adapter.card.source}) before its first batch, and got none. Build it "
            "with `source=loader`, or call its prepare(loader)."
        )
    if probe is not None:
        adapter.add_probe(*probe)
    return adapter


def _not_a_name(name: object, model: object) -> str:
    """What is wrong with a first argument that is no text."""
    swapped = isinstance(name, nn.Module) and isinstance(model, str)
    hint = f"The arguments are swapped: write build_adapter({model!r}, model)." if swapped else "See list_methods()."
    return f"Expected `name` to be the name of a method, but got {type(name).__name__}. {hint}"


def _check_options(method: type[Adapter], options: Mapping[str, Any]) -> None:
    """Refuse an option that `build_adapter` takes by another name, or in its warm-up, guard or runtime."""
    known = [field.name for field in fields(method.Config)]
    groups = {"guard": Guard, "runtime": Runtime} | ({"warmup": WarmUpConfig} if method.needs_variational else {})
    ways = {
        one.name: f"{group}={kind.__name__}({one.name}={{}})" for group, kind in groups.items() for one in fields(kind)
    }
    ways |= {
        one.name: f"{one.name}=..."
        for one in signature(build_adapter).parameters.values()
        if one.kind == one.KEYWORD_ONLY
    }
    others = [name for name in ways if name not in known]
    for key, value in options.items():
        if key not in known and (meant := nearest(key.lower(), [*known, *others], 0.8)) in others:
            way = ways[meant].format(repr(value) if isinstance(value, int | float | str | None) else "...")
            raise ValueError(f"Expected an option of {method.name}, but got {key!r}. Write {way} in its place.")


def _check_config(method: type[Adapter], config: Any, others: Mapping[str, Any]) -> None:
    check_kind("config", config, method.Config)
    if others:
        raise ValueError(
            f"Expected all settings in `config`, but got {', '.join(others)} beside it. Make it with "
            f"vcotta.configure({method.name!r}, ...), or change it with dataclasses.replace."
        )


def _check_warmup(method: type[Adapter], model: nn.Module, warmup: WarmUpConfig | None) -> None:
    check_kind("warmup", warmup, WarmUpConfig, "Try WarmUpConfig(epochs=2).")
    if not method.needs_variational:
        raise ValueError(
            f"Expected no `warmup` or `unsupported` for {method.name}, which does not use variational networks."
        )
    if is_variational(model):
        raise ValueError(
            "Expected `warmup` or `unsupported` only with a plain network, but got one that is variational already."
        )


def configure(name: str, *, dataset: str | None = None, preset: str | None = None, **options: Any) -> Any:
    """Make the config of a method as `build_adapter` does; an unknown name raises an error that suggests the nearest.

    Example:
        >>> configure("tent", lr=1e-4)
        TENTConfig(statistics='batch', label_prior=False, lr=0.0001, optimizer='adam')
        >>> configure("tent", dataset="imagenet").lr
        0.00025
    """
    method = find_method(name)
    if dataset is not None and dataset not in DATASETS:
        raise unknown_name("dataset", dataset, DATASETS)
    known = [field.name for field in fields(method.Config)]
    if key := next((key for key in options if key not in known), None):
        if not known:
            raise ValueError(f"Expected no options for {name}, but got {key!r}.")
        raise unknown_name(f"option of {name}", key, known)
    method.find_preset(preset)
    return method.Config(**(method.settings_for(dataset, options | {"preset": preset}) | options))


def warm_up_settings(name: str, dataset: str | None = None, preset: str | None = None) -> dict[str, Any]:
    """Return the fields of `WarmUpConfig` that a method's preset changes.

    Example:
        >>> warm_up_settings("tent")  # no presets, nothing changed
        {}
    """
    chosen = find_method(name).find_preset(preset)
    return {**chosen.warm_up, **chosen.warm_up_datasets.get(dataset or "", {})}


def choose_guard(name: str, guard: Guard | bool | None, options: Mapping[str, Any]) -> Guard | None:
    """Return the guard of an adapter: the one given, or for None what the method's preset declares.

    Example:
        >>> choose_guard("tent", None, {}) is None, choose_guard("tent", True, {}).patience
        (True, 20)
    """
    if guard is None:
        guard = find_method(name).find_preset(options.get("preset")).guarded
    return Guard() if guard is True else guard or None


def check_distributed(name: str) -> None:
    """Raise unless several processes can share the batches of a method."""
    if not find_method(name).card.distributed:
        able = ", ".join(other for other in list_methods() if REGISTERED[other].card.distributed)
        raise ValueError(
            f"Expected a method whose batches several processes can share, but got {name}. Run it in one process, or "
            f"choose one of {able}."
        )


def distribute(adapter: Adapter, world: World) -> None:
    """Let an adapter share every batch with the same adapter of other processes, starting from the first one's state.

    All processes must then call it with the same whole batches. Each gets the whole prediction of one process, up to
    rounding. ``world`` is that of `vcotta.nn.distributed.join_world`.

    Raises:
        ValueError: If the method cannot be shared; the text lists those that can.

    Example:
        >>> adapter = build_adapter("source", nn.Sequential(nn.Flatten(), nn.Linear(12, 2)))
        >>> distribute(adapter, World())  # a process of its own: nothing changes
    """
    if world.size > 1:
        if not type(adapter).card.distributed:
            check_distributed(adapter.name)
        state = world.share_state(adapter_state(adapter, source=True) if world.leads else None)
        if not world.leads:
            adapter.load_state_dict(state)
    adapter.world = world

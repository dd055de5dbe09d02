"""Networks from other packages and from the user's own code, by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vcotta._util.errors import unknown_name
from vcotta._util.plugins import imported
from vcotta.models.normalised import IMAGENET, Normalised

__all__ = ["from_factory", "from_timm", "from_torchvision"]

PRETRAINED = "pretrained"


def from_torchvision(name: str, classes: int | None, published: str | None, **options: Any) -> nn.Module:
    """Make a torchvision classifier, wrapped with ImageNet's mean and deviation.

    ``published`` is None for random weights, ``"pretrained"`` for torchvision's best, or a name such as
    ``IMAGENET1K_V1``.
    """
    models = _import("torchvision.models", f"torchvision:{name}")
    known = list(models.list_models(module=models))
    if name not in known:
        raise unknown_name("torchvision network", name, known)
    if classes is not None:
        options["num_classes"] = classes
    model = models.get_model(name, weights="DEFAULT" if published == PRETRAINED else published, **options)
    return Normalised(model, *IMAGENET)


def from_timm(name: str, classes: int | None, published: str | None, **options: Any) -> nn.Module:
    """Make a timm classifier, wrapped with the mean and deviation that timm gives for it.

    ``published`` is None for random weights, ``"pretrained"`` for timm's.
    """
    timm = _import("timm", f"timm:{name}")
    if not timm.is_model(name):
        raise unknown_name("timm network", name, timm.list_models(f"*{name[:4]}*") or timm.list_models()[:10])
    if classes is not None:
        options["num_classes"] = classes
    model = timm.create_model(name, pretrained=published == PRETRAINED, **options)
    about = getattr(model, "pretrained_cfg", None) or {}
    return Normalised(model, about.get("mean", IMAGENET[0]), about.get("std", IMAGENET[1]))


def from_factory(name: str, classes: int | None, **options: Any) -> nn.Module:
    """Make a network of the user's own: ``package.module:factory`` or ``path/to/file.py:factory``.

    The module is imported, which runs its code. The factory, a function or a class, is called with ``options``, and
    with ``classes`` if it has an argument ``classes`` or ``num_classes``.

    Raises:
        ValueError: The module or the factory is missing or fails.
        TypeError: The factory does not return a network.
    """
    with imported(name, "network", "factory") as factory:
        made = factory if isinstance(factory, nn.Module) else _call(name, factory, classes, options)
    if not isinstance(made, nn.Module):
        raise TypeError(f"Expected {name} to return a torch.nn.Module, but got {type(made).__name__}.")
    return made


def _import(module: str, name: str) -> Any:
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except Exception as error:  # a wheel for another torch version fails in many ways
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise ValueError(
                f"Expected {package} to be installed for {name}, but it is not. Install it: pip install {package}."
            ) from error
        raise ValueError(
            f"Expected to import {package} for {name}, but that failed: {type(error).__name__}: {error}. Its build "
            f"must match torch {torch.__version__}: pip install --force-reinstall {package}."
        ) from error


def _call(name: str, factory: Callable[..., Any], classes: int | None, options: dict[str, Any]) -> Any:
    if classes is not None:
        try:
            takes = inspect.signature(factory).parameters
        except (TypeError, ValueError):
            takes = {}  # type: ignore[assignment]
        if key := next((key for key in ("classes", "num_classes") if key in takes), None):
            options = {key: classes} | options
    try:
        return factory(**options)
    except Exception as error:
        raise ValueError(
            f"Expected {name} to return a network, but it failed: {type(error).__name__}: {error}"
        ) from error

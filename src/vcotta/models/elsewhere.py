"""Networks from other packages and from the user's own code, by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vcotta._messages import unknown_name
from vcotta.imports import imported
from vcotta.models.normalised import IMAGENET, Normalised

__all__ = ["from_factory", "from_timm", "from_torchvision"]

PRETRAINED = "pretrained"


def from_torchvision(name: str, classes: int | None, published: str | None, **options: Any) -> nn.Module:
    """Make a classifier of torchvision's, with ImageNet's mean and deviation inside.

    Args:
        name: Name in ``torchvision.models``, such as ``resnet50``.
        classes: Number of outputs; None for torchvision's own 1 000.
        published: None for fresh weights, ``"pretrained"`` for torchvision's best, or a name such as
            ``IMAGENET1K_V1``.
        options: Further arguments of torchvision's builder.
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
    """Make a classifier of timm's, with the mean and deviation it names inside.

    Args:
        name: Name in timm, such as ``vit_base_patch16_224``.
        classes: Number of outputs; None for the network's own.
        published: None for fresh weights, ``"pretrained"`` for timm's.
        options: Further arguments of ``timm.create_model``.
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
    """Make anybody's network: ``package.module:factory`` or ``path/to/file.py:factory``.

    The module is imported, which runs it: give only what you would run yourself. Modules are looked for in the current
    folder too, after everything installed. The factory, a function or a class, is called with ``classes`` or
    ``num_classes`` if that is given and it has such an argument, and with ``options``.

    Raises:
        ValueError: If the module or the factory is not there or fails.
        TypeError: If what it makes is not a network.
    """
    with imported(name, "network", "factory") as factory:
        made = factory if isinstance(factory, nn.Module) else _call(name, factory, classes, options)
    if not isinstance(made, nn.Module):
        raise TypeError(f"Expected {name} to make a torch.nn.Module, but got {type(made).__name__}.")
    return made


def _import(module: str, name: str) -> Any:
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise ValueError(
                f"Expected {package} to be installed for {name}, but it is not. "
                "Install the extra: pip install 'vcotta[vision]'."
            ) from error
        raise _broken(package, name, error) from error
    except Exception as error:  # a wheel for another torch fails in many ways
        raise _broken(package, name, error) from error


def _broken(package: str, name: str, error: Exception) -> ValueError:
    return ValueError(
        f"Expected to import {package} for {name}, but that fails: {type(error).__name__}: {error}. Its build must fit "
        f"torch {torch.__version__}: install the extra again, pip install --force-reinstall 'vcotta[vision]'."
    )


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
        raise ValueError(f"Expected {name} to make a network, but it fails: {type(error).__name__}: {error}") from error

"""A whole adapter in one file: safetensors for the tensors, JSON for the rest, never pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from vcotta._version import __version__
from vcotta.architecture import build, describe
from vcotta.bayes import is_variational, to_variational
from vcotta.files import atomic_path
from vcotta.methods import METHODS, Adapter
from vcotta.runtime import Runtime

__all__ = ["load", "save"]

_FORMAT = "vcotta-adapter-1"


def save(adapter: Adapter, path: str | os.PathLike[str]) -> None:
    """Write the adapter, its start network, method, settings and state, to one file, atomically.

    Example:
        >>> import tempfile, vcotta
        >>> adapter = vcotta.build_adapter("bn", nn.Sequential(nn.Flatten(), nn.Linear(12, 2)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(adapter, folder + "/a.vcotta")
        ...     load(folder + "/a.vcotta").name
        'bn'
    """
    tensors: dict[str, Tensor] = {}
    about = {
        "format": _FORMAT,
        "vcotta": __version__,
        "torch": str(torch.__version__),
        "runtime": asdict(adapter.runtime),
        "architecture": describe(adapter.start),
        "state": _pack(adapter.state_dict(), "", tensors),
    }
    with atomic_path(path) as aside:
        save_file(tensors, aside, {"vcotta": json.dumps(about)})


def load(path: str | os.PathLike[str], model: nn.Module | None = None, *, runtime: Runtime | None = None) -> Adapter:
    """Read an adapter back, as it was: the next batch gives what it would have given without the break.

    Args:
        path: A file written by `save`.
        model: A network of the saved architecture, whose weights do not matter. Needed only when the network cannot
            be rebuilt from the names of its classes.
        runtime: Device and precision; by default the saved ones.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged or foreign, or the network is another one.
    """
    with _reading(path):
        with safe_open(Path(path), "pt") as file:
            about = json.loads((file.metadata() or {}).get("vcotta", "{}"))
            if about.get("format") != _FORMAT:
                raise ValueError(f"its format is {about.get('format')!r}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = _unpack(about["state"], tensors)
        architecture, saved = (
            about["architecture"],
            Runtime(**(about["runtime"] if runtime is None else asdict(runtime))),
        )
        method = METHODS[state["method"]]
        config = method.Config(**state["config"])
    if model is None:
        model = build(architecture)
    elif architecture["variational"] and not is_variational(model):
        model = to_variational(model, unsupported="keep")
    adapter = method(model, config, seed=state["seed"], runtime=saved)
    adapter.load_state_dict(state)
    return adapter


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say of any fault in a file's content which file it is and what was expected of it."""
    try:
        yield
    except (SafetensorError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(
            f"Expected an adapter saved by vcotta.save in {path}, but it cannot be read: {error}"
        ) from error


def _pack(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    """Replace every tensor of a nested state by its name in ``tensors``, leaving plain JSON."""
    if isinstance(value, Tensor):
        tensors[key] = value.detach().cpu().contiguous().clone()
        return {"tensor": key}
    if isinstance(value, dict):
        return {"items": [[k, _pack(v, f"{key}/{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"list": [_pack(v, f"{key}/{i}", tensors) for i, v in enumerate(value)]}
    return value


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `_pack`; tuples come back as lists."""
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "items" in value:
        return {k: _unpack(v, tensors) for k, v in value["items"]}
    return [_unpack(v, tensors) for v in value["list"]]

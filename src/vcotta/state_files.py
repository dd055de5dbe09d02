"""Nested state in one file: safetensors for the tensors, JSON for the rest, never pickle."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from vcotta._version import __version__
from vcotta.files import atomic_path

__all__ = ["pack_state", "read_state", "state_kind", "unpack_state", "weights_sha256", "write_state"]

_DAMAGE = (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading a damaged or forged file may raise on the way."""


def write_state(path: str | os.PathLike[str], kind: str, state: dict[str, Any]) -> None:
    """Write nested dictionaries and lists of tensors and plain values to one file, atomically, with their hash.

    Args:
        path: The file.
        kind: What the file holds and in which version, for example ``"vcotta-adapter-1"``; `read_state` asks for it.
        state: The state. Tuples come back as lists; keys may be strings or integers.

    Raises:
        OSError: The file cannot be written, for example because the disk is full; the old one is still there.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_state(folder + "/a", "numbers", {"x": torch.ones(2), "more": {3: [0.5, None]}})
        ...     read_state(folder + "/a", "numbers")
        {'x': tensor([1., 1.]), 'more': {3: [0.5, None]}}
    """
    tensors: dict[str, Tensor] = {}
    about = {
        "kind": kind,
        "vcotta": __version__,
        "torch": str(torch.__version__),
        "state": pack_state(state, "", tensors),
    }
    about["sha256"] = _digest(about["state"], tensors)
    with atomic_path(path) as aside:
        try:
            save_file(tensors, aside, {"vcotta": json.dumps(about)})
        except SafetensorError as error:
            raise _as_os_error(error, path) from error


def read_state(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Read what `write_state` wrote.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, foreign, or of another kind.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"Expected a file of kind {kind!r} in {path}, but there is no such file.")
    try:
        with safe_open(Path(path), "pt") as file:
            about = json.loads((file.metadata() or {}).get("vcotta", "{}"))
            if about.get("kind") != kind:
                raise ValueError(f"its kind is {about.get('kind')!r}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if "sha256" in about and about["sha256"] != _digest(about["state"], tensors):
            raise ValueError("its bytes are not those that were written")
        state = unpack_state(about["state"], tensors)
    except _DAMAGE as error:
        raise ValueError(f"Expected a file of kind {kind!r} in {path}, but it cannot be read: {error}") from error
    if not isinstance(state, dict):
        raise ValueError(f"Expected a file of kind {kind!r} in {path}, but it cannot be read: it holds no state.")
    return state


def state_kind(path: str | os.PathLike[str]) -> str | None:
    """Return the kind of a file that `write_state` wrote, None for any other file."""
    try:
        with safe_open(Path(path), "pt") as file:
            kind = json.loads((file.metadata() or {}).get("vcotta", "{}")).get("kind")
    except _DAMAGE:
        return None
    return kind if isinstance(kind, str) else None


def weights_sha256(net: nn.Module) -> str:
    """Return the SHA-256 of a network's tensors, names and values, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        digest.update(name.encode())
        if isinstance(tensor, Tensor):
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        else:  # what a module keeps besides
            digest.update(repr(tensor).encode())
    return digest.hexdigest()


def _digest(packed: Any, tensors: dict[str, Tensor]) -> str:
    """The SHA-256 of a packed state and its tensors."""
    digest = hashlib.sha256(json.dumps(packed).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _as_os_error(error: SafetensorError, path: str | os.PathLike[str]) -> Exception:
    """Safetensors tells the system's reason in words only; whoever writes files expects an `OSError`."""
    code = re.search(r"os error (\d+)", str(error))
    return error if code is None else OSError(int(code[1]), os.strerror(int(code[1])), str(path))


def pack_state(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    """Replace every tensor of a nested state by its name in ``tensors``, leaving plain JSON."""
    if isinstance(value, Tensor):
        tensors[key] = value.detach().cpu().contiguous().clone()
        return {"tensor": key}
    if isinstance(value, dict):
        return {"items": [[k, pack_state(v, f"{key}/{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"list": [pack_state(v, f"{key}/{i}", tensors) for i, v in enumerate(value)]}
    return value


def unpack_state(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `pack_state`; tuples come back as lists."""
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "items" in value:
        return {k: unpack_state(v, tensors) for k, v in value["items"]}
    return [unpack_state(v, tensors) for v in value["list"]]

"""Nested state in one file: safetensors for the tensors, JSON for the rest, never pickle."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from vcotta._util.files import atomic_path, require_file
from vcotta._version import __version__

__all__ = [
    "pack_state",
    "read_state",
    "state_kind",
    "tensors_sha256",
    "unpack_state",
    "weights_sha256",
    "write_state",
]

_DAMAGE = (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Errors that a damaged or forged file may cause."""

_NOT_OURS = "it is a safetensors file that vcotta did not write"
_WEIGHTS = "A file of weights alone is read with vcotta.models.load_weights."


def write_state(path: str | os.PathLike[str], kind: str, state: dict[str, Any]) -> None:
    """Write nested dictionaries and lists of tensors and plain values to one file, atomically, with their hash.

    Args:
        path: The file.
        kind: Content and version, for example ``"vcotta-adapter-1"``; `read_state` compares it.
        state: The state; keys may be strings or integers, and tuples are read back as lists.

    Raises:
        OSError: The file cannot be written; an old file there is unchanged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_state(folder + "/a", "numbers", {"x": torch.ones(2), "more": {3: [0.5, None]}})
        ...     read_state(folder + "/a", "numbers")
        {'x': tensor([1., 1.]), 'more': {3: [0.5, None]}}
    """
    tensors: dict[str, Tensor] = {}
    packed = pack_state(state, "", tensors)
    _separate(tensors)
    about = {"kind": kind, "vcotta": __version__, "torch": str(torch.__version__), "state": packed}
    about["sha256"] = _digest(packed, tensors)
    with atomic_path(path) as aside:
        try:
            save_file(tensors, aside, {"vcotta": json.dumps(about)})
        except SafetensorError as error:
            raise _as_os_error(error, path) from error


def read_state(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Read a file of `write_state`; raise ValueError if it is damaged or of another kind."""
    require_file(path, f"a file of kind {kind!r}")
    try:
        with safe_open(Path(path), "pt") as file:
            about = _header(file)
            if about.get("kind") != kind:
                raise ValueError(f"its kind is {about['kind']!r}" if "kind" in about else f"{_NOT_OURS}. {_WEIGHTS}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if "sha256" in about and about["sha256"] != _digest(about["state"], tensors):
            raise ValueError("its bytes have changed since they were written")
        state = unpack_state(about["state"], tensors)
        if not isinstance(state, dict):
            raise ValueError("it holds no state")
    except _DAMAGE as error:
        reason = _reason(path, error).rstrip(".")
        raise ValueError(f"Expected {path} to be a file of kind {kind!r}, but it cannot be read: {reason}.") from error
    return state


def state_kind(path: str | os.PathLike[str]) -> str | None:
    """Return the kind of a file that `write_state` wrote, None for any other file."""
    require_file(path)
    try:
        with safe_open(Path(path), "pt") as file:
            kind = _header(file).get("kind")
    except _DAMAGE:
        return None
    return kind if isinstance(kind, str) else None


def _reason(path: str | os.PathLike[str], error: Exception) -> str:
    """Why a file cannot be read."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, SafetensorError):
        with Path(path).open("rb") as file:
            if file.read(9)[8:] != b"{":  # the header begins after its length
                return f"it is not a safetensors file, as those of vcotta are. {_WEIGHTS}"
    return str(error)


def _header(file: Any) -> Any:
    return json.loads((file.metadata() or {}).get("vcotta", "{}"))


def weights_sha256(net: nn.Module) -> str:
    """Return the SHA-256 of a network's tensors, see `tensors_sha256`."""
    return tensors_sha256(net.state_dict())


def tensors_sha256(tensors: Mapping[str, Any]) -> str:
    """Return the SHA-256 of tensors, names and values, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        if isinstance(tensor, Tensor):
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        else:  # a module's extra state
            digest.update(repr(tensor).encode())
    return digest.hexdigest()


def _digest(packed: Any, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(packed).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _as_os_error(error: SafetensorError, path: str | os.PathLike[str]) -> Exception:
    """Return the `OSError` that safetensors mentions only in its text."""
    code = re.search(r"os error (\d+)", str(error))
    return error if code is None else OSError(int(code[1]), os.strerror(int(code[1])), str(path))


def _separate(tensors: dict[str, Tensor]) -> None:
    """Copy tensors that share memory with an earlier one, which safetensors refuses."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        if (place := tensor.untyped_storage().data_ptr()) in seen:
            tensors[name] = tensor.clone()
        seen.add(place)


def pack_state(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    """Replace every tensor of a nested state by its name in ``tensors``, leaving plain JSON.

    On the CPU the tensors are not copied unless they have to be made contiguous.
    """
    if isinstance(value, Tensor):
        tensors[key] = value.detach().cpu().contiguous()
        return {"tensor": key}
    if isinstance(value, dict):
        return {"items": [[k, pack_state(v, f"{key}/{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"list": [pack_state(v, f"{key}/{i}", tensors) for i, v in enumerate(value)]}
    return value


def unpack_state(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Invert `pack_state`; tuples become lists."""
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "items" in value:
        return {k: unpack_state(v, tensors) for k, v in value["items"]}
    return [unpack_state(v, tensors) for v in value["list"]]

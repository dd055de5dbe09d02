"""Reading tensors from a file that somebody else wrote, without ever running what is in it."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

__all__ = ["METADATA_KEY", "read_tensors"]

METADATA_KEY = "vcotta"
"""Where our own safetensors files keep their JSON."""

_CONTAINERS = ("state_dict", "model_state_dict", "model", "net", "network", "weights", "params", "last", "best")
_ZIP = b"PK\x03\x04"
_WEB_PAGE = re.compile(rb"\s*(<!--.*?-->\s*)*<(!doctype|html|head|body|\?xml)", re.IGNORECASE | re.DOTALL)


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a state dict: safetensors, or what ``torch.save`` wrote, with ``weights_only=True``.

    What the file is follows from its content, not from its suffix. Containers around the state dict (``state_dict``,
    ``model``, ``net``, ...) are taken off.

    Args:
        path: The file.

    Returns:
        The tensors by name, on the CPU, and the metadata of a safetensors file (ours decoded from JSON).

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is a web page, a Git LFS pointer, compressed, truncated, an unsafe pickle or has no tensors.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torch.save({"state_dict": {"weight": torch.zeros(2)}, "epoch": 3}, folder + "/a.pt")
        ...     read_tensors(folder + "/a.pt")
        ({'weight': tensor([0., 0.])}, {})
    """
    path = Path(path)
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise FileNotFoundError(f"Expected a file with weights, but got {path}, which is {found}.")
    with path.open("rb") as file:
        start = file.read(1024)
    _refuse_what_is_no_checkpoint(path, start)
    if start[8:9] == b"{" and not start.startswith(_ZIP):
        return _read_safetensors(path)
    return _unwrap(path, _read_torch(path, start)), {}


def _refuse_what_is_no_checkpoint(path: Path, start: bytes) -> None:
    expected = f"Expected weights in {path}, but"
    if not start:
        raise ValueError(f"{expected} the file is empty. Fetch it again.")
    if _WEB_PAGE.match(start):
        raise ValueError(
            f"{expected} it is a web page saved under that name: the server sent a confirmation, login or error page "
            "instead of the file, as Google Drive does for large files. Open the address in a browser and download "
            "the file itself, or use a tool made for that server."
        )
    if start.startswith(b"version https://git-lfs"):
        raise ValueError(f"{expected} it is a Git LFS pointer, not the file it stands for. Run `git lfs pull` there.")
    if start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf")):
        raise ValueError(f"{expected} it is a compressed archive. Unpack it, and give the file inside.")


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            metadata: dict[str, Any] = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if METADATA_KEY in metadata:
            metadata = dict(json.loads(metadata[METADATA_KEY]))
    except (SafetensorError, ValueError, TypeError) as error:
        raise ValueError(
            f"Expected {path} to be a safetensors file, but it cannot be read ({error}). It may be cut short: "
            "compare its size or hash with the original, and fetch it again."
        ) from error
    if not tensors:
        raise ValueError(f"Expected weights in {path}, but it holds no tensors.")
    return tensors, metadata


def _read_torch(path: Path, start: bytes) -> Any:
    if not start.startswith((_ZIP, b"\x80")):
        raise ValueError(
            f"Expected {path} to be a file of safetensors or torch.save, but it starts with {start[:16]!r}."
        )
    try:
        with path.open("rb") as file:  # of a path, torch would look at the suffix
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"(?:GLOBAL|global|class) ([\w.]+)", str(error))
        if named is None:
            raise _unreadable(path, "it is damaged") from error
        raise ValueError(
            f"Expected plain tensors in {path}, but it also holds Python objects ({named[1]}), and unpacking those "
            "could run anything. Where you trust the file, load it in its own code, and save only "
            "`model.state_dict()` from there."
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise _unreadable(path, str(error).split("\n")[0] or type(error).__name__) from error


def _unreadable(path: Path, why: str) -> ValueError:
    return ValueError(
        f"Expected {path} to be a file of torch.save, but it cannot be read ({why.rstrip('.')}). It may be cut short: "
        "compare its size or hash with the original, and fetch it again."
    )


def _unwrap(path: Path, content: Any) -> dict[str, Tensor]:
    """Take the containers off a state dict."""
    keys: list[str] = []
    while isinstance(content, Mapping):
        if content and all(isinstance(value, Tensor) for value in content.values()):
            return {str(key): value for key, value in content.items()}
        inner = next((key for key in _CONTAINERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            keys = [str(key) for key in content]
            tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
            if tensors:  # a state dict with a number or a version beside its tensors
                return tensors
            break
        content = content[inner]
    found = (
        f"a dictionary of {', '.join(keys[:5]) or 'nothing'}"
        if isinstance(content, Mapping)
        else f"a {type(content).__name__}"
    )
    raise ValueError(
        f"Expected a state dict in {path}, or one under {', '.join(_CONTAINERS[:4])}, but it holds {found}. "
        "Save `model.state_dict()`."
    )

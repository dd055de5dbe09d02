"""The cache folder: networks and what methods learned from source data, each made once and kept by what made it."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from vcotta._util.files import cache_dir, read_json, sha256, write_json
from vcotta._util.locks import locked
from vcotta._version import __version__

__all__ = ["cached", "own_code"]

Made = TypeVar("Made")


def cached(
    kind: str, facts: Mapping[str, Any], make: Callable[[Path], Made], read: Callable[[Path], Made]
) -> tuple[Made, bool]:
    """Return what the cache keeps under these facts, or make it and keep it.

    Beside the file lies a JSON file with the facts, the file's hash and its licence. Several processes may ask at once:
    one makes it, the others wait for it and read it. A damaged file is made again.

    Args:
        kind: Folder of the cache: ``trained``, ``warmed`` or ``prepared``.
        facts: All that the result depends on; the version of vcotta and a hash of its code are added.
        make: Makes it and writes it to the path.
        read: Reads it from the path; may raise `ValueError`.

    Returns:
        What was made or read, and whether it was in the cache.

    Raises:
        OSError: The cache folder cannot be written; raised before ``make`` is called.
    """
    facts = {**facts, "vcotta": __version__, "code_sha256": _code_sha256()}
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_dir() / kind / f"{key}.safetensors"

    def kept() -> Made | None:
        try:
            noted = read_json(path.with_suffix(".json"))["sha256"]
            return read(path) if sha256(path) == noted else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    if (found := kept()) is not None:
        return found, True
    with locked(path.with_suffix(".lock")):
        if (found := kept()) is not None:
            return found, True
        made = make(path)
        licence = "a work derived from the network and the data named here, under their licences"
        write_json(path.with_suffix(".json"), {**facts, "sha256": sha256(path), "licence": licence})
        return made, False


def own_code(method: type) -> str | None:
    """Return the hash of the file of a user's own method, None for methods of this package."""
    if method.__module__.partition(".")[0] == "vcotta":
        return None
    file = inspect.getsourcefile(method)
    return None if file is None else sha256(file)


@functools.cache
def _code_sha256() -> str:
    """The hash of the code that trains, warms up and prepares, so that an edited checkout uses no earlier result."""
    root = Path(__file__).parents[1]
    files = (path for room in ("nn", "bayes", "models", "methods", "training") for path in (root / room).rglob("*.py"))
    return hashlib.sha256("".join(sha256(path) for path in sorted(files)).encode()).hexdigest()

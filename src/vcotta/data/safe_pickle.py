"""Reading the pickles of the CIFAR python archives without running anything that is in them."""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

__all__ = ["read_pickle"]


def read_pickle(contents: bytes, name: str) -> Any:
    """Return the object of a pickle that holds dicts, lists, text, bytes, numbers and uint8 arrays, and nothing else.

    Text of Python 2 comes back as bytes. Each global name in the pickle is answered by a stand-in of ours, so that
    no function or class it names is ever called, NumPy's included.

    Args:
        contents: The pickle.
        name: Its name, for error texts.

    Raises:
        ValueError: The pickle is damaged, or holds anything else.

    Example:
        >>> read_pickle(pickle.dumps({b"labels": [6, 9]}), "data_batch_1")
        {b'labels': [6, 9]}
    """
    try:
        return _plain(_Reader(io.BytesIO(contents), encoding="bytes").load())
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(
            f"Expected {name} to be a pickle of arrays, lists and text, but it cannot be read: {error!r}. "
            "Download it again from the official place."
        ) from error


class _Dtype:
    def __init__(self, code: bytes | str, *_: Any) -> None:
        if code not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"an array of type {code!r}, not uint8")

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    array: NDArray[np.uint8]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran_order, raw = state
        if not isinstance(dtype, _Dtype) or fortran_order or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array that is not plain uint8")
        self.array = np.frombuffer(raw, np.uint8).reshape(shape)


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    """Stand for ``_codecs.encode``, by which Python 3 writes bytes in old protocols."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"text encoded as {encoding!r}")
    return text.encode("latin-1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no image archive needs")
        return _STAND_INS[module, name]

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside itself")


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.array
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value

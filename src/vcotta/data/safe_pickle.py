"""Reading the pickles of the CIFAR python archives without running anything that is in them."""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["read_pickle"]


def read_pickle(contents: bytes, name: str) -> dict[bytes | str, Any]:
    """Return the dictionary of a pickle that holds text, bytes, numbers, lists of these, and uint8 arrays.

    Only the few opcodes that such a pickle needs are interpreted, in time linear in its length: Python's unpickler is
    not used, no global name is looked up and no attribute is set. Text of Python 2 comes back as bytes.

    Raises:
        ValueError: The pickle ``name`` is damaged, or holds anything else.

    Example:
        >>> import pickle
        >>> read_pickle(pickle.dumps({b"labels": [6, 9]}), "data_batch_1")
        {b'labels': [6, 9]}
    """
    try:
        return _Machine().run(contents)
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(
            f"Expected {name} to be a pickle of arrays, lists and text, but it cannot be read: {error}. "
            "Download it again from the official place."
        ) from error


class _Global(str):
    """The name of a global, which is never looked up."""

    __slots__ = ()


class _Array:
    """An array between its creation and the opcode that fills it."""

    array: NDArray[np.uint8] | None = None

    def fill(self, state: Any) -> None:
        _, shape, dtype, fortran_order, raw = state
        if dtype is not _UINT8 or fortran_order or not isinstance(raw, bytes):
            raise ValueError("it holds an array that is not plain uint8")
        self.array = np.frombuffer(raw, np.uint8).reshape(shape)


_UINT8: Final = object()
_RECONSTRUCT: Final = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_GLOBALS: Final = (*_RECONSTRUCT, "numpy ndarray", "numpy dtype", "_codecs encode")
_PUSHES: Final = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"),
}
_MAKERS: Final[dict[str, Callable[[], Any]]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
_TUPLES: Final = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_SCALARS: Final = (bytes, str, int, float, bool)


class _Machine:
    """The stack machine of a pickle, without the opcodes that an image archive does not need."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, contents: bytes) -> dict[bytes | str, Any]:
        for opcode, argument, _ in pickletools.genops(contents):
            self._step(opcode.name, argument)
        result, *rest = self.stack
        if rest or type(result) is not dict:
            raise ValueError("it holds no dictionary")
        lists: set[int] = set()  # a list may be there many times; each is checked once
        return {key: _checked(value, lists) for key, value in result.items()}

    def _step(self, name: str, argument: Any) -> None:
        stack, memo = self.stack, self.memo
        if name in _PUSHES:
            stack.append(argument)
        elif name in _MAKERS:
            stack.append(_MAKERS[name]())
        elif name in _TUPLES:
            stack.append(tuple(self._pop(_TUPLES[name])))
        elif name in ("BINSTRING", "SHORT_BINSTRING"):
            stack.append(argument.encode("latin-1"))
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name in ("APPEND", "APPENDS"):
            self._extend(self._pop(1) if name == "APPEND" else self._since_mark())
        elif name in ("SETITEM", "SETITEMS"):
            self._update(self._pop(2) if name == "SETITEM" else self._since_mark())
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            stack.append(_known_global(argument if name == "GLOBAL" else " ".join(self._pop(2))))
        elif name == "REDUCE":
            stack.append(_call(*self._pop(2)))
        elif name == "BUILD":
            self._build(*self._pop(1))
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"it uses the opcode {name}, which no image archive needs")

    def _pop(self, count: int) -> list[Any]:
        start = len(self.stack) - count
        if start < 0:
            raise ValueError("it takes more values than there are")
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def _since_mark(self) -> list[Any]:
        return self._pop(len(self.stack) - self.marks.pop())

    def _extend(self, values: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise ValueError("it appends to what is no list")
        self.stack[-1].extend(values)

    def _update(self, values: list[Any]) -> None:
        keys = values[::2]
        if type(self.stack[-1]) is not dict or not all(type(key) in (bytes, str) for key in keys):
            raise ValueError("it has a dictionary whose keys are not text")
        self.stack[-1].update(zip(keys, values[1::2], strict=True))

    def _build(self, state: Any) -> None:
        target = self.stack[-1]
        if isinstance(target, _Array):
            target.fill(state)
        elif target is not _UINT8:  # the rest of a data type's state is its byte order, and a byte has none
            raise ValueError("it sets attributes of what is no array")


def _known_global(name: str) -> _Global:
    if name not in _GLOBALS:
        raise ValueError(f"it asks for {name.replace(' ', '.')}, which no image archive needs")
    return _Global(name)


def _call(function: Any, arguments: Any) -> Any:
    """Return what the few known calls stand for; nothing is called."""
    if type(function) is not _Global or type(arguments) is not tuple:
        raise ValueError("it calls what is no function")
    if function in _RECONSTRUCT:
        return _Array()
    if function == "numpy dtype" and arguments[0] in ("u1", b"u1"):
        return _UINT8
    if function == "_codecs encode" and arguments[1] in ("latin1", b"latin1"):  # bytes, as Python 3 writes them
        return arguments[0].encode("latin-1")
    raise ValueError(f"it calls {function} with other arguments than an image archive does")


def _checked(value: Any, lists: set[int]) -> Any:
    if isinstance(value, _Array) and value.array is not None:
        return value.array
    if type(value) is list:
        if id(value) not in lists and not all(type(item) in _SCALARS for item in value):
            raise ValueError("it holds a list of something else than text and numbers")
        lists.add(id(value))
    elif type(value) not in _SCALARS:
        raise ValueError(f"it holds a {type(value).__name__}")
    return value

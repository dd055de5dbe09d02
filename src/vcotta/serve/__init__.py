"""Bundles, and the HTTP server that adapts to its requests; all modules but `bundle` need the extra ``serve``."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vcotta.serve.bundle import Bundle, NetworkCard, Preprocess, load_bundle, make_bundle, save_bundle

__all__ = ["Bundle", "NetworkCard", "Preprocess", "load_bundle", "make_bundle", "save_bundle"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the processes that decode images start without torch."""
    if name not in __all__:
        raise AttributeError(f"module 'vcotta.serve' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module("vcotta.serve.bundle"), name)
    return found


def __dir__() -> list[str]:
    return __all__

"""Continual test-time adaptation: VCoTTA and its rivals.

Example:
    >>> import torch, vcotta
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 10))  # your classifier
    >>> source = [(torch.rand(8, 3, 4, 4), torch.randint(10, (8,)))]  # its training data
    >>> adapter = vcotta.build_adapter("vcotta", model, source=source, views=2)
    >>> adapter(torch.rand(8, 3, 4, 4)).shape  # predicts, then adapts
    torch.Size([8, 10])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vcotta._version import __version__

if TYPE_CHECKING:
    from vcotta import data, methods, models, serve
    from vcotta.bayes import WarmUpConfig, sampling, to_point, to_variational, warm_up
    from vcotta.corruptions import corrupt, list_corruptions
    from vcotta.methods import (
        Adapter,
        Guard,
        Prediction,
        build_adapter,
        configure,
        list_methods,
        load,
        merge,
        register_method,
        save,
    )
    from vcotta.nn.runtime import Runtime
    from vcotta.runs import Run, metrics, run_stream
    from vcotta.streams import Batch, make_stream

__all__ = [
    "Adapter",
    "Batch",
    "Guard",
    "Prediction",
    "Run",
    "Runtime",
    "WarmUpConfig",
    "__version__",
    "build_adapter",
    "configure",
    "corrupt",
    "data",
    "list_corruptions",
    "list_methods",
    "load",
    "make_stream",
    "merge",
    "methods",
    "metrics",
    "models",
    "register_method",
    "run_stream",
    "sampling",
    "save",
    "serve",
    "to_point",
    "to_variational",
    "warm_up",
]

_MODULES = ("vcotta.data", "vcotta.methods", "vcotta.models", "vcotta.runs.metrics", "vcotta.serve")
_NAMES = {
    "vcotta.bayes": ("WarmUpConfig", "sampling", "to_point", "to_variational", "warm_up"),
    "vcotta.corruptions": ("corrupt", "list_corruptions"),
    "vcotta.methods": ("Adapter", "Guard", "Prediction", "build_adapter", "configure", "list_methods", "load", "save"),
    "vcotta.methods.merging": ("merge",),
    "vcotta.methods.registry": ("register_method",),
    "vcotta.nn.runtime": ("Runtime",),
    "vcotta.runs": ("Run", "run_stream"),
    "vcotta.streams": ("Batch", "make_stream"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `vcotta --help` then starts without torch."""
    if module := next((module for module in _MODULES if module.rpartition(".")[2] == name), None):
        found: Any = import_module(module)
    elif home := next((home for home, names in _NAMES.items() if name in names), None):
        found = getattr(import_module(home), name)
    else:
        raise AttributeError(f"module 'vcotta' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__

"""A whole adapter in one file."""

from __future__ import annotations

import os
import warnings
from dataclasses import asdict

from torch import nn

from vcotta.architecture import build, class_of_script, describe
from vcotta.bayes import is_variational, to_variational
from vcotta.guard import Guard
from vcotta.methods import METHODS, Adapter
from vcotta.runtime import Runtime
from vcotta.state_files import read_state, write_state

__all__ = ["load", "save"]

_KIND = "vcotta-adapter-1"


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
    architecture = describe(adapter.start)
    if architecture["problem"]:
        warnings.warn(
            f"The network cannot be rebuilt from the file alone, as {architecture['problem']}: load it with "
            "vcotta.load(path, model=...).",
            stacklevel=2,
        )
    elif name := class_of_script(architecture):
        warnings.warn(
            f"The network's class {name} belongs to the running script: another process must load the file with "
            "vcotta.load(path, model=...), unless the class moves to a module that both import.",
            stacklevel=2,
        )
    content = {
        "runtime": asdict(adapter.runtime),
        "architecture": architecture,
        "adapter": adapter.state_dict(),
    }
    write_state(path, _KIND, content)


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
    content = read_state(path, _KIND)
    try:
        state, architecture = content["adapter"], content["architecture"]
        method = METHODS.get(state["method"])
        if method is None:
            raise ValueError(
                f"Expected a method that is known here, but {path} holds an adapter of {state['method']!r}. If it is "
                "one of your own, make it known first: METHODS[YourMethod.name] = YourMethod, from vcotta.methods."
            )
        config = method.Config(**state["config"])
        guard = Guard(**state["guard"]["settings"]) if state["guard"] else None
        runtime = runtime or Runtime(**content["runtime"])
        if model is None:
            model = build(architecture, state["networks"]["start"])
        elif architecture["variational"] and not is_variational(model):
            model = to_variational(model, unsupported="keep")
        adapter = method(model, config, seed=state["seed"], runtime=runtime, guard=guard)
        adapter.load_state_dict(state)
    except (LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        raise ValueError(
            f"Expected an adapter saved by vcotta.save in {path}, but it cannot be read: {error}"
        ) from error
    return adapter

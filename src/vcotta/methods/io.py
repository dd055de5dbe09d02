"""A whole adapter in one file."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from vcotta._util.tensorfile import read_state, write_state
from vcotta.bayes import is_variational, to_variational
from vcotta.methods.base import Adapter
from vcotta.methods.guard import Guard
from vcotta.methods.registry import find_method, list_methods
from vcotta.methods.state import adapter_state
from vcotta.models.zoo import describe_network, rebuild_network
from vcotta.nn.runtime import Runtime

__all__ = ["load", "save"]

KIND = "vcotta-adapter-1"


def save(adapter: Adapter, path: str | os.PathLike[str], *, source: bool = True) -> None:
    """Write the adapter with its start network, method, settings and state to one file, atomically.

    With ``source=False`` the file leaves out those tensors of the start network that do not adapt (`Adapter.frozen`;
    all but normalisation and classifier for VCoTTA with ``trains="norm"``). It is small, and `load` needs the network.

    Example:
        >>> import tempfile, vcotta
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
        >>> adapter = vcotta.build_adapter("source", model)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(adapter, folder + "/a.vcotta")
        ...     load(folder + "/a.vcotta", model).name
        'source'
    """
    if isinstance(path, Adapter):
        raise _swapped(path, "save(adapter, path)")
    network = {"variational": is_variational(adapter.start), "network": describe_network(adapter.start)}
    content = {
        "runtime": asdict(adapter.runtime),
        "architecture": network,
        "adapter": adapter_state(adapter, source=source),
    }
    write_state(path, KIND, content)


def load(path: str | os.PathLike[str], model: nn.Module | None = None, *, runtime: Runtime | None = None) -> Adapter:
    """Read an adapter from a file; it continues exactly where it was saved.

    Args:
        path: A file written by `save`.
        model: A network of the saved architecture; its weights do not matter, unless the file leaves them out. Networks
            of `vcotta.models` are rebuilt without it, if the file has their weights.
        runtime: Device and precision; by default the saved ones.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged or of another kind, or the network is another one.
    """
    if isinstance(path, nn.Module):
        raise _swapped(path, "load(path, model)")
    content = read_state(path, KIND)
    try:
        state, architecture = content["adapter"], content["architecture"]
        if state["method"] not in list_methods():
            raise ValueError(
                f"Expected a registered method, but {path} holds an adapter of {state['method']!r}. If it is a method "
                "of your own, import its module first: its class needs the decorator @vcotta.register_method."
            )
        method = find_method(state["method"])
        try:
            config = method.Config(**state["config"])
            guard = Guard(**state["guard"]["settings"]) if state["guard"] else None
            runtime = runtime or Runtime(**content["runtime"])
        except ValueError as error:  # it names the setting, but not the file
            raise ValueError(
                f"Expected an adapter saved by vcotta.save in {path}, but it cannot be read here: {error} To choose "
                "another device, give runtime=vcotta.Runtime('cpu')."
            ) from error
        if model is None and "source" in state:
            raise ValueError(
                f"Expected the source network, as {path} leaves its weights out. Give it: vcotta.load(path, model=...)."
            )
        if model is None:
            model = _rebuild(architecture["network"], state["networks"]["start"], path)
        if architecture["variational"] and not is_variational(model):
            model = to_variational(model, unsupported="keep")
        adapter = method(model, config, seed=state["seed"], runtime=runtime, guard=guard)
        adapter.load_state_dict(state)
    except (LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        raise ValueError(
            f"Expected an adapter saved by vcotta.save in {path}, but it cannot be read: {error}"
        ) from error
    return adapter


def _swapped(path: object, right: str) -> TypeError:
    """The error for an adapter or network in place of the path."""
    got = type(path).__name__
    return TypeError(f"Expected `path` to be a path, but got a {got}. The arguments are swapped: write vcotta.{right}.")


def _rebuild(network: dict[str, Any] | None, tensors: dict[str, Tensor], path: str | os.PathLike[str]) -> nn.Module:
    try:
        if network is None:
            raise ValueError("it is none of vcotta.models")
        return rebuild_network(network, tensors)
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        raise ValueError(
            f"The network in {path} cannot be rebuilt from the file: {error}. Give a network of the same "
            "architecture: vcotta.load(path, model=...)."
        ) from error

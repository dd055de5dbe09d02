"""The settings of every method, of guards, warm-ups and runtimes, from the code."""

from __future__ import annotations

import typing
from dataclasses import MISSING, asdict, fields
from types import NoneType
from typing import Any

from griffe import Docstring, DocstringSectionKind

from studies.markdown import table
from vcotta.bayes import WarmUpConfig
from vcotta.methods import DATASETS, Guard, configure, find_method, list_methods
from vcotta.nn.runtime import Runtime

OTHERS = {
    "Guard": (Guard, "guard=vcotta.Guard(...)"),
    "WarmUpConfig": (WarmUpConfig, "warmup=vcotta.WarmUpConfig(...)"),
    "Runtime": (Runtime, "runtime=vcotta.Runtime(...)"),
}


def settings_text() -> str:
    """Return a section for each method and for what is set beside it."""
    return "\n\n".join([*map(_method, list_methods()), *(_other(name, *found) for name, found in OTHERS.items())])


def _method(name: str) -> str:
    method = find_method(name)
    usual = asdict(configure(name))
    parts = [
        f"## {name}",
        _described(method),
        _options(method.Config, usual) if usual else "It has no options.",
    ]
    for dataset in DATASETS:
        if own := {
            key: value for key, value in asdict(configure(name, dataset=dataset)).items() if usual[key] != value
        }:
            parts.append(f"On {dataset}: {_assigned(own)}.")
    if method.presets:
        first, *rest = method.presets
        parts.append(f"Presets: `{first}` (the default, shown above), {', '.join(f'`{one}`' for one in rest)}.")
    return "\n\n".join(parts)


def _other(name: str, config: type[Any], use: str) -> str:
    defaults = {one.name: one.default for one in fields(config) if one.default is not MISSING}
    return "\n\n".join(
        [f"## {name}", _described(config), f"Given as `build_adapter(..., {use})`.", _options(config, defaults)]
    )


def _described(thing: type[Any]) -> str:
    """Return what mkdocstrings shows as the class's description, without its members."""
    hidden = ["show_root_heading", "show_root_toc_entry", "show_signature", "members", "inherited_members"]
    hidden += ["show_docstring_attributes", "show_docstring_examples"]
    lines = [f"::: {thing.__module__}.{thing.__qualname__}", "    options:"]
    return "\n".join([*lines, *(f"        {option}: false" for option in hidden)])


def _options(config: type[Any], values: dict[str, Any]) -> str:
    meanings = _meanings(config)
    hints = typing.get_type_hints(config)
    rows = [(f"`{key}`", f"`{value!r}`", _allowed(hints[key]), meanings.get(key, "")) for key, value in values.items()]
    shown = table(["Option", "Default", "Values", "Meaning"], rows, left=4)
    return f'<div class="meanings" markdown>\n\n{shown}\n\n</div>'


def _meanings(config: type[Any]) -> dict[str, str]:
    """Return what the class's docstring says of each attribute, those of its bases included."""
    found: dict[str, str] = {}
    for base in reversed(config.__mro__):
        for section in Docstring(base.__doc__ or "", parser="google").parse(warnings=False):
            if section.kind is DocstringSectionKind.attributes:
                found |= {one.name: " ".join(one.description.split()).replace("|", "\\|") for one in section.value}
    return found


def _allowed(hint: Any) -> str:
    """Return the type of an option in words."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{one!r}`" for one in arguments)
    if arguments:
        return " or ".join(_allowed(one) for one in arguments)
    words = {int: "whole number", float: "number", bool: "true or false", str: "text", NoneType: "`None`"}
    return words.get(hint) or f"`{hint.__name__}`"


def _assigned(values: dict[str, Any]) -> str:
    return ", ".join(f"`{key}={value!r}`" for key, value in values.items())

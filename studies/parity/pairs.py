"""Official methods beside ours: how each is made from a checkout, and which of our settings are its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from studies.parity.subject import Subject

Step = Callable[[Tensor], Tensor]
"""The official code's step: images to log-probabilities, with its update."""


@dataclass(frozen=True)
class Pair:
    """A method of ours and official code of it.

    Attributes:
        method: Our name of it.
        repository: Whose code, as on GitHub.
        build: Makes the official step.
        options: Our options where the official code differs from our default.
        folder: Folder of the checkout whose modules are imported by their names.
        replaced: Members in place of the checkout's, by module; see `official_code`.
        settings: The official file that the settings are from.
        changes: What was changed in the official code to run it, for the table.
        variant: Tells rows of one method apart.
    """

    method: str
    repository: str
    build: Callable[[Subject], Step]
    options: Mapping[str, Any] = field(default_factory=dict)
    folder: str = "."
    replaced: Callable[[Subject], Mapping[str, Mapping[str, Any]]] = lambda subject: {}
    settings: str = ""
    changes: tuple[str, ...] = ()
    variant: str = ""

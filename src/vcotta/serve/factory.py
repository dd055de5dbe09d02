"""From the facts of a bundle to its network: a file may name a network, it may not have code imported or run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vcotta.architecture import check_shapes
from vcotta.bayes import is_variational, to_variational
from vcotta.models import NormalisedNetwork, build_network

__all__ = ["NetworkFacts", "rebuild"]

_OURS = re.compile(r"wrn-\d{1,3}-\d{1,2}|resnext-\d{1,3}-\d{1,2}x\d{1,3}d|resnet-(18|20|32|44|50|56)")
_INSTALLED = re.compile(r"(torchvision|timm):[A-Za-z0-9_.]{1,100}")
_OPTIONS = {"channels": 16, "base": 1024, "stem_stride": 8}  # of our own networks: each with its largest value
_MOST_CLASSES = 100_000


@dataclass(frozen=True)
class NetworkFacts:
    """Which network a bundle is of.

    Attributes:
        name: As for `build_network`: ``wrn-28-10``, ``torchvision:resnet50``, ``package.module:factory``.
        classes: Number of outputs.
        options: Further whole numbers for one of our own networks: ``channels``, ``base``, ``stem_stride``.
        mean: Mean of each channel that the network subtracts, None where it takes [0, 1] as it is.
        std: Standard deviation of each channel, likewise.
    """

    name: str
    classes: int
    options: Mapping[str, int] = field(default_factory=dict)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or len(self.name) > 200:
            raise ValueError(f"Expected the name of a network, but got {str(self.name)[:80]!r}.")
        if type(self.classes) is not int or not 1 <= self.classes <= _MOST_CLASSES:
            raise ValueError(f"Expected `classes` to be 1 to {_MOST_CLASSES}, but got {self.classes!r}.")
        for key, value in self.options.items():
            if not self.is_ours or key not in _OPTIONS or type(value) is not int or not 1 <= value <= _OPTIONS[key]:
                raise ValueError(f"Expected no such option of {self.name}, but got {key}={value!r}.")
        for values in (self.mean, self.std):
            if values is not None and not all(isinstance(v, float) and abs(v) < 1e6 for v in values):
                raise ValueError(f"Expected `mean` and `std` to be numbers, one a channel, but got {values!r}.")

    @property
    def is_ours(self) -> bool:
        """Whether the package itself has this network."""
        return _OURS.fullmatch(self.name) is not None

    @property
    def runs_foreign_code(self) -> bool:
        """Whether making it imports a module that only the operator can vouch for."""
        return not (self.is_ours or _INSTALLED.fullmatch(self.name))


def rebuild(facts: NetworkFacts, tensors: Mapping[str, Tensor], trusted: str | None = None) -> nn.Module:
    """Make the network and give it its weights.

    Its shape is worked out without memory first: a file that promises a network larger than the weights it holds is
    refused before anything is allocated.

    Args:
        facts: The network.
        tensors: Its weights, those of a variational network or of a plain one.
        trusted: The one factory (``package.module:factory``) that may be imported and called, if any.

    Raises:
        ValueError: If the name is not known or not trusted, or the weights are of another network.

    Example:
        >>> facts = NetworkFacts("wrn-10-1", 10)
        >>> rebuild(facts, build_network("wrn-10-1", 10).state_dict()).fc.out_features
        10
    """
    if facts.runs_foreign_code and facts.name != trusted:
        raise ValueError(
            f"Expected a network of vcotta, torchvision or timm, but the bundle names {facts.name!r}, and making that "
            f"would run its code. If it is yours, say so: --trust {facts.name}"
        )
    with torch.device("meta"):
        skeleton = _build(facts)
    check_shapes(skeleton, tensors, facts.name)
    model = _build(facts)
    if facts.mean is not None or facts.std is not None:
        if not isinstance(model, NormalisedNetwork):
            raise ValueError(f"Expected no `mean` and `std` for {facts.name}, which does not normalise by itself.")
        model.set_normalisation(facts.mean, facts.std)
    if any(name.endswith("_rho") for name in tensors) and not is_variational(model):
        model = to_variational(model, unsupported="keep")
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise ValueError(f"Expected the weights of {facts.name}, but they do not fit: {error}") from error
    return model.requires_grad_(False).eval()


def _build(facts: NetworkFacts) -> nn.Module:
    options: dict[str, Any] = dict(facts.options)
    try:
        return build_network(facts.name, facts.classes, **options)
    except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
        raise ValueError(f"The network {facts.name!r} cannot be made: {error}") from error

"""A bundle: all that a server needs of a model, in one file without code.

The file is a safetensors file with a JSON header and a SHA-256 of its content: the weights of the start network, which
network they are of, how images are brought to its size, what its outputs mean, the method with every setting, and what
the method learned from source data. Reading one never imports or runs what it names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vcotta._messages import unknown_name
from vcotta.data.image_files import PREPROCESSES
from vcotta.files import sha256
from vcotta.guard import Guard
from vcotta.methods import Adapter, choose_guard, configure
from vcotta.models import NormalisedNetwork
from vcotta.serve.factory import NetworkFacts, rebuild
from vcotta.state_files import read_state, write_state

__all__ = ["Bundle", "Preprocess", "load_bundle", "make_bundle", "save_bundle"]

_KIND = "vcotta-bundle-1"
_LARGEST_SIDE = 4096
_LONGEST_NAME = 200


@dataclass(frozen=True)
class Preprocess:
    """How an image becomes what the network takes, besides the division by 255.

    Attributes:
        size: Side of the images, in pixels.
        channels: 3 for colour, 1 for grey.
        how: One of `vcotta.data.image_files.PREPROCESSES`.
    """

    size: int
    channels: int = 3
    how: str = "resize"

    def __post_init__(self) -> None:
        if type(self.size) is not int or not 1 <= self.size <= _LARGEST_SIDE:
            raise ValueError(f"Expected `size` to be 1 to {_LARGEST_SIDE}, but got {self.size!r}.")
        if type(self.channels) is not int or self.channels not in (1, 3):
            raise ValueError(f"Expected `channels` to be 1 or 3, but got {self.channels!r}.")
        if self.how not in PREPROCESSES:
            raise unknown_name("how", self.how, PREPROCESSES)
        if self.how == "res256crop224" and self.size != 224:
            raise ValueError(f'Expected `size` to be 224 with "res256crop224", but got {self.size}.')

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        return self.channels, self.size, self.size


@dataclass(frozen=True)
class Bundle:
    """A model to serve.

    Attributes:
        network: Which network.
        weights: Its tensors by name.
        preprocess: How images are brought to its size.
        class_names: What each output stands for.
        method: Name of the method, one of `list_methods`.
        settings: Every field of the method's config.
        prepared: What the method learned from source data, tensors by name.
        guard: Every field of its `vcotta.Guard`, None for no protection.
        batch_size: Images in a batch the settings were made for.
        seed: Seed of the adapter.
        sha256: Hash of the file it was read from, empty if it was not.
    """

    network: NetworkFacts
    weights: dict[str, Tensor] = field(repr=False)
    preprocess: Preprocess
    class_names: tuple[str, ...]
    method: str
    settings: dict[str, Any]
    prepared: dict[str, Tensor] = field(default_factory=dict, repr=False)
    guard: dict[str, Any] | None = field(default_factory=lambda: asdict(Guard()))
    batch_size: int = 64
    seed: int = 0
    sha256: str = ""

    def __post_init__(self) -> None:
        names = self.class_names
        if len(names) != self.network.classes or not all(isinstance(n, str) and len(n) <= _LONGEST_NAME for n in names):
            raise ValueError(f"Expected {self.network.classes} class names, one an output, but got {len(names)}.")
        for key, most in {"batch_size": 4096, "seed": 2**62}.items():
            if type(value := getattr(self, key)) is not int or not 0 <= value <= most:
                raise ValueError(f"Expected `{key}` to be a whole number up to {most}, but got {value!r}.")
        for tensors in (self.weights, self.prepared):
            if not all(isinstance(k, str) and isinstance(t, Tensor) for k, t in tensors.items()):
                raise ValueError("Expected weights to be tensors by name, but found other things among them.")
        configure(self.method, **self.settings)  # raises if there is no such method or setting
        self.build_guard()

    def build_network(self, trusted: str | None = None) -> nn.Module:
        """Make the network with its weights; see `vcotta.serve.factory.rebuild` for ``trusted``."""
        return rebuild(self.network, self.weights, trusted)

    def build_guard(self) -> Guard | None:
        """Make the adapter's protections, None for none."""
        return None if self.guard is None else Guard(**self.guard)


def make_bundle(
    adapter: Adapter,
    network: str,
    class_names: Sequence[str],
    preprocess: Preprocess,
    *,
    batch_size: int = 64,
    guard: Guard | bool | None = None,
    **options: int,
) -> Bundle:
    """Make a bundle from an adapter; what it has learned at test time stays behind, what of source data comes along.

    Args:
        adapter: The adapter, prepared where its method needs that.
        network: Name of its network, as for `build_network`.
        class_names: What each output stands for.
        preprocess: How images are brought to the network's size.
        batch_size: Images in a batch the settings were made for; the server pools small requests up to it.
        guard: Its protections when served; True for the usual ones, False for none, None for those of the adapter, or
            the usual ones if it has none.
        options: Whole numbers `build_network` needs beside the name, such as ``stem_stride``.

    Example:
        >>> from vcotta import build_adapter
        >>> from vcotta.models import build_network
        >>> adapter = build_adapter("bn", build_network("wrn-10-1", 2))
        >>> make_bundle(adapter, "wrn-10-1", ["cat", "dog"], Preprocess(32)).method
        'bn'
    """
    start = adapter.start
    mean, std = (start.mean, start.std) if isinstance(start, NormalisedNetwork) else (None, None)
    if adapter.needs_source and not adapter.prepared:
        raise ValueError(f"Expected {adapter.name} to be prepared on source data first, but it was not.")
    chosen = choose_guard(adapter.name, adapter.guard or True if guard is None else guard, {})
    bundle = Bundle(
        network=NetworkFacts(network, len(class_names), options, mean, std),
        weights={name: tensor.detach().cpu().clone() for name, tensor in start.state_dict().items()},
        preprocess=preprocess,
        class_names=tuple(class_names),
        method=adapter.name,
        settings=asdict(adapter.config),
        prepared={name: tensor.detach().cpu().clone() for name, tensor in adapter.prepared.items()},
        guard=None if chosen is None else asdict(chosen),
        batch_size=batch_size,
        seed=adapter.seed,
    )
    bundle.build_network(trusted=network)  # what cannot be read back is told now
    return bundle


def save_bundle(bundle: Bundle, path: str | os.PathLike[str]) -> None:
    """Write a bundle to one file, atomically."""
    content = {
        "network": asdict(bundle.network),
        "weights": bundle.weights,
        "preprocess": asdict(bundle.preprocess),
        "class_names": list(bundle.class_names),
        "method": bundle.method,
        "settings": bundle.settings,
        "prepared": bundle.prepared,
        "guard": bundle.guard,
        "batch_size": bundle.batch_size,
        "seed": bundle.seed,
    }
    write_state(path, _KIND, content)


def load_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Read a bundle; nothing in it is imported or run.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is damaged, foreign, or says what makes no sense.
    """
    content = read_state(Path(path), _KIND)
    try:
        facts = dict(content.pop("network"))
        for key in ("mean", "std"):
            facts[key] = None if facts[key] is None else tuple(facts[key])
        return Bundle(
            network=NetworkFacts(**facts),
            preprocess=Preprocess(**content.pop("preprocess")),
            class_names=tuple(content.pop("class_names")),
            settings=dict(content.pop("settings")),
            sha256=sha256(path),
            **content,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"Expected a bundle in {path}, but it makes no sense: {error}") from error

"""A bundle: all that a server needs of a model, in one safetensors file with a JSON header and a SHA-256.

Reading a bundle imports and runs nothing that it names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from vcotta._util.errors import unknown_name
from vcotta._util.files import sha256
from vcotta._util.tensorfile import read_state, write_state
from vcotta._util.validation import Settings, between
from vcotta.bayes import is_variational, to_variational
from vcotta.data.sizes import PREPROCESSES
from vcotta.methods import Adapter, choose_guard, configure
from vcotta.methods.guard import Guard
from vcotta.methods.probe import IMAGES, check_probe
from vcotta.models import NormalisedNetwork, build_network
from vcotta.models.files import check_shapes
from vcotta.serve.bounds import check_batch, check_numbers

__all__ = ["Bundle", "NetworkCard", "Preprocess", "load_bundle", "make_bundle", "save_bundle"]

_KIND = "vcotta-bundle-1"
_LONGEST_NAME = 200
_OURS = re.compile(r"wrn-\d{1,3}-\d{1,2}|resnext-\d{1,3}-\d{1,2}x\d{1,3}d|resnet-(18|20|32|44|50|56)")
_INSTALLED = re.compile(r"(torchvision|timm):[A-Za-z0-9_.]{1,100}")
_OPTIONS = {"channels": 16, "base": 1024, "stem_stride": 8}  # options of our own networks and their largest values
_MOST_PROBED = 16_384  # images, predicted between two batches
_SMALLEST_STD = 1e-6


@dataclass(frozen=True)
class NetworkCard(Settings):
    """Which network a bundle holds.

    Attributes:
        name: As for `build_network`: ``wrn-28-10``, ``torchvision:resnet50``, ``package.module:factory``.
        classes: Number of outputs.
        options: Further whole numbers for one of our own networks: ``channels``, ``base``, ``stem_stride``.
        mean: Mean of each channel, None if the network does not normalise its input.
        std: Standard deviation of each channel, None likewise.
    """

    name: str
    classes: Annotated[int, between(1, 100_000)]
    options: Mapping[str, int] = field(default_factory=dict)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.name) > _LONGEST_NAME:
            raise ValueError(f"Expected the name of a network, but got {self.name[:80]!r}...")
        for key, value in self.options.items():
            if not self.is_ours or key not in _OPTIONS or type(value) is not int or not 1 <= value <= _OPTIONS[key]:
                raise ValueError(f"Expected an option that {self.name} has, in its range, but got {key}={value!r}.")
        for values in (self.mean, self.std):
            if values is not None and not all(isinstance(v, float) and abs(v) < 1e6 for v in values):
                raise ValueError(f"Expected `mean` and `std` to be numbers, one for each channel, but got {values!r}.")
        if self.std is not None and not all(value >= _SMALLEST_STD for value in self.std):
            raise ValueError(f"Expected `std` to be at least {_SMALLEST_STD}, but got {self.std!r}.")

    @property
    def is_ours(self) -> bool:
        """Whether the package itself has this network."""
        return _OURS.fullmatch(self.name) is not None

    @property
    def runs_foreign_code(self) -> bool:
        """Whether building it imports code outside vcotta, torchvision and timm."""
        return not (self.is_ours or _INSTALLED.fullmatch(self.name))


@dataclass(frozen=True)
class Preprocess(Settings):
    """How images are resized for the network, before they are divided by 255.

    Attributes:
        size: Side of the images, in pixels.
        channels: 3 for colour, 1 for grey.
        how: One of `vcotta.data.sizes.PREPROCESSES`.
    """

    size: Annotated[int, between(1, 4096)]
    channels: Literal[1, 3] = 3
    how: str = "resize"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.how not in PREPROCESSES:
            raise unknown_name("how", self.how, PREPROCESSES)
        if self.how == "res256crop224" and self.size != 224:
            raise ValueError(f'Expected `size` to be 224 with "res256crop224", but got {self.size}.')

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        return self.channels, self.size, self.size


@dataclass(frozen=True)
class Bundle(Settings):
    """A model to serve.

    Attributes:
        network: Which network.
        weights: Its tensors by name.
        preprocess: How images are resized for it.
        class_names: Name of each output.
        method: Name of the method, one of `list_methods`.
        settings: Every field of the method's config.
        prepared: What the method learned from source data, tensors by name, and the probe if there is one.
        guard: Every field of its `Guard`, None for no guard.
        batch_size: Images in a batch that the settings were chosen for.
        seed: Seed of the adapter.
        sha256: Hash of the file it was read from, if any.
    """

    network: NetworkCard
    weights: dict[str, Tensor] = field(repr=False)
    preprocess: Preprocess
    class_names: tuple[str, ...]
    method: str
    settings: dict[str, Any]
    prepared: dict[str, Tensor] = field(default_factory=dict, repr=False)
    guard: dict[str, Any] | None = field(default_factory=lambda: asdict(Guard()))
    batch_size: Annotated[int, between(1, 4096)] = 64
    seed: Annotated[int, between(0, 2**62)] = 0
    sha256: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = self.class_names
        if len(names) != self.network.classes:
            raise ValueError(f"Expected {self.network.classes} class names, one for each output, but got {len(names)}.")
        for name in names:
            if not isinstance(name, str) or len(name) > _LONGEST_NAME:
                found = repr(name)[:40]
                raise ValueError(f"Expected class names of at most {_LONGEST_NAME} characters, but got {found}.")
            if any("\ud800" <= character <= "\udfff" for character in name):
                raise ValueError(f"Expected class names of Unicode text, but got {name!r}. Read its file as UTF-8.")
        for tensors in (self.weights, self.prepared):
            if not all(isinstance(k, str) and isinstance(t, Tensor) for k, t in tensors.items()):
                raise ValueError("Expected `weights` and `prepared` to be tensors by name, but got other values.")
        for name, tensor in self.weights.items():
            if not bool(tensor.isfinite().all()):
                raise ValueError(f"Expected finite weights, but {name!r} holds others. Train the network again.")
        config = configure(self.method, **self.settings)  # raises if there is no such method or setting
        self.build_guard()
        check_numbers(self.settings)
        check_numbers(self.guard or {})
        check_batch(self.batch_size, getattr(config, "views", 0), self.preprocess.shape)
        self._check_probe()

    def _check_probe(self) -> None:
        check_probe(self.prepared, self.network.classes)
        if (images := self.prepared.get(IMAGES)) is None:
            return
        if self.guard is None:
            raise ValueError("Expected a guard, which looks at the probe, but the bundle has none.")
        if (shape := tuple(images.shape[2:])) != self.preprocess.shape:
            raise ValueError(f"Expected a probe of images of shape {self.preprocess.shape}, but got {shape}.")
        if (count := images.shape[:2].numel()) > _MOST_PROBED:
            raise ValueError(f"Expected a probe of at most {_MOST_PROBED} images in all conditions, but got {count}.")

    def build_network(self, trusted: str | None = None) -> nn.Module:
        """Build the network with its weights.

        Args:
            trusted: The one factory (``package.module:factory``) that may be imported and called, if any.

        Raises:
            ValueError: If the name is unknown or not trusted, or the weights do not fit the network.
        """
        card, weights = self.network, self.weights
        if card.runs_foreign_code and card.name != trusted:
            raise ValueError(
                f"Expected a network of vcotta, torchvision or timm, but the bundle names {card.name!r}, whose code "
                f"would run. If you trust that code, add --trust {card.name}"
            )
        with torch.device("meta"):  # allocates no memory for a network that is larger than its weights
            check_shapes(_build(card), weights, card.name)
        model = _build(card)
        if card.mean is not None or card.std is not None:
            if not isinstance(model, NormalisedNetwork):
                raise ValueError(f"Expected no `mean` and `std` for {card.name}, which does not normalise its input.")
            model.set_normalisation(card.mean, card.std)
        if any(name.endswith("_rho") for name in weights) and not is_variational(model):
            model = to_variational(model, unsupported="keep")
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"Expected the weights of {card.name}, but they do not fit: {error}") from error
        return model.requires_grad_(False).eval()

    def build_guard(self) -> Guard | None:
        """Build the guard, if there is one."""
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
    """Make a bundle from an adapter's start network and what it learned from source data; test data leave no trace.

    Args:
        adapter: The adapter; prepared, if its method needs source data.
        network: Name of its network, as for `build_network`.
        class_names: Name of each output.
        preprocess: How images are resized for the network.
        batch_size: Images in a batch that the settings were chosen for; the server pools small requests up to it.
        guard: True for the default guard, False for none, None for the adapter's own or else the default: a server
            often runs unwatched.
        options: Further options of `build_network`, such as ``stem_stride``.

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
        raise ValueError(
            f"Expected {adapter.name} to be prepared on source data, but it was not. Call prepare(loader)."
        )
    chosen = choose_guard(adapter.name, adapter.guard or True if guard is None else guard, {})
    bundle = Bundle(
        network=NetworkCard(network, len(class_names), options, mean, std),
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
    bundle.build_network(trusted=network)  # so that a file that could not be loaded is never written
    return bundle


def save_bundle(bundle: Bundle, path: str | os.PathLike[str]) -> None:
    """Write a bundle to one file, atomically."""
    content = vars(bundle) | {"network": asdict(bundle.network), "preprocess": asdict(bundle.preprocess)}
    del content["sha256"]
    write_state(path, _KIND, content | {"class_names": list(bundle.class_names)})


def load_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Read a bundle without importing or running anything that it names.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is damaged, of another kind, or has values out of range.
    """
    try:
        content = read_state(Path(path), _KIND)
    except ValueError as error:
        raise ValueError(f"{error} Make a bundle with `vcotta bundle`.") from error
    try:
        card = dict(content.pop("network"))
        for key in ("mean", "std"):
            card[key] = None if card[key] is None else tuple(card[key])
        return Bundle(
            network=NetworkCard(**card),
            preprocess=Preprocess(**content.pop("preprocess")),
            class_names=tuple(content.pop("class_names")),
            settings=dict(content.pop("settings")),
            sha256=sha256(path),
            **content,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"Expected a bundle in {path}, but its content is not valid: {error}") from error


def _build(card: NetworkCard) -> nn.Module:
    options: dict[str, Any] = dict(card.options)
    try:
        return build_network(card.name, card.classes, **options)
    except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
        raise ValueError(f"The network {card.name!r} cannot be built: {error}") from error

"""Networks by name: ours, torchvision's, timm's and the user's own."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vcotta._util.errors import unknown_name
from vcotta.bayes import to_point
from vcotta.models.external import PRETRAINED, from_factory, from_timm, from_torchvision
from vcotta.models.files import LoadedWeights, check_shapes, load_weights
from vcotta.models.normalised import CAFFE
from vcotta.models.resnet import CifarResNet, ResNet
from vcotta.models.resnext import ResNeXt
from vcotta.models.vit import ViT
from vcotta.models.wide_resnet import WideResNet
from vcotta.nn.batch_norm import batch_norms, join_views

__all__ = ["build_network", "describe_network", "expected_error", "list_networks", "rebuild_network"]

_NAMES = (
    "wrn-28-10",
    "wrn-40-2",
    "wrn-16-4",
    "wrn-10-1",
    "resnext-29-4x32d",
    "resnet-20",
    "resnet-32",
    "resnet-44",
    "resnet-56",
    "resnet-18",
    "resnet-50",
    "resnet-18-64px",
    "resnet-50-v1",
    "vit-32px",
    "vit-64px",
    "resnet-26-gn",
    "resnet-18-gn-64px",
    "resnet-50-gn",
)
V1 = "resnet-50-v1"  # its weights fit into resnet-50, too, but do not work there
_OTHERS = ("torchvision:NAME", "timm:NAME", "package.module:factory", "path/to/file.py:factory")

_CLASSES: dict[str, type[nn.Module]] = {kind.__name__: kind for kind in (WideResNet, ResNeXt, CifarResNet, ResNet, ViT)}
_LARGEST = 10_000  # of an argument that a file names

_ERRORS = {
    ("wrn-28-10", "cifar10"): 0.0522,  # RobustBench Standard
    ("resnext-29-4x32d", "cifar100"): 0.2110,  # RobustBench Hendrycks2020AugMix_ResNeXt
    ("resnet-20", "cifar10"): 0.0827,  # akamaster, measured
    ("resnet-32", "cifar10"): 0.0737,
    ("resnet-44", "cifar10"): 0.0690,
    ("resnet-56", "cifar10"): 0.0661,
    ("resnet-18", "imagenet"): 0.3024,  # torchvision IMAGENET1K_V1
    ("resnet-50", "imagenet"): 0.2387,  # torchvision IMAGENET1K_V1
    (V1, "imagenet"): 0.2510,  # Keras
    ("torchvision:resnet18", "imagenet"): 0.3024,
    ("torchvision:resnet50", "imagenet"): 0.2387,
}


def list_networks() -> list[str]:
    """Return the names of our own networks.

    `build_network` takes any other ``wrn-DEPTH-WIDTH`` and ``vit-DEPTH-WIDTH-SIZEpx`` too.

    Example:
        >>> list_networks()[:2]
        ['wrn-28-10', 'wrn-40-2']
    """
    return list(_NAMES)


def build_network(
    name: str,
    classes: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    *,
    seed: int = 0,
    new_classifier: bool = False,
    **options: Any,
) -> nn.Module:
    """Make a network that takes images in [0, 1], by name.

    Args:
        name: One of `list_networks`, any ``wrn-DEPTH-WIDTH`` or ``vit-DEPTH-WIDTH-SIZEpx``, ``torchvision:NAME`` or
            ``timm:NAME`` where those are installed, or ``package.module:factory`` or ``path/to/file.py:factory`` for
            your own.
        classes: Number of outputs; None for the network's default. A factory gets it if it has an argument ``classes``
            or ``num_classes``.
        weights: A checkpoint for `load_weights`; None for random weights. For torchvision and timm also
            ``"pretrained"``, and torchvision's own names such as ``"IMAGENET1K_V1"``.
        seed: Seed of random weights; the global random state is not changed.
        new_classifier: See `load_weights`.
        options: Further arguments of the network, such as ``mean`` and ``std`` or ``stem_stride``.

    Returns:
        The network, in eval mode.

    Raises:
        ValueError: The name is unknown, or the weights are of another network.

    Example:
        >>> build_network("wrn-10-1", classes=7)(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 7])
    """
    name = name.strip()
    published = _published(name, weights)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed every GPU
        if name.startswith("torchvision:"):
            model = from_torchvision(name.removeprefix("torchvision:"), classes, published, **options)
        elif name.startswith("timm:"):
            model = from_timm(name.removeprefix("timm:"), classes, published, **options)
        elif ":" in name:
            model = from_factory(name, classes, **options)
        else:
            model = _ours(name, classes, options)
    if weights is not None and published is None:
        _check_form(name, load_weights(model, weights, new_classifier=new_classifier))
    return model.eval()


def _check_form(name: str, loaded: LoadedWeights) -> None:
    """Raise if weights of ``resnet-50-v1`` were read into another ResNet-50, or the other way round."""
    of, ours = str(loaded.metadata.get("network", "")), _plain_name(name)
    if of in _NAMES and (of == V1) != (ours == V1):
        raise ValueError(
            f"Expected the weights of {ours} in {loaded.path}, but they are of {of}, whose strides are elsewhere. "
            f"Use --model {of}."
        )


def _plain_name(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def expected_error(name: str, dataset: str) -> float | None:
    """Return the error of a network with its published weights on clean test images, None if unknown.

    Args:
        name: As for `build_network`.
        dataset: ``cifar10``, ``cifar100`` or ``imagenet``, or a split such as ``cifar10-test``.

    Example:
        >>> expected_error("resnet-20", "cifar10")
        0.0827
    """
    return _ERRORS.get((_plain_name(name), dataset.strip().lower().partition("-")[0]))


def describe_network(model: nn.Module) -> dict[str, Any] | None:
    """Return the class and the constructor's arguments of one of our networks, as plain data.

    None for any other network, and for one that was changed after its construction.

    Example:
        >>> describe_network(CifarResNet(depth=8, mean=None, std=None))["arguments"]
        {'depth': 8, 'classes': 10, 'channels': 3, 'mean': None, 'std': None, 'norm': 'batch'}
    """
    kind = type(model)
    if kind not in _CLASSES.values():
        return None
    point = to_point(model)
    join_views(point)
    for norm in batch_norms(point):  # in an adapter they do not track, but still have what they were built with
        norm.track_running_stats = norm.running_mean is not None
    arguments = {name: getattr(model, name) for name in inspect.signature(kind).parameters}
    described = {"class": kind.__name__, "arguments": arguments}
    return described if repr(_construct(described)) == repr(point) else None


def rebuild_network(described: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """Make a network with fresh weights from what `describe_network` returned.

    Raises:
        ValueError: It is not one of our networks, or ``tensors`` have other shapes; no memory is allocated then.
    """
    check_shapes(_construct(described), tensors, described["class"])
    return _construct(described, device="cpu")


def _construct(described: Mapping[str, Any], device: str = "meta") -> nn.Module:
    name = str(described["class"]).rpartition(":")[2]  # older files name the module, too
    arguments = {key: tuple(v) if isinstance(v, list) else v for key, v in described["arguments"].items()}
    if name not in _CLASSES or any(isinstance(value, int) and value > _LARGEST for value in arguments.values()):
        raise ValueError(f"Expected a network of vcotta.models, but got {name} with {arguments}.")
    with torch.device(device), torch.random.fork_rng(devices=[]):
        return _CLASSES[name](**arguments)


def _ours(name: str, classes: int | None, options: dict[str, Any]) -> nn.Module:
    kind: type[nn.Module]
    arguments: dict[str, Any]
    small = _plain_name(name)
    if found := re.fullmatch(r"wrn-(\d+)-(\d+)", small):
        kind, arguments = WideResNet, {"depth": int(found[1]), "width": int(found[2])}
    elif found := re.fullmatch(r"resnext-(\d+)-(\d+)x(\d+)d", small):
        kind = ResNeXt
        arguments = {"depth": int(found[1]), "cardinality": int(found[2]), "base_width": int(found[3])}
    elif found := re.fullmatch(r"resnet-(20|26|32|44|56)(-gn)?", small):
        kind, arguments = CifarResNet, {"depth": int(found[1]), "norm": "group" if found[2] else "batch"}
    elif found := re.fullmatch(r"resnet-(18|50)(-gn)?", small):
        kind, arguments = ResNet, {"depth": int(found[1]), "norm": "group" if found[2] else "batch"}
    elif found := re.fullmatch(r"resnet-18(-gn)?-64px", small):
        kind, arguments = ResNet, {"depth": 18, "small_stem": True, "norm": "group" if found[1] else "batch"}
    elif found := re.fullmatch(r"vit-(?:(\d+)-(\d+)-)?(\d+)px", small):
        kind, arguments = ViT, {"image_size": int(found[3])}
        if found[1]:
            width = int(found[2])
            arguments |= {"depth": int(found[1]), "width": width, "heads": max(2, width // 64)}
    elif small == V1:
        kind, arguments = ResNet, {"depth": 50, "first_strides": True, "eps": 1e-3}
        options = {"mean": CAFFE[0], "std": CAFFE[1], **options}
    else:
        raise unknown_name("network", name, [n for n in _NAMES if n.startswith(small)] or (*_NAMES, *_OTHERS))
    known = [key for key in inspect.signature(kind).parameters if key not in arguments]
    if unknown := [key for key in options if key not in known]:
        raise unknown_name(f"option of {name}", unknown[0], known)
    if classes is not None:
        arguments["classes"] = classes
    return kind(**arguments, **options)


def _published(name: str, weights: str | os.PathLike[str] | None) -> str | None:
    """``weights`` if it names published weights, None if it is a file."""
    if weights is None or Path(weights).exists():
        return None
    text = str(weights)
    if text == PRETRAINED and name.startswith(("torchvision:", "timm:")):
        return text
    if name.startswith("torchvision:") and re.fullmatch(r"[A-Z][A-Z0-9_]+", text):
        return text
    if text == PRETRAINED:
        raise ValueError(
            f"Expected `weights` to be a file for {name}, but got {text!r}, which only torchvision: and timm: have."
        )
    return None

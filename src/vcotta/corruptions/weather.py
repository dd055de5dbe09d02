"""Weather: snow, frost and fog."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from vcotta.corruptions.blur import motion_filter
from vcotta.corruptions.filters import centre_zoom, images_first, space_first, truncated, unit, unit32
from vcotta.corruptions.frost import FrostSource, Textures, frost_textures
from vcotta.corruptions.rng import CounterRng

__all__ = ["cut", "draw_fog", "draw_frost", "draw_snow", "fog", "fog_map", "frost", "snow"]

_FOG_START: Final = 100.0


def draw_snow(rng: CounterRng, images: Tensor, mean: float, std: float, *_: float) -> tuple[Tensor, Tensor]:
    """Draw the field of flakes, N(mean, std) for each pixel, and the angle of their fall, -135 .. -45 degrees."""
    field = rng.normal(*images.shape[1:3], mean=mean, std=std)
    return field, rng.uniform(1, low=-135, high=-45)[:, 0]


def snow(
    images: Tensor,
    field: Tensor,
    angles: Tensor,
    mean: float,
    std: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    weight: float,
) -> Tensor:
    """Whiten the image and add streaked flakes F, and F again turned by 180 degrees.

    With g the grey value and a the image weight, clip(a v + (1 - a) max(v, 1.5 g + 0.5) + F + rot180(F)).
    """
    flakes = centre_zoom(space_first(field.double()), zoom)
    flakes = truncated(torch.where(flakes < threshold, 0.0, flakes))
    streaks = unit(motion_filter(images_first(flakes)[..., None], angles, radius, sigma))
    values = unit32(images)
    grey = 0.299 * values[..., :1] + 0.587 * values[..., 1:2] + 0.114 * values[..., 2:]
    whitened = weight * values + (1 - weight) * torch.maximum(values, grey * 1.5 + 0.5)
    return truncated((whitened + streaks).add_(streaks.flip(1, 2)))


def draw_frost(
    rng: CounterRng, images: Tensor, weight: float, frost_weight: float, scale: float, source: FrostSource
) -> tuple[Tensor]:
    """Draw a texture (0 .. 4) and a corner in it, and cut the crop: (N, H, W, 3) uint8.

    The last possible row and column are never drawn, as in the original.
    """
    textures = frost_textures(scale, rng.device, source)
    height, width = images.shape[1:3]
    index = rng.integers(0, len(textures.heights), 1)[:, 0]
    room = torch.stack([textures.heights[index] - height, textures.widths[index] - width], dim=1).clamp_(min=1)
    corner = (rng.bits(2) * room) >> 32
    return (cut(textures, index, corner, height, width),)


def cut(textures: Textures, index: Tensor, corner: Tensor, height: int, width: int) -> Tensor:
    """Cut one crop for each image from texture ``index`` at ``corner`` (N, 2); small textures are reflected."""
    places = []
    for side, lengths, first in zip(
        (height, width), (textures.heights, textures.widths), corner.unbind(1), strict=True
    ):
        length = lengths[index][:, None]
        wrapped = (first[:, None] + torch.arange(side, device=index.device)).remainder(2 * length)
        places.append(torch.minimum(wrapped, 2 * length - 1 - wrapped))
    rows, columns = places
    flat = (rows * textures.widths[index][:, None] + textures.starts[index][:, None])[:, :, None] + columns[:, None, :]
    return textures.pixels.index_select(0, flat.view(-1)).view(len(index), height, width, 3)


def frost(
    images: Tensor, crop: Tensor, weight: float, frost_weight: float, scale: float, source: FrostSource
) -> Tensor:
    """Mix with a frost texture: clip(a u + b T) on the 0 .. 255 scale.

    The weights need not add up to 1, so frost may darken or saturate. Of six photographs the sixth is never used and
    the second and third are the same.
    """
    mixed = images.double().mul_(weight).add_(crop.double().mul_(frost_weight))
    return mixed.clamp_(0, 255).to(torch.uint8)


def draw_fog(rng: CounterRng, images: Tensor, amount: float, decay: float) -> tuple[Tensor]:
    """Draw M^2 - 1 uniforms on (-w, w), w = 100 and divided by ``decay`` at every finer scale.

    M is the power of two that covers the image; each scale has centres, then top edges, then left edges.
    """
    side = _map_side(images)
    amplitudes = _fog_amplitudes(side, decay).to(rng.device)
    return ((rng.uniform(side * side - 1, low=-1, high=1) * amplitudes).float(),)


def _map_side(images: Tensor) -> int:
    return 1 << max(1, (max(images.shape[1:3]) - 1).bit_length())


@lru_cache(maxsize=32)
def _fog_amplitudes(side: int, decay: float) -> Tensor:
    parts, wobble, step = [], _FOG_START, side
    while step >= 2:
        parts.append(torch.full((3 * (side // step) ** 2,), wobble, dtype=torch.float64))
        wobble /= decay
        step //= 2
    return torch.cat(parts)


def fog_map(uniforms: Tensor, decay: float) -> Tensor:
    """Grow a periodic diamond-square landscape and scale it to 0 .. 1.

    Each new point is the mean of its four neighbours (which wrap around) plus w U with U itself uniform on (-w, w): the
    noise amplitude is w^2. Takes (N, M^2 - 1) uniforms of `draw_fog` and returns (M, M, N).
    """
    count, size = uniforms.shape
    side = round((size + 1) ** 0.5)
    noise = uniforms.double().t().contiguous()
    land = torch.zeros((side, side, count), dtype=torch.float64, device=uniforms.device)
    step, wobble, used = side, _FOG_START, 0
    while step >= 2:
        half, cells = step // 2, side // step
        centre_noise, top_noise, left_noise = (
            (noise[used : used + 3 * cells * cells] * wobble).view(3, cells, cells, count).unbind(0)
        )
        corners = land[::step, ::step]
        below = corners + corners.roll(-1, 0)
        right = corners + corners.roll(-1, 1)
        centres = (below + below.roll(-1, 1)).div_(4).add_(centre_noise)
        land[half::step, half::step] = centres
        land[::step, half::step] = (centres + centres.roll(1, 0)).add_(right).div_(4).add_(top_noise)
        land[half::step, ::step] = (centres + centres.roll(1, 1)).add_(below).div_(4).add_(left_noise)
        used += 3 * cells * cells
        step, wobble = half, wobble / decay
    land -= land.amin((0, 1))
    return land / land.amax((0, 1))


def fog(images: Tensor, uniforms: Tensor, amount: float, decay: float) -> Tensor:
    """Add a cloud h and scale back: clip((v + amount h) t / (t + amount)), t the image's largest value.

    The cloud is scaled to 0 .. 1 over its whole map (256 x 256 for 224 pixels) before it is cropped to the top left.
    """
    cloud = images_first(fog_map(uniforms, decay)[: images.shape[1], : images.shape[2]])
    values = unit(images)
    brightest = values.amax((1, 2, 3), keepdim=True)
    foggy = values.add_(cloud.mul_(amount)[..., None])
    return truncated(foggy.mul_(brightest).div_(brightest + amount))

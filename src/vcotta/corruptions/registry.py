"""Which functions stand behind a corruption's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from torch import Tensor

from vcotta.corruptions import blur, digital, elastic, jpeg, noise, spatter, weather

__all__ = ["REGISTRY", "Corruption"]


class Corruption(NamedTuple):
    """One corruption, its chance kept apart from its arithmetic.

    ``apply(images, *draws, *constants)`` is a pure function; ``draw(stream, images, *constants)`` makes the draws, and
    is None where there are none.
    """

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

"""The weak and strong views of AdaContrast, as tensor operations on the whole batch with draws for each image."""

from __future__ import annotations

import torch
from torch import Tensor

from vcotta.augment import mirrored
from vcotta.views import _grey, _shift_hue, _uniform

__all__ = ["strong_view", "weak_view"]

# Ranges of the uniform draws and probabilities: the authors' "moco-v2-light".
_FACTOR = (0.6, 1.4)  # of brightness, contrast and saturation
_HUE = (-0.1, 0.1)
_JITTERED = 0.8
_GREYED = 0.2
_BLURRED = 0.5
_SIGMA = (0.1, 2.0)
_REACH = 6  # pixels each way: three of the largest standard deviations


def weak_view(images: Tensor, *, flip: bool = True) -> Tensor:
    """Mirror each image half of the time; with ``flip=False`` the view is the image."""
    return mirrored(images) if flip else images


def strong_view(images: Tensor, *, flip: bool = True) -> Tensor:
    """Draw a strong view of each image.

    In this order: brightness, contrast and saturation by factors of 0.6 to 1.4 and hue by up to 0.1 of the circle, in a
    random order, with probability 0.8; grey with probability 0.2; Gaussian blur of standard deviation 0.1 to 2, edges
    repeated, with probability 0.5; mirroring half of the time.

    Differs from the published pipeline in that images stay floats, where Pillow rounds to bytes after every operation
    and approximates the Gaussian by boxes.

    Args:
        images: Float images in [0, 1], (batch, channels, height, width). Saturation, hue and grey apply to RGB only.
        flip: Whether to mirror. Turn it off where left and right matter, as in digits.

    Returns:
        A view of the same shape, in [0, 1].

    Example:
        >>> strong_view(torch.rand(2, 3, 32, 48)).shape
        torch.Size([2, 3, 32, 48])
    """
    batch = len(images)
    chances = torch.rand(3, batch).to(images.device, non_blocking=True).view(3, batch, 1, 1, 1)
    images = torch.where(chances[0] < _JITTERED, _jitter(images), images)
    if images.shape[1] == 3:
        images = torch.where(chances[1] < _GREYED, _grey(images), images)
    sigma = _uniform(torch.rand(batch), _SIGMA).to(images.device, images.dtype, non_blocking=True)
    images = torch.where(chances[2] < _BLURRED, _blur(images, sigma), images)
    return weak_view(images.clamp(0, 1), flip=flip)


def _jitter(images: Tensor) -> Tensor:
    """Apply the four colour operations to every image in its own order; those that agree on a place go together."""
    orders = torch.rand(len(images), 4).argsort(1)
    draws = torch.rand(len(images), 4).to(images.device, images.dtype, non_blocking=True)
    groups = orders.argsort(dim=0, stable=True).to(images.device, non_blocking=True)  # at each place, by operation
    images = images.clone()
    for place in range(4):
        sizes = orders[:, place].bincount(minlength=4).tolist()
        for operation, group in enumerate(groups[:, place].split(sizes)):
            if len(group):
                images[group] = _colour(images[group], draws[group, operation].view(-1, 1, 1, 1), operation)
    return images


def _colour(images: Tensor, draws: Tensor, operation: int) -> Tensor:
    """Brightness, contrast, saturation or hue of (batch, channels, height, width); the last two are for RGB only."""
    factor, rgb = _uniform(draws, _FACTOR), images.shape[1] == 3
    if operation == 0:
        return (images * factor).clamp(0, 1)
    if operation == 1:
        mean = (_grey(images) if rgb else images).mean((1, 2, 3), keepdim=True)
        return torch.lerp(mean, images, factor).clamp(0, 1)
    if operation == 2 and rgb:
        return torch.lerp(_grey(images), images, factor).clamp(0, 1)
    if operation == 3 and rgb:
        return _shift_hue(images, _uniform(draws, _HUE))
    return images


def _blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Separable Gaussian of one standard deviation an image, edges repeated: a matrix for each image and side."""
    offsets = torch.arange(-_REACH, _REACH + 1, device=images.device)
    taps = torch.exp(-0.5 * (offsets / sigma.unsqueeze(1)).square())
    taps = (taps / taps.sum(1, keepdim=True)).to(images.dtype)
    down, across = (_band(taps, offsets, side).unsqueeze(1) for side in images.shape[-2:])
    return down @ images @ across.mT


def _band(taps: Tensor, offsets: Tensor, size: int) -> Tensor:
    """Matrices (batch, size, size) whose row i has each tap in the column of its neighbour of i, kept inside."""
    places = torch.arange(size, device=taps.device)
    neighbours = (places.unsqueeze(1) + offsets).clamp(0, size - 1)
    return torch.einsum("bo,ioj->bij", taps, (neighbours.unsqueeze(2) == places).to(taps.dtype))

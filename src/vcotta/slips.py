"""The usual mistakes between a network and its images: normalisation, order of channels, order of labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vcotta.models.normalised import CIFAR10, CIFAR100, HALF, IMAGENET, MeanStd, NormalisedNetwork

__all__ = ["InputSlip", "Slip", "input_slips", "label_slips"]

Labels = NDArray[np.int64]

_IMAGES_A_CLASS = 4  # fewer cannot show an unknown order of the labels
_RAW: MeanStd = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
_SCALES: dict[str, MeanStd] = {
    "no normalisation applied": _RAW,
    "ImageNet's mean and deviation applied": IMAGENET,
    "CIFAR-10's mean and deviation applied": CIFAR10,
    "CIFAR-100's mean and deviation applied": CIFAR100,
    "(x - 0.5) / 0.5 applied": HALF,
    "pixels from 0 to 255": ((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)),
}
_ORDER_ADVICE = "the labels are in another order than the network was trained with. Put them in its order."


@dataclass(frozen=True)
class Slip:
    """A mistake, and what the error would be without it.

    Attributes:
        without: How things would have to be, the beginning of a sentence: "With (x - 0.5) / 0.5 inside the model".
        error: What the error would be then.
        advice: What is wrong and what to do about it.
    """

    without: str
    error: float
    advice: str


@dataclass(frozen=True)
class InputSlip:
    """A mistake in what a network is fed, yet to be measured.

    Attributes:
        without: As of a `Slip`.
        advice: As of a `Slip`.
        undo: Turns images in [0, 1] into such as the network should have been fed.
    """

    without: str
    advice: str
    undo: Callable[[Tensor], Tensor]


def input_slips(model: nn.Module, channels: int) -> Iterator[InputSlip]:
    """Yield what may be wrong with the images as ``model`` sees them.

    A `NormalisedNetwork` says what it normalises by, so that every other choice can be tried in its place. Of any other
    network it is unknown: each choice is tried in addition, and taken out.

    Example:
        >>> [slip.without for slip in input_slips(nn.Identity(), channels=1)][:2]
        ["With ImageNet's mean and deviation applied inside the model", 'With that of ImageNet taken out of the model']
    """
    inner = _RAW
    if isinstance(model, NormalisedNetwork) and model.mean is not None and model.std is not None:
        inner = model.mean, model.std
    for words, scale in _SCALES.items():
        if scale != inner:
            means, stds = (f"({', '.join(f'{value:.4g}' for value in values)})" for values in scale)
            advice = f"its normalisation is another one. Build it with mean={means} and std={stds}."
            yield InputSlip(f"With {words} inside the model", advice, _rescale(scale, inner, channels))
        if scale in (IMAGENET, CIFAR10, HALF) and not isinstance(model, NormalisedNetwork):
            name = {IMAGENET: "that of ImageNet", CIFAR10: "that of CIFAR-10", HALF: "(x - 0.5) / 0.5"}[scale]
            advice = "the images are normalised twice. Remove one of the two."
            yield InputSlip(f"With {name} taken out of the model", advice, _rescale(_RAW, scale, channels))
    if channels == 3:
        advice = "it was trained on BGR images. Swap the channels inside the model."
        yield InputSlip("With the channels in BGR order", advice, lambda images: images.flip(1))


def label_slips(predicted: Labels, labels: Labels, names: tuple[str, ...]) -> Iterator[Slip]:
    """Yield what may be wrong with the order of the labels.

    Tried are the likely orders, and the one that fits best where there are images enough: it is found on one half of
    them and measured on the other, so that chance does not look like an order.

    Args:
        predicted: The class the network says, (n,).
        labels: The class the data say, (n,).
        names: What each label stands for.

    Example:
        >>> for slip in label_slips(np.array([0, 1, 2]), np.array([1, 2, 0]), ("cat", "dog", "elk")):
        ...     print(slip.without, slip.error)
        With every label one lower 0.0
        With every label one higher 1.0
    """
    straight = np.arange(len(names))
    as_text = np.array(sorted(straight, key=str))
    orders = {  # the label that each output of the network stands for
        "With every label one lower": np.roll(straight, -1),
        "With every label one higher": np.roll(straight, 1),
        "With the labels sorted as text (0, 1, 10, 11, ...)": as_text,
        "With the labels sorted as numbers, not as text": np.argsort(as_text),
        "With the classes in alphabetical order": np.array(sorted(straight, key=lambda label: names[label].lower())),
    }
    for without, order in orders.items():
        if (order != straight).any():
            yield Slip(without, float(np.mean(order[predicted] != labels)), _ORDER_ADVICE)
    if len(labels) < _IMAGES_A_CLASS * len(names):
        return
    by_class = np.argsort(labels, kind="stable")
    halves = by_class[::2], by_class[1::2]
    wrong = 0
    for fit, test in (halves, halves[::-1]):
        order = _best_order(predicted[fit], labels[fit], len(names))
        wrong += int(np.sum(order[predicted[test]] != labels[test]))
    order = _best_order(predicted, labels, len(names))
    moved = [f"{label} where you say {order[label]}" for label in straight if order[label] != label]
    if moved:
        without = (
            f"With the labels in another order (the network says {', '.join(moved[:3])}{', ...' * (len(moved) > 3)})"
        )
        yield Slip(without, wrong / len(labels), _ORDER_ADVICE)


def _rescale(wanted: MeanStd, inner: MeanStd, channels: int) -> Callable[[Tensor], Tensor]:
    """Make images that ``inner``, applied by the model, turns into those that ``wanted`` would give."""

    def values(numbers: tuple[float, ...]) -> Tensor:
        fitting = numbers if len(numbers) == channels else (sum(numbers) / len(numbers),) * channels
        return torch.tensor(fitting).view(-1, 1, 1)

    mean, std, own_mean, own_std = (values(numbers) for numbers in (*wanted, *inner))
    scale, shift = own_std / std, own_mean - mean * own_std / std
    return lambda images: images * scale.to(images.device) + shift.to(images.device)


def _best_order(predicted: Labels, labels: Labels, classes: int) -> Labels:
    """The label that each output stands for, one to one, such that most images come out right."""
    from scipy.optimize import linear_sum_assignment  # comes with scikit-learn; slow to import

    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (predicted, labels), 1)
    order: Labels = linear_sum_assignment(counts, maximize=True)[1]
    return order

"""Checks a network on clean images and finds common mistakes of normalisation, channel order and labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vcotta.data import ImageSource, Pixels, to_tensor
from vcotta.models.normalised import CIFAR10, CIFAR100, HALF, IMAGENET, MeanStd, NormalisedNetwork
from vcotta.nn.batch_norm import batch_norms

__all__ = ["Mistake", "NetworkCheck", "check_network"]

Labels = NDArray[np.int64]
Change = Callable[[Tensor], Tensor]

_IMAGES_A_CLASS = 4  # with fewer, no unknown order of the labels can be fitted
_RAW: MeanStd = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
_SCALES: dict[str, MeanStd] = {
    "no normalisation applied": _RAW,
    "ImageNet's mean and deviation applied": IMAGENET,
    "CIFAR-10's mean and deviation applied": CIFAR10,
    "CIFAR-100's mean and deviation applied": CIFAR100,
    "(x - 0.5) / 0.5 applied": HALF,
    "pixels from 0 to 255": ((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)),
}
_ORDER_ADVICE = (
    "the labels are in another order than the network was trained with. Put them in its order: class folders are taken "
    "in alphabetical order, so rename them, for example to 00_cat, 01_dog."
)


@dataclass(frozen=True)
class Mistake:
    """A possible mistake.

    Attributes:
        without: Its correction, as the beginning of a sentence: "With (x - 0.5) / 0.5 inside the model".
        error: The error with that correction.
        advice: What is wrong and what to do.
    """

    without: str
    error: float
    advice: str


class _Candidate(NamedTuple):
    """A possible mistake in the input, not measured yet; ``undo`` corrects images in [0, 1]."""

    without: str
    advice: str
    undo: Change


def _input_candidates(model: nn.Module, channels: int) -> Iterator[_Candidate]:
    """Yield possible mistakes in the images that ``model`` sees.

    A `NormalisedNetwork` has a known normalisation, so every other one is tried in its place. For other networks each
    normalisation is tried in addition, and its inverse.
    """
    inner = _RAW
    if isinstance(model, NormalisedNetwork) and model.mean is not None and model.std is not None:
        inner = model.mean, model.std
    for words, scale in _SCALES.items():
        if scale != inner:
            means, stds = (f"({', '.join(f'{value:.4g}' for value in values)})" for values in scale)
            advice = f"its normalisation is another one. Build it with mean={means} and std={stds}."
            yield _Candidate(f"With {words} inside the model", advice, _rescale(scale, inner, channels))
        if scale in (IMAGENET, CIFAR10, HALF) and not isinstance(model, NormalisedNetwork):
            name = {IMAGENET: "that of ImageNet", CIFAR10: "that of CIFAR-10", HALF: "(x - 0.5) / 0.5"}[scale]
            advice = "the images are normalised twice. Remove one of the two."
            yield _Candidate(f"With {name} taken out of the model", advice, _rescale(_RAW, scale, channels))
    if channels == 3:
        advice = "it was trained on BGR images. Swap the channels inside the model."
        yield _Candidate("With the channels in BGR order", advice, lambda images: images.flip(1))


def _label_mistakes(predicted: Labels, labels: Labels, names: tuple[str, ...]) -> Iterator[Mistake]:
    """Yield possible mistakes in the order of the labels.

    Tries the likely orders and, if there are enough images, the order that fits best: it is fitted to one half of the
    images and measured on the other, so that a chance fit does not count.
    """
    straight = np.arange(len(names))
    as_text = np.array(sorted(straight, key=str))
    orders = {  # the label of each output of the network
        "With every label one lower": np.roll(straight, -1),
        "With every label one higher": np.roll(straight, 1),
        "With the labels sorted as text (0, 1, 10, 11, ...)": as_text,
        "With the labels sorted as numbers, not as text": np.argsort(as_text),
        "With the classes in alphabetical order": np.array(sorted(straight, key=lambda label: names[label].lower())),
    }
    for without, order in orders.items():
        if (order != straight).any():
            yield Mistake(without, float(np.mean(order[predicted] != labels)), _ORDER_ADVICE)
    if len(labels) < _IMAGES_A_CLASS * len(names):
        return
    by_class = np.argsort(labels, kind="stable")
    halves = by_class[::2], by_class[1::2]
    wrong = 0
    for fit, test in (halves, halves[::-1]):
        order = _best_order(predicted[fit], labels[fit], len(names))
        wrong += int(np.sum(order[predicted[test]] != labels[test]))
    order = _best_order(predicted, labels, len(names))
    moved = [f"{label} for your {order[label]}" for label in straight if order[label] != label]
    if moved:
        without = (
            f"With the labels in another order (the network says {', '.join(moved[:3])}{', ...' * (len(moved) > 3)})"
        )
        yield Mistake(without, wrong / len(labels), _ORDER_ADVICE)


def _rescale(wanted: MeanStd, inner: MeanStd, channels: int) -> Change:
    """Return a change of images after which the model's normalisation ``inner`` has the effect of ``wanted``."""

    def values(numbers: tuple[float, ...]) -> Tensor:
        fitting = numbers if len(numbers) == channels else (sum(numbers) / len(numbers),) * channels
        return torch.tensor(fitting).view(-1, 1, 1)

    mean, std, own_mean, own_std = (values(numbers) for numbers in (*wanted, *inner))
    scale, shift = own_std / std, own_mean - mean * own_std / std
    return lambda images: images * scale.to(images.device) + shift.to(images.device)


def _best_order(predicted: Labels, labels: Labels, classes: int) -> Labels:
    """Return the one-to-one assignment of outputs to labels with which most images are right."""
    from scipy.optimize import linear_sum_assignment  # slow to import

    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (predicted, labels), 1)
    order: Labels = linear_sum_assignment(counts, maximize=True)[1]
    return order


_TRIAL_IMAGES = 250  # enough to compare mistakes; the best explanation is then measured on all images
_GOOD = 0.05  # an error that needs no explanation if none is expected
_BATCH_STATISTICS = "With BatchNorm using the statistics of each batch"
_STATISTICS_ADVICE = "its running statistics do not belong to its weights. Load both from one file."


@dataclass(frozen=True)
class NetworkCheck:
    """Result of `check_network`; ``str()`` explains it.

    Attributes:
        images: Number of images.
        error: Share of wrong predictions.
        expected: The expected error, None if unknown.
        ok: Whether the error is as expected.
        explanation: The mistake that explains the error, if one does.
        mistakes: Every mistake that was tried, the best explanation first.
    """

    images: int
    error: float
    expected: float | None
    ok: bool
    explanation: Mistake | None = None
    mistakes: tuple[Mistake, ...] = ()

    def __str__(self) -> str:
        got = f"{_percent(self.error)} on {self.images} clean images"
        if self.ok:
            target = "" if self.expected is None else f"; about {_percent(self.expected)} was expected"
            return f"The error is {got}{target}."
        target = "well below chance" if self.expected is None else f"of about {_percent(self.expected)}"
        if self.explanation is None:
            return (
                f"Expected an error {target}, but got {got}. None of the common mistakes explains it: the weights may "
                "be of another network or data set, or untrained."
            )
        start = f"The error is {got}" if self.expected is None else f"Expected an error {target}, but got {got}"
        mistake = self.explanation
        return f"{start}. {mistake.without} it would be {_percent(mistake.error)}: {mistake.advice}"


@torch.inference_mode()
def check_network(
    model: nn.Module,
    data: ImageSource,
    *,
    limit: int | None = 1000,
    expected: float | None = None,
    batch_size: int = 200,
    device: str | torch.device | None = None,
) -> NetworkCheck:
    """Measure the error on clean test images and, if it is too high, look for a common mistake that explains it.

    Tries other normalisations in place of the network's own, in addition to it, and their inverses; pixels from 0 to
    255; BGR order; BatchNorm statistics that do not belong to the weights; and labels in another order. It finds only
    one mistake at a time.

    Args:
        model: Network from images in [0, 1] to logits; only its device may change.
        data: Clean labelled images, such as `vcotta.data.ImageData`.
        limit: Number of images, spread evenly over the data; None for all.
        expected: The expected error as a fraction; see `vcotta.models.expected_error`. Without it the network passes
            if its error is well below chance and no mistake explains it.
        batch_size: Images in a batch.
        device: Where to move the model and compute; None for where it is.

    Raises:
        ValueError: The network's outputs are not as many as the data's classes, or not finite.

    Example:
        >>> from vcotta.data import ImageData
        >>> data = ImageData(np.zeros((8, 4, 4, 3), np.uint8), np.arange(8) % 2, ("cat", "dog"), "tiny")
        >>> print(check_network(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), data, expected=0.5))
        The error is 50.00 % on 8 clean images; about 50.00 % was expected.
    """
    _check_arguments(data, limit, expected, batch_size)
    count = len(data) if limit is None else min(limit, len(data))
    chosen = np.linspace(0, len(data) - 1, count).round().astype(np.int64)
    labels, classes = data.labels[chosen], len(data.class_names)
    if device is not None:
        model.to(device)
    with _eval_mode(model):
        predicted = _predict(model, data.images, chosen, batch_size, outputs=classes)
        error = float(np.mean(predicted != labels))
        if error <= (_GOOD if expected is None else _bound(expected, count)):
            return NetworkCheck(count, error, expected, ok=True)
        mistakes = list(_label_mistakes(predicted, labels, data.class_names))
        mistakes += _measure(model, data.images, chosen, labels, batch_size)
    # Batch statistics also repair a wrong normalisation, so they must beat every other explanation.
    mistakes.sort(key=lambda mistake: mistake.error + 0.02 * (mistake.without == _BATCH_STATISTICS))
    explanation = mistakes[0] if _explains(mistakes[0].error, error, expected, count) else None
    ok = explanation is None and expected is None and error <= 0.75 * (1 - 1 / classes)
    return NetworkCheck(count, error, expected, ok, explanation, tuple(mistakes))


def _measure(model: nn.Module, images: Pixels, chosen: Labels, labels: Labels, batch_size: int) -> list[Mistake]:
    """Measure the mistakes that need predictions: all on a few images, the best explanation on all images."""
    step = -(-len(chosen) // _TRIAL_IMAGES)
    few = _read(images, chosen[::step])

    def error_with(undo: Change | None, images: Pixels, chosen: Labels, labels: Labels) -> float:
        try:
            return float(np.mean(_predict(model, images, chosen, batch_size, undo) != labels))
        except (RuntimeError, ValueError, AssertionError):  # a network that checks its input and refuses this one
            return 1.0

    candidates = list(_input_candidates(model, images.shape[3]))
    errors = [error_with(mistake.undo, few, np.arange(len(few)), labels[::step]) for mistake in candidates]
    best = int(np.argmin(errors))
    errors[best] = error_with(candidates[best].undo, images, chosen, labels)
    mistakes = [Mistake(one.without, error, one.advice) for one, error in zip(candidates, errors, strict=True)]
    with _batch_statistics(model) as some:
        if some:
            mistakes.append(Mistake(_BATCH_STATISTICS, error_with(None, images, chosen, labels), _STATISTICS_ADVICE))
    return mistakes


def _predict(
    model: nn.Module,
    images: Pixels,
    chosen: Labels,
    batch_size: int,
    undo: Change | None = None,
    outputs: int | None = None,
) -> Labels:
    """Predict classes; if ``outputs`` is given, check the shape of the logits and that they are finite."""
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    found = []
    for start in range(0, len(chosen), batch_size):
        batch = to_tensor(_read(images, chosen[start : start + batch_size])).to(device)
        out = model(batch if undo is None else undo(batch))
        if outputs is not None:
            _check_output(out, outputs)
        found.append(out.argmax(1).cpu())
    return torch.cat(found).numpy()


def _read(images: Pixels, chosen: Labels) -> NDArray[np.uint8]:
    """Read images by ascending indices from a source that can only be sliced."""
    first, last = int(chosen[0]), int(chosen[-1])
    if last - first + 1 == len(chosen):
        return np.asarray(images[first : last + 1])
    return np.concatenate([images[index : index + 1] for index in chosen.tolist()])


def _bound(expected: float, count: int) -> float:
    """Return the largest error that passes: two points and three standard errors above ``expected``."""
    return expected + 0.02 + 3 * math.sqrt(expected * (1 - expected) / count)


def _explains(without: float, error: float, expected: float | None, count: int) -> bool:
    """Return whether the error without a mistake is clearly lower, and low enough."""
    clear = error - without > max(0.02, 3 * math.sqrt(error * (1 - error) / count))
    enough = 0.7 * error if expected is None else max(_bound(expected, count), (error + expected) / 2)
    return clear and without <= enough


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _check_arguments(data: ImageSource, limit: int | None, expected: float | None, batch_size: int) -> None:
    if not len(data):
        raise ValueError(f"Expected images in {data.name}, but it has none.")
    for name, value in {"limit": limit, "batch_size": batch_size}.items():
        if value is not None and value < 1:
            raise ValueError(f"Expected `{name}` to be at least 1, but got {value}.")
    if expected is not None and not 0 <= expected <= 1:
        raise ValueError(f"Expected `expected` to be 0 to 1, but got {expected}. Give a fraction, not per cent.")


def _check_output(out: object, classes: int) -> None:
    if not isinstance(out, Tensor) or out.ndim != 2:
        found = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(f"Expected the network to return logits of shape (n, {classes}), but got {found}.")
    if out.shape[1] != classes:
        hint = "It may have a background class." if out.shape[1] == classes + 1 else "It is for another data set."
        raise ValueError(f"Expected {classes} outputs, one for each class, but the network has {out.shape[1]}. {hint}")
    if not bool(out.isfinite().all()):
        raise ValueError("Expected finite logits, but the network returns NaN or infinity. Check its weights.")


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def _batch_statistics(model: nn.Module) -> Iterator[bool]:
    """Let BatchNorm use batch statistics without updating its own; yield whether there is such a layer."""
    norms = [norm for norm in batch_norms(model) if norm.track_running_stats]
    for norm in norms:
        norm.training, norm.track_running_stats = True, False
    try:
        yield bool(norms)
    finally:
        for norm in norms:
            norm.training, norm.track_running_stats = False, True

"""A quick look at clean images: does the network see them, and name them, as it was trained to?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vcotta.batch_norm import batch_norms
from vcotta.data import ImageSource, Pixels, to_tensor
from vcotta.slips import Labels, Slip, input_slips, label_slips

__all__ = ["Report", "check_network"]

Change = Callable[[Tensor], Tensor]

_TRIAL_IMAGES = 250  # enough to tell the mistakes apart; the best one is then measured on all images
_GOOD = 0.05  # an error nobody would look into, where none is expected
_BATCH_STATISTICS = "With BatchNorm using the statistics of each batch"
_STATISTICS_ADVICE = "its running statistics do not belong to its weights. Load both from one file."


@dataclass(frozen=True)
class Report:
    """What a check found; as text, it is a sentence or two for the user.

    Attributes:
        images: Number of images looked at.
        error: Share of them that the network gets wrong.
        expected: The error it should have, None where nobody knows.
        ok: Whether all seems well.
        explanation: The usual mistake that explains the error, if one does.
        slips: Every mistake that was tried, the best first; empty where there was no need.
    """

    images: int
    error: float
    expected: float | None
    ok: bool
    explanation: Slip | None = None
    slips: tuple[Slip, ...] = ()

    def __str__(self) -> str:
        got = f"{_percent(self.error)} on {self.images} clean images"
        if self.ok:
            hoped = "" if self.expected is None else f"; about {_percent(self.expected)} was expected"
            return f"The error is {got}{hoped}."
        hoped = "well below chance" if self.expected is None else f"of about {_percent(self.expected)}"
        if self.explanation is None:
            return (
                f"Expected an error {hoped}, but got {got}. None of the usual mistakes explains it: the weights may be "
                "of another network or data set, or the network is not trained."
            )
        start = f"The error is {got}" if self.expected is None else f"Expected an error {hoped}, but got {got}"
        slip = self.explanation
        return f"{start}. {slip.without} it would be {_percent(slip.error)}: {slip.advice}"


@torch.inference_mode()
def check_network(
    model: nn.Module,
    data: ImageSource,
    *,
    limit: int | None = 1000,
    expected: float | None = None,
    batch_size: int = 200,
    device: str | torch.device | None = None,
) -> Report:
    """Measure the error on clean test images and, where it is too high, look for the usual mistake behind it.

    Tried are: the usual normalisations in place of the network's own, on top of it, and taken out; pixels from 0 to
    255; BGR order; running statistics of BatchNorm that do not belong to the weights; and labels in another order. Only
    one mistake at a time can be found.

    Args:
        model: Network from images in [0, 1] to logits, one a class. It is left as it was found.
        data: Clean labelled images, such as `vcotta.data.ImageData`.
        limit: Look at this many, spread evenly over the data; None for all.
        expected: The error it should have, as a fraction; see `vcotta.models.expected_error`. Without it the network
            passes if it is well below chance and no mistake explains what is left.
        batch_size: Images in a batch.
        device: Where to compute, and where the model is moved to; None for where it is.

    Returns:
        The error, whether it is as expected, and what would explain it if not.

    Raises:
        ValueError: If the network has another number of outputs than the data has classes, or gives NaN.

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
            return Report(count, error, expected, ok=True)
        slips = list(label_slips(predicted, labels, data.class_names))
        slips += _measure(model, data.images, chosen, labels, batch_size)
    # Statistics of the batch heal a wrong normalisation too, so they count only where nothing else does as well.
    slips.sort(key=lambda slip: slip.error + 0.02 * (slip.without == _BATCH_STATISTICS))
    explanation = slips[0] if _explains(slips[0].error, error, expected, count) else None
    ok = explanation is None and expected is None and error <= 0.75 * (1 - 1 / classes)
    return Report(count, error, expected, ok, explanation, tuple(slips))


def _measure(model: nn.Module, images: Pixels, chosen: Labels, labels: Labels, batch_size: int) -> list[Slip]:
    """Measure every mistake that takes a pass over images: all of them on a few, the best on all."""
    step = -(-len(chosen) // _TRIAL_IMAGES)
    few = _read(images, chosen[::step])

    def error_with(undo: Change | None, images: Pixels, chosen: Labels, labels: Labels) -> float:
        try:
            return float(np.mean(_predict(model, images, chosen, batch_size, undo) != labels))
        except (RuntimeError, ValueError, AssertionError):  # a network that looks at its input and refuses this one
            return 1.0

    candidates = list(input_slips(model, images.shape[3]))
    errors = [error_with(slip.undo, few, np.arange(len(few)), labels[::step]) for slip in candidates]
    best = int(np.argmin(errors))
    errors[best] = error_with(candidates[best].undo, images, chosen, labels)
    slips = [Slip(slip.without, error, slip.advice) for slip, error in zip(candidates, errors, strict=True)]
    with _batch_statistics(model) as some:
        if some:
            slips.append(Slip(_BATCH_STATISTICS, error_with(None, images, chosen, labels), _STATISTICS_ADVICE))
    return slips


def _predict(
    model: nn.Module,
    images: Pixels,
    chosen: Labels,
    batch_size: int,
    undo: Change | None = None,
    outputs: int | None = None,
) -> Labels:
    """The classes a network names; where a number of ``outputs`` is given, they are checked first."""
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
    """Read images by their numbers, which rise, from what can only be sliced."""
    first, last = int(chosen[0]), int(chosen[-1])
    if last - first + 1 == len(chosen):
        return np.asarray(images[first : last + 1])
    return np.concatenate([images[index : index + 1] for index in chosen.tolist()])


def _bound(expected: float, count: int) -> float:
    """The largest error that is still as expected: two points and three standard errors above."""
    return expected + 0.02 + 3 * math.sqrt(expected * (1 - expected) / count)


def _explains(without: float, error: float, expected: float | None, count: int) -> bool:
    """Whether the error without a mistake is clearly lower, and low enough."""
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
        raise ValueError(f"Expected `expected` to be 0 to 1, but got {expected}. Divide per cent by 100.")


def _check_output(out: object, classes: int) -> None:
    if not isinstance(out, Tensor) or out.ndim != 2:
        found = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(f"Expected the network to give logits of shape (n, {classes}), but got {found}.")
    if out.shape[1] != classes:
        hint = "It may count a background class." if out.shape[1] == classes + 1 else "It is for another data set."
        raise ValueError(f"Expected {classes} outputs, one a class, but the network has {out.shape[1]}. {hint}")
    if not bool(out.isfinite().all()):
        raise ValueError("Expected finite logits, but the network gives NaN or infinity. Its weights are damaged.")


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
    """Let BatchNorm use the batch's statistics without learning from it; yields whether there is any such layer."""
    norms = [norm for norm in batch_norms(model) if norm.track_running_stats]
    for norm in norms:
        norm.training, norm.track_running_stats = True, False
    try:
        yield bool(norms)
    finally:
        for norm in norms:
            norm.training, norm.track_running_stats = False, True

"""Source images that a warm-up does not learn from, and how far it may go by their judgement."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta._util.warn import warn
from vcotta.bayes.gaussian import inverse_softplus
from vcotta.bayes.layers import sampling, variational_parameters
from vcotta.nn.batch_norm import reestimate_statistics, use_batch_statistics
from vcotta.nn.mirroring import error_on, warn_of_mirroring
from vcotta.nn.rng import OwnRng
from vcotta.nn.runtime import Runtime
from vcotta.nn.views import random_view

__all__ = ["AGAINST_MIRRORING", "HeldBack", "Verdict"]

AGAINST_MIRRORING = "`flip=False` to `build_adapter`, or to `WarmUpConfig` and the method"

_MOST = 500  # images: enough to see a loss of two points
_FEWEST = 30
_VIEWS = 3
_BATCH = 100
_DRAWS = 8
_NARROWINGS = 12  # by the root of two, so to a 64th
_SMALL = 0.002  # a difference of NLL that does not matter
_WAYS = (1.0, 0.5, 0.25, 0.125)
_BY_HEART = 0.03  # up to this error: a network often knows its source images by heart, and a change costs it some


@dataclass(frozen=True)
class Verdict:
    """What the held-back images say of a warm-up.

    Attributes:
        way: How far the result went from the plain network's weights, 0, to the warm-up's, 1.
        width: Factor on the standard deviations that the warm-up ended with.
        images: Number of held-back images.
        before: Error, negative log-likelihood (NLL) and NLL on random views, of the plain network.
        after: The same of the result.
        draws: NLL of eight draws from the result.
    """

    way: float
    width: float
    images: int
    before: tuple[float, float, float]
    after: tuple[float, float, float]
    draws: float


class HeldBack:
    """Chooses source images by their content, so that an image is held back in every epoch, in any order.

    A loader that changes its images itself, as training augmentation does, shows a held-back image in forms that are
    not held back: then the judgement is too kind.

    Args:
        share: Share of the images to hold back.
        size: Number of source images, to hold back 500 at most; None if unknown.
        flip: Whether views may mirror the images.
        seed: Seed of the views.

    Example:
        >>> images = torch.rand(1000, 3, 4, 4)
        >>> held = HeldBack(0.1)
        >>> learned = held.learned(images)
        >>> bool((learned == held.learned(images)).all()), 0.8 < learned.mean().item() < 1
        (True, True)
    """

    def __init__(self, share: float, size: int | None = None, *, flip: bool = True, seed: int = 0) -> None:
        self.share = min(share, _MOST / size) if size else share
        self.flip, self.seed = flip, seed
        self._images: list[Tensor] = []
        self._labels: list[Tensor] = []

    def learned(self, images: Tensor) -> Tensor:
        """Return 1 for images to learn from and 0 for those held back; no value leaves the device."""
        values = images.detach().float().flatten(1)
        bits = values[:, :: max(1, values.shape[1] // 4096)].contiguous().view(torch.int32).long()
        factors = torch.arange(1, bits.shape[1] + 1, device=bits.device) * 2654435761 + 1
        mixed = (bits * factors).sum(1)
        drawn = ((mixed ^ (mixed >> 29)) * 0x5851F42D4C957F2D >> 33) % 1000  # integers: the same on every device
        return (drawn >= round(1000 * self.share)).to(images.dtype)

    def collect(self, images: Tensor, labels: Tensor, learned: Tensor) -> None:
        """Keep the images held back, up to 500."""
        if self.share and len(self) < _MOST:
            held = learned == 0
            self._images.append(images[held])
            self._labels.append(labels[held])

    def __len__(self) -> int:
        return sum(map(len, self._images))

    def state_dict(self) -> dict[str, Tensor]:
        """The images and labels kept so far: another epoch would show them in another order."""
        return {"images": torch.cat(self._images), "labels": torch.cat(self._labels)} if self._images else {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state_dict`."""
        self._images = [state["images"]] if state else []
        self._labels = [state["labels"]] if state else []

    @torch.no_grad()
    def go_back(self, net: nn.Module, plain: nn.Module, kept: Sequence[Tensor], runtime: Runtime) -> Verdict | None:
        """Move a warmed network back towards the plain one, as far as the held-back images ask for.

        Judged are the error on the images as they are, with the source's statistics, which may rise to three per cent
        but not from there, and the sum of two negative log-likelihoods (NLL), on these and on random views with each
        batch's statistics, which may not rise. Within a standard error, of the NLL two, a rise is chance. The error is
        not held more tightly, as the plain network was usually trained on these very images: a ResNet-20 that errs on
        0.2 % of them errs on 8.8 % of new ones. Of 1, 1/2, 1/4, 1/8 and 0 of the way the longest that passes is gone.
        The widths of the posterior stay, but for one factor of at most 1, the largest with which eight draws predict
        these images as they are with an NLL within a tenth of that of the means, or 0.002. BatchNorm's statistics are
        estimated from ``kept``.

        Returns:
            The verdict; None if there are fewer than thirty images to judge by.
        """
        if len(self) < _FEWEST:
            return None
        end = {name: value.clone() for name, value in net.state_dict().items()}
        start = plain.state_dict()
        fixed = {f"{name}_rho" for name, _, _ in variational_parameters(net)}
        before = self._losses(plain, runtime)
        self._look_at_chance(before[:, 0].mean().item())
        self._look_at_mirrored(plain, before[:, 0].mean().item(), runtime)
        allowed = max(0.0, _BY_HEART - before[:, 0].mean().item())
        for way in (*_WAYS, 0.0):
            if way < 1:
                for name, value in net.state_dict().items():
                    if value.is_floating_point() and name not in fixed:
                        value.copy_(torch.lerp(start[name], end[name], way))
            if way and kept:
                reestimate_statistics(net, kept)
            after = self._losses(net, runtime)
            change = after - before
            if not way or (_passes(change[:, 0], allowed, 1) and _passes(change[:, 1] + change[:, 2])):
                break
        width, draws = self._narrow(net, runtime, after[:, 1].mean().item())
        found = Verdict(way, width, len(change), _means(before), _means(after), draws)
        if way < 1:
            warn(_explain(found))
        return found

    def _look_at_chance(self, error: float) -> None:
        """Warn if the plain network is hardly better than chance on its own source images."""
        classes = len(torch.cat(self._labels).unique())
        if classes > 1 and 1 - error < min(1.5 / classes, 1 / classes + 0.1):
            warn(
                f"The network mistakes {error:.0%} of the source images, as chance would. Is it trained, are the "
                "labels in the order of its outputs, and is its normalisation inside the model?"
            )

    def _look_at_mirrored(self, plain: nn.Module, error: float, runtime: Runtime) -> None:
        """Warn if views are mirrored, but mirrored images seem to be of other classes, as digits are."""
        if self.flip:
            mirrored = error_on(plain, self._batches(runtime), runtime, mirrored=True)
            warn_of_mirroring(error, mirrored, AGAINST_MIRRORING)

    def _narrow(self, net: nn.Module, runtime: Runtime, of_means: float) -> tuple[float, float]:
        """Narrow the posterior until draws are about as good as the means; returns the factor and the draws' NLL."""
        rhos = [rho for _, _, rho in variational_parameters(net)]
        sigmas = [F.softplus(rho) for rho in rhos]
        for step in range(_NARROWINGS + 1):
            width = 2 ** (-step / 2)
            if step:
                for rho, sigma in zip(rhos, sigmas, strict=True):
                    rho.copy_(inverse_softplus(width * sigma))
            draws = self._loss_of_draws(net, runtime)
            if draws <= max(1.1 * of_means, of_means + _SMALL):
                break
        return width, draws

    def _loss_of_draws(self, net: nn.Module, runtime: Runtime) -> float:
        """Negative log-likelihood of the mean prediction of eight draws."""
        total = 0.0
        with OwnRng(self.seed, runtime.device).scope(), sampling(net):
            for images, labels in self._batches(runtime):
                drawn = torch.stack([runtime.forward(net, images).log_softmax(-1) for _ in range(_DRAWS)])
                mean = drawn.logsumexp(0) - math.log(_DRAWS)
                total += F.nll_loss(mean, labels, reduction="sum").item()
        return total / min(len(self), _MOST)

    def _losses(self, net: nn.Module, runtime: Runtime) -> Tensor:
        """For each image: whether it is mistaken, its loss, and its loss in random views; float64 on the CPU."""
        batchwise = use_own_statistics(net)
        found = []
        with OwnRng(self.seed, runtime.device).scope():
            for images, labels in self._batches(runtime):
                logits = runtime.forward(net, images)
                seen = [
                    F.cross_entropy(
                        runtime.forward(batchwise, random_view(images, flip=self.flip, per_image=True)),
                        labels,
                        reduction="none",
                    )
                    for _ in range(_VIEWS)
                ]
                wrong = (logits.argmax(-1) != labels).to(logits.dtype)
                clean = F.cross_entropy(logits, labels, reduction="none")
                found.append(torch.stack([wrong, clean, torch.stack(seen).mean(0)], 1))
        return torch.cat(found).double().cpu()

    def _batches(self, runtime: Runtime) -> Iterator[tuple[Tensor, Tensor]]:
        """All images in batches of about a hundred, none of a single one."""
        images, labels = runtime.place_images(torch.cat(self._images)[:_MOST]), torch.cat(self._labels)[:_MOST]
        parts = max(1, round(len(images) / _BATCH))
        yield from zip(images.chunk(parts), labels.to(images.device).chunk(parts), strict=True)


def use_own_statistics(net: nn.Module) -> nn.Module:
    """Return a copy whose BatchNorm uses each batch's statistics."""
    copied = copy.deepcopy(net).eval()
    use_batch_statistics(copied, True)
    return copied


def _passes(rise: Tensor, allowed: float = 0.0, errors: float = 2) -> bool:
    """Whether the mean rise is allowed, or within so many standard errors of what is."""
    return rise.mean().item() <= allowed + errors * rise.std().item() / math.sqrt(len(rise)) + 1e-6


def _means(losses: Tensor) -> tuple[float, float, float]:
    wrong, clean, views = losses.mean(0).tolist()
    return wrong, clean, views


def _explain(verdict: Verdict) -> str:
    """What happened, in plain words."""
    names = "error", "NLL", "NLL on views"
    numbers = ", ".join(
        f"{name} {was:.3f} -> {now:.3f}" for name, was, now in zip(names, verdict.before, verdict.after, strict=True)
    )
    part = f"only {verdict.way:g} of its change to the weights is kept"
    what = part if verdict.way else "the network keeps its weights and only gets standard deviations"
    return (
        f"The warm-up made the network worse on {verdict.images} held-back source images, so {what} ({numbers}). "
        "More source images, a lower `lr` or fewer `epochs` may do better."
    )

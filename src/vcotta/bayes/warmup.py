"""The variational warm-up (Algorithm 1 of the paper), and files of warmed networks."""

from __future__ import annotations

import copy
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta._util.progress import Progress, display, epoch_lines
from vcotta._util.tensorfile import read_state, state_kind, weights_sha256, write_state
from vcotta._util.validation import Count, NonNegative, Positive, Settings, at_least, between, check_kind
from vcotta.bayes.convert import to_variational
from vcotta.bayes.gaussian import inverse_softplus, kl_divergence
from vcotta.bayes.held_back import AGAINST_MIRRORING, HeldBack
from vcotta.bayes.layers import is_variational, sampling, variational_parameters
from vcotta.nn.augment import augmix
from vcotta.nn.batch_norm import batch_norms, reestimate_statistics
from vcotta.nn.epoch_state import EpochState, Stateful
from vcotta.nn.inputs import check_accepted, check_images, check_labels, check_network, labelled_batches, other_shape
from vcotta.nn.mirroring import FirstBatches, look_at_mirrored
from vcotta.nn.optim import step_scale
from vcotta.nn.rng import OwnRng
from vcotta.nn.runtime import Runtime
from vcotta.nn.views import random_view

__all__ = ["WarmUpConfig", "is_warmed_file", "load_warmed", "save_warmed", "warm_up"]

Source = Iterable[tuple[Tensor, Tensor]]

_LEAST_SIGMA = 0.03  # of where it began: a few weights of almost no width would make up nearly all of a divergence
_UNKNOWN_LENGTH = 100  # batches of an epoch, where the loader does not tell
_CHECKPOINT_KIND = "vcotta-warming-1"
_WARMED_KIND = "vcotta-warmed-1"


@dataclass(frozen=True)
class WarmUpConfig(Settings):
    """Settings of the warm-up.

    Attributes:
        epochs: Passes over the source data (paper: 5).
        lr: Start of Adam's step size, which falls to 0 along a cosine; with ``relative`` in units of each tensor's root
            mean square (ours; the paper gives none).
        relative: Whether ``lr`` is relative (ours). One absolute step does not suit a WRN-28-10 with weights of 0.004
            and a small network with weights of 0.1.
        sigma_ratio: r in sigma0 = r * rms(weight), the width of the prior and the start of q (ours).
        sigma_travel: How far log sigma can move during the whole warm-up if every step goes one way: the steps of rho
            add up to this, however many there are, so a few epochs learn a width for each weight (ours). Sigma never
            gets below 3 % of where it began. None gives rho the steps of the means, an absolute ``lr``: sigma then
            stays where it began.
        views: Train on random views, one draw per image, as the adaptation will see them (ours).
        flip: Whether these views may mirror the image.
        augmix: Apply AugMix to the images, after the views (ours). It takes 1.5 points from VCoTTA's error on a
            WRN-28-10 (two epochs) and 2.2 on an ImageNet ResNet-50; on digits it helps some networks and harms others.
        kl_weight: kappa: the divergence is divided by the number D of variational weights and multiplied by kappa, so
            that moving every weight by one sigma costs kappa / 2 (ours). None is the paper's KL / N_source, that is
            kappa = D / N_source: 5 for a ResNet-20 on CIFAR-10, but 730 for a WRN-28-10, which then hardly moves.
        source_size: N in KL / N, for ``kl_weight=None``; by default counted from the loader.
        held_back: Share of the source images to judge the result by instead of learning from them, at most 500 images
            (ours), see `warm_up`; 0 for none.
        statistics_images: Source images from which BatchNorm's statistics are estimated again at the end; they are kept
            in memory during the last epoch.
        seed: Seed of views and noise.
        unsupported: What to do about layers that cannot be variational, as in `to_variational`: ``"error"``, or
            ``"keep"`` to leave them, attention of your own for example, as point parameters.
    """

    epochs: Count = 5
    lr: NonNegative = 0.01
    relative: bool = True
    sigma_ratio: Positive = 0.3
    sigma_travel: NonNegative | None = 16.0
    views: bool = True
    flip: bool = True
    augmix: bool = True
    kl_weight: NonNegative | None = 0.01
    source_size: Count | None = None
    held_back: Annotated[float, between(0, 0.5)] = 0.1
    statistics_images: Annotated[int, at_least(2)] = 2000
    seed: int = 0
    unsupported: Literal["error", "keep"] = "error"


@torch.inference_mode(False)
def warm_up(
    model: nn.Module,
    loader: Source,
    config: WarmUpConfig | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
    runtime: Runtime | None = None,
    progress: Progress | bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    unsupported: Literal["error", "keep"] | None = None,
) -> nn.Module:
    r"""Turn a pretrained classifier into a variational network (paper, section "Variational Warm-up", Algorithm 1).

    With the prior :math:`p = N(\mu_{pretrained}, \sigma_0^2)` and q starting at p, Adam minimises

    .. math:: E_q[\mathrm{CE}(y, f(x))] + \kappa\,\mathrm{KL}(q \| p) / D

    with local reparameterisation; the paper has KL / N_source, which is ``kl_weight=None``. Point parameters
    (normalisation layers) are trained along, without a KL term. At the end the running statistics of BatchNorm are
    estimated again in mean mode, as those gathered under noise are wrong. Source images that were held back then judge
    the result: where it got worse at them, a part of its way or all of it is taken back, with a warning; and where
    draws predict worse than the means, all widths shrink by one factor. The authors published no warm-up code;
    `WarmUpConfig` says how we settle what the paper leaves open.

    Args:
        model: A plain classifier that takes images in [0, 1]; it is not changed.
        loader: Source data: yields (images, labels), once per epoch.
        config: Settings.
        path: Where to save the result (safetensors with metadata), if anywhere.
        runtime: Device and precision; None for the device that the model is on.
        progress: True for a progress bar, or a line for each epoch where there is no terminal; False for neither; or a
            callable that takes (step, steps, loss); steps is 0 when the loader has no length. A resumed warm-up first
            reports its step with a loss of NaN.
        checkpoint: File written between epochs, at most every half a minute; if it exists, the warm-up resumes from it.
            Delete it when the result is saved. Ctrl-C then takes effect at the end of the epoch, or after ten seconds
            if that is later and the finished epochs are saved; a second Ctrl-C at once. A resumed warm-up equals an
            uninterrupted one if the loader's order is fixed, is drawn from torch's global generator (a DataLoader) or
            is saved by ``state_dict`` (`vcotta.data.batches`).
        unsupported: In place of ``config.unsupported``.

    Returns:
        The variational network in eval and mean mode: the source prior of the adaptation.

    Raises:
        FloatingPointError: If the loss stops being finite; the text says what to try.
        ValueError: If the checkpoint is damaged or belongs to another network or other settings.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
        >>> data = [(torch.rand(8, 3, 4, 4), torch.randint(2, (8,)))]
        >>> net = warm_up(model, data, WarmUpConfig(epochs=1), progress=False)
        >>> type(net[1]).__name__
        'VariationalLinear'
    """
    check_network(model)
    check_kind("config", config, WarmUpConfig, "Try WarmUpConfig(epochs=2).")
    config, runtime = config or WarmUpConfig(), (runtime or Runtime.on_device_of(model)).fit_for(model)
    if unsupported is not None:
        config = replace(config, unsupported=unsupported)
    net = runtime.place(to_variational(model, config.sigma_ratio, unsupported=config.unsupported))
    prior = copy.deepcopy(net).requires_grad_(False).eval()
    net.requires_grad_(True)
    kl_scale = _kl_scale(config, net, loader)
    if config.epochs > 1 and isinstance(loader, Iterator):
        raise ValueError(
            f"Expected a loader that can be iterated {config.epochs} times, but a generator is empty after one pass. "
            "Give a list or a DataLoader."
        )
    steps, normalised = config.epochs * _length(loader), any(batch_norms(net))
    optimizer = _optimizer(config, net, steps)
    rhos = [rho for _, _, rho in variational_parameters(net)]
    least = [inverse_softplus(_LEAST_SIGMA * F.softplus(rho.detach().flatten()[:1])).item() for rho in rhos]
    held = HeldBack(config.held_back, _size(loader), flip=config.flip, seed=config.seed)
    rng = OwnRng(config.seed, runtime.device)
    parts: dict[str, Stateful] = {"model": net, "optimizer": optimizer, "rng": rng, "held_back": held}
    facts = {}
    if checkpoint is not None:
        parts |= {"loader": loader} if isinstance(loader, Stateful) else {}
        facts = {"config": asdict(config), "weights_sha256": weights_sha256(prior), "batches": _length(loader)}
    state = EpochState(checkpoint, _CHECKPOINT_KIND, parts, facts)
    done = state.resume()
    step = max((int(moments["step"]) for moments in optimizer.state.values()), default=0)
    kept: list[Tensor] = []
    first: list[tuple[Tensor, Tensor]] = []
    net.train()
    lines = epoch_lines("Warm-up") if progress is True and not sys.stderr.isatty() else None
    with _progress(progress) as report, torch.enable_grad(), state.interruptible(config.epochs) as after_epoch:
        if done:
            report(step, steps, math.nan)
        for epoch in range(done, config.epochs):
            last = epoch == config.epochs - 1
            pending: Tensor | None = None  # a loss is read during the next step, so that a GPU does not wait
            source = FirstBatches(_placed(loader, runtime, prior if epoch == done else None, single=not normalised))
            batches = iter(source)
            while True:
                with rng.scope():
                    batch = next(batches, None)
                    if batch is None:
                        break
                    images, labels = batch
                    if last and sum(map(len, kept)) < config.statistics_images:
                        kept.append(images)
                    share = step / steps if steps else epoch / config.epochs
                    for group in optimizer.param_groups:
                        group["lr"] = group["initial_lr"] * (1 + math.cos(math.pi * share)) / 2
                    learned = held.learned(images) if config.held_back else None
                    if learned is not None and epoch == 0:
                        held.collect(images, labels, learned)
                    seen = random_view(images, flip=config.flip, per_image=True) if config.views else images
                    seen = augmix(seen) if config.augmix else seen
                    with sampling(net):
                        logits = runtime.forward(net, seen)
                    kl = kl_divergence(net, prior, compiled=bool(runtime.compile))
                    loss = _fit(logits, labels.to(runtime.device), learned) + kl_scale * kl
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    optimizer.step()
                    with torch.no_grad():
                        torch._foreach_clamp_min_(rhos, least)
                if pending is not None:
                    report(step, steps, _finite(pending, step))
                pending = loss.detach()
                step += 1
                state.after_batch(epoch, config.epochs)
            if pending is None:
                raise ValueError(
                    f"Expected the loader to yield batches in every epoch, but it yielded none in epoch {epoch + 1}."
                    + (" Batches of one image are left out, as BatchNorm needs more." if normalised else "")
                )
            report(step, steps, _finite(pending, step))
            first = first or source.kept()
            if lines is not None:
                lines(epoch + 1, config.epochs, pending.item())
            if not last:  # after the last epoch Ctrl-C does not stop the result from being made and saved
                after_epoch(epoch + 1)
        net.requires_grad_(False).eval()
        reestimate_statistics(net, kept)
        verdict = held.go_back(net, prior, kept, runtime)
        if verdict is None and config.flip:  # too few images were held back to look at those
            look_at_mirrored(prior, first, runtime, AGAINST_MIRRORING)
        if path is not None:
            save_warmed(net, path, config=asdict(config), held_back=verdict and asdict(verdict))
    return net


def _optimizer(config: WarmUpConfig, net: nn.Module, steps: int) -> torch.optim.Optimizer:
    """Adam, with a step size for each tensor if they are relative, and one of their own for the rhos."""
    travel = config.sigma_travel
    rhos = set() if travel is None else {id(rho) for _, _, rho in variational_parameters(net)}
    # Steps that fall along a cosine from s to 0 add up to half of s times their number.
    of_rho = 0.0 if travel is None else 2 * travel / (steps or config.epochs * _UNKNOWN_LENGTH)
    groups: dict[float, list[Tensor]] = {}
    for parameter in net.parameters():
        scale = step_scale(parameter) if config.relative else 1.0
        groups.setdefault(of_rho if id(parameter) in rhos else config.lr * scale, []).append(parameter)
    found = [{"params": tensors, "lr": lr, "initial_lr": lr} for lr, tensors in groups.items()]
    return torch.optim.Adam(found, fused=True)


def _fit(logits: Tensor, labels: Tensor, learned: Tensor | None) -> Tensor:
    """Mean cross-entropy of the images to learn from."""
    if learned is None:
        return F.cross_entropy(logits, labels)
    return F.cross_entropy(logits, labels, reduction="none") @ learned / learned.sum().clamp_min(1)


def _kl_scale(config: WarmUpConfig, net: nn.Module, loader: Source) -> float:
    """The factor of the divergence in the loss: kappa / D, or 1 / N."""
    if config.kl_weight is not None:
        return config.kl_weight / sum(mean.numel() for _, mean, _ in variational_parameters(net))
    if config.source_size is not None:
        return 1 / config.source_size
    if size := _size(loader):
        return 1 / size
    raise ValueError(
        "Expected `loader.dataset`, to count the source images, but the loader has none. Give "
        "WarmUpConfig(source_size=...), or a `kl_weight`, which does not need it."
    )


def _size(loader: Source) -> int | None:
    """The number of source images, None where the loader does not tell."""
    dataset = getattr(loader, "dataset", None)
    if isinstance(dataset, Sized):
        return len(dataset)
    if isinstance(loader, (list, tuple)):
        return sum(len(labels) for _, labels in labelled_batches(loader))
    return None


def _placed(
    loader: Source, runtime: Runtime, net: nn.Module | None, *, single: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches with images on the device, checked if ``net`` is given; of one image only if ``single``."""
    classes = 0
    for images, labels in labelled_batches(loader):
        if net is not None:
            check_images(images)
        images, labels = (x.clone() if x.is_inference() else x for x in (images, labels))
        images = runtime.place_images(images)
        if net is not None:
            with torch.no_grad(), runtime.autocast():
                classes = classes or check_accepted(net, images)
            check_labels(labels, len(images), classes)
        if single or len(images) > 1:
            yield images, labels


def _finite(loss: Tensor, step: int) -> float:
    """The loss of a step; raises if it is not finite."""
    value = loss.item()
    if not math.isfinite(value):
        raise FloatingPointError(
            f"The warm-up's loss became {value} at step {step}. Lower `lr` or `sigma_ratio`, and check that the model "
            "is trained and takes images in [0, 1]."
        )
    return value


def _length(loader: Source) -> int:
    """The number of batches, 0 where the loader does not know it (a DataLoader may have a length and refuse it)."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return 0


@contextmanager
def _progress(progress: Progress | bool) -> Iterator[Progress]:
    """Turn the `progress` argument into a callable."""
    if not isinstance(progress, bool):
        yield progress
    elif progress and sys.stderr.isatty():
        with display() as task:
            yield task("Warm-up", "loss {:.3f}")
    else:
        yield lambda step, steps, loss: None


def save_warmed(net: nn.Module, path: str | os.PathLike[str], **metadata: Any) -> None:
    """Write a variational network's tensors (safetensors) with JSON metadata, atomically.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_warmed(to_variational(nn.Linear(2, 2)), folder + "/net.safetensors", epochs=5)
        ...     net = load_warmed(nn.Linear(2, 2), folder + "/net.safetensors")
    """
    write_state(path, _WARMED_KIND, {"network": dict(net.state_dict()), "about": metadata})


def load_warmed(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Read a file of `save_warmed` or `warm_up` into a variational copy of ``model``, of the same architecture.

    Raises:
        ValueError: If the file is damaged, of another kind, or of another network.
    """
    try:
        tensors = read_state(path, _WARMED_KIND)["network"]
    except ValueError as error:
        plain = " If it holds the weights of a plain network, warm that up first: vcotta.warm_up, `vcotta warmup`."
        raise ValueError(f"{error}{'' if is_warmed_file(path) else plain}") from error
    net = copy.deepcopy(model) if is_variational(model) else to_variational(model, unsupported="keep")
    if odd := other_shape(net.state_dict(), tensors):
        raise ValueError(f"Expected a warmed {type(model).__name__} in {path}, but {odd}. Give the network it is of.")
    net.load_state_dict(tensors)
    return net.requires_grad_(False).eval()


def is_warmed_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file holds a warmed network, judged by its header."""
    return state_kind(path) == _WARMED_KIND

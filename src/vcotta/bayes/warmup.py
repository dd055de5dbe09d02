"""Algorithm 1 of the paper: a pretrained network becomes a variational one on a few epochs of source data."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.augment import augmix
from vcotta.batch_norm import batch_norms, reestimate_statistics
from vcotta.bayes.convert import to_variational
from vcotta.bayes.gaussian import kl_divergence
from vcotta.bayes.layers import is_variational, sampling, variational_parameters
from vcotta.epoch_state import EpochState, Stateful
from vcotta.fields import check_fields
from vcotta.inputs import check_accepted, check_images, check_labels, labelled_batches
from vcotta.rng import OwnRng
from vcotta.runtime import Runtime
from vcotta.state_files import read_state, state_kind, weights_sha256, write_state
from vcotta.views import random_view

__all__ = ["Loader", "WarmUpConfig", "is_warmed_file", "load_warmed", "save_warmed", "warm_up"]

Loader = Iterable[tuple[Tensor, Tensor]]
"""Source data: yields (images in [0, 1], labels), and can be iterated once an epoch."""

Report = Callable[[int, int, float], None]
"""Progress of the warm-up: called with (step, steps, loss) after every step."""

_KIND = "vcotta-warmed-1"
_KEPT = "vcotta-warming-1"


@dataclass(frozen=True)
class WarmUpConfig:
    """Settings of the warm-up.

    Attributes:
        epochs: Passes over the source data (paper: 5).
        lr: Start of Adam's step size, which falls to 0 along a cosine (ours; the paper gives none).
        sigma_ratio: r in sigma0 = r * rms(weight), the width of the prior and the start of q (ours; 0.3 beat 0.15).
        views: Train on random views, one draw per image, as the adaptation will see them (ours).
        flip: Whether these views may mirror the image.
        augmix: Mix what the network is shown by AugMix, views included (ours, for networks that were trained on AugMix
            images: with 5 epochs a quarter of a point for VCoTTA on CIFAR100-C, one seed).
        kl_weight: kappa: the divergence is divided by the number D of variational weights and multiplied by kappa, so
            that moving every weight by one sigma costs kappa / 2 (ours; 0.7 beat 7 and 730). None is the paper's
            KL / N_source, that is kappa = D / N_source: 5 for a ResNet-20 on CIFAR-10, but 730 for a WRN-28-10, which
            then hardly moves.
        source_size: N in KL / N, for ``kl_weight=None``; taken from the loader where it can be counted.
        statistics_images: Source images kept aside to re-estimate BatchNorm statistics at the end; they stay in
            memory until then.
        seed: Seed of views and noise.
        unsupported: What becomes of layers that cannot be variational, as in `to_variational`: ``"error"``, or
            ``"keep"`` to leave attention layers, say, as point parameters.
    """

    epochs: int = 5
    lr: float = 3e-4
    sigma_ratio: float = 0.3
    views: bool = True
    flip: bool = True
    augmix: bool = False
    kl_weight: float | None = 0.7
    source_size: int | None = None
    statistics_images: int = 2000
    seed: int = 0
    unsupported: Literal["error", "keep"] = "error"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.source_size is not None and self.source_size < 1:
            raise ValueError(f"Expected `source_size` to be at least 1, but got {self.source_size}.")
        if self.kl_weight is not None and self.kl_weight < 0:
            raise ValueError(f"Expected `kl_weight` to be at least 0, or None, but got {self.kl_weight}.")
        if self.sigma_ratio <= 0:
            raise ValueError(f"Expected `sigma_ratio` to be positive, but got {self.sigma_ratio}. Try 0.3.")
        if self.epochs < 1:
            raise ValueError(f"Expected `epochs` to be at least 1, but got {self.epochs}.")
        if self.lr < 0:
            raise ValueError(f"Expected `lr` to be at least 0, but got {self.lr}.")
        if self.statistics_images < 2:
            raise ValueError(f"Expected `statistics_images` to be at least 2, but got {self.statistics_images}.")


@torch.inference_mode(False)
def warm_up(
    model: nn.Module,
    loader: Loader,
    config: WarmUpConfig | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
    runtime: Runtime | None = None,
    progress: Report | bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
) -> nn.Module:
    r"""Turn a pretrained classifier into a variational network (paper, section "Variational Warm-up", Algorithm 1).

    With the prior :math:`p = N(\mu_{pretrained}, \sigma_0^2)` and q starting at p, Adam minimises

    .. math:: E_q[\mathrm{CE}(y, f(x))] + \kappa\,\mathrm{KL}(q \| p) / D

    with local reparameterisation; the paper has KL / N_source, which is ``kl_weight=None``. Point parameters
    (normalisation layers) are trained along, without a KL term. At the end the running statistics of BatchNorm are
    estimated anew in mean mode, as those gathered under noise are wrong. The authors published no warm-up code; what
    the paper leaves open is settled in `WarmUpConfig`.

    Args:
        model: A plain classifier that takes images in [0, 1]; it is not changed.
        loader: Source data, see `Loader`.
        config: Settings.
        path: Where to save the result (safetensors with metadata), if anywhere.
        runtime: Device and precision.
        progress: True for a progress bar on a terminal, False for silence, or a callable that takes
            (step, steps, loss); steps is 0 when the loader has no length, and the loss of a warm-up that goes on is
            not-a-number at first.
        checkpoint: File that is written between epochs, every half a minute at most, and gone on from where it is
            already there; remove it when the result is kept. Ctrl-C then waits for the end of the epoch and writes it;
            pressed again it does not wait. The result is that of a warm-up without interruption if
            what the loader yields can be restored: it has ``state_dict`` and ``load_state_dict``, as
            `vcotta.data.batches` does, or draws from torch's global generator alone, as a DataLoader does by itself,
            or has one order.

    Returns:
        The variational network in eval and mean mode: the source prior of the adaptation.

    Raises:
        FloatingPointError: If the loss stops being finite, with what to try.
        ValueError: If the checkpoint is damaged or belongs to another network or other settings.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
        >>> data = [(torch.rand(8, 3, 4, 4), torch.randint(2, (8,)))]
        >>> net = warm_up(model, data, WarmUpConfig(epochs=1), progress=False)
        >>> is_variational(net)
        True
    """
    if config is not None and not isinstance(config, WarmUpConfig):
        raise TypeError(f"Expected `config` to be a WarmUpConfig, but got {config!r}. Try WarmUpConfig(epochs=2).")
    config, runtime = config or WarmUpConfig(), (runtime or Runtime()).fit_for(model)
    net = runtime.place(to_variational(model, config.sigma_ratio, unsupported=config.unsupported))
    prior = copy.deepcopy(net).requires_grad_(False).eval()
    net.requires_grad_(True)
    if config.kl_weight is None:
        kl_scale = 1 / (config.source_size or _source_size(loader))
    else:
        kl_scale = config.kl_weight / sum(mean.numel() for _, mean, _ in variational_parameters(net))
    if config.epochs > 1 and isinstance(loader, Iterator):
        raise ValueError(
            f"Expected a loader that can be gone through {config.epochs} times, but a generator runs dry after one "
            "pass. Give a list or a DataLoader."
        )
    steps = config.epochs * _length(loader)
    normalised = any(batch_norms(net))
    optimizer = torch.optim.Adam(net.parameters(), lr=config.lr, fused=True)
    rng = OwnRng(config.seed, runtime.device)
    state = _state(checkpoint, config, prior, {"model": net, "optimizer": optimizer, "rng": rng}, loader)
    done = state.resume()
    kept: list[Tensor] = []
    step = _taken(optimizer)
    net.train()
    with (
        _reporter(progress, steps) as report,
        torch.enable_grad(),
        state.interruptible(config.epochs) as after_epoch,
    ):
        if done:
            report(step, steps, math.nan)
        for epoch in range(done, config.epochs):
            last = epoch == config.epochs - 1
            pending: Tensor | None = None  # a step's loss is read when the next is under way, so that a GPU never waits
            with rng.scope():
                for images, labels in _placed(loader, runtime, prior if epoch == done else None, single=not normalised):
                    if last and sum(map(len, kept)) < config.statistics_images:
                        kept.append(images)
                    share = step / steps if steps else epoch / config.epochs
                    optimizer.param_groups[0]["lr"] = config.lr * (1 + math.cos(math.pi * share)) / 2
                    seen = random_view(images, flip=config.flip, per_image=True) if config.views else images
                    seen = augmix(seen) if config.augmix else seen
                    with sampling(net), runtime.autocast():
                        logits = net(seen)
                    kl = kl_divergence(net, prior, compiled=bool(runtime.compile))
                    loss = F.cross_entropy(logits.float(), labels.to(runtime.device)) + kl_scale * kl
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    optimizer.step()
                    if pending is not None:
                        report(step, steps, _finite(pending, step))
                    pending = loss.detach()
                    step += 1
            if pending is None:
                raise ValueError(
                    f"Expected the loader to yield batches in every epoch, but it had none in epoch {epoch + 1}"
                    + (" of more than one image, which BatchNorm needs." if normalised else ".")
                )
            report(step, steps, _finite(pending, step))
            if not last:  # after which the result itself is made and kept, whoever presses Ctrl-C
                after_epoch(epoch + 1)
        net.requires_grad_(False).eval()
        reestimate_statistics(net, kept)
        if path is not None:
            save_warmed(net, path, config=asdict(config))
    return net


def _state(
    path: str | os.PathLike[str] | None,
    config: WarmUpConfig,
    prior: nn.Module,
    parts: dict[str, Stateful],
    loader: Loader,
) -> EpochState:
    """What is kept between epochs; the order of a loader that can tell it, too."""
    if path is None:
        return EpochState(None, _KEPT, parts, {})
    own = {"loader": loader} if isinstance(loader, Stateful) else {}
    facts = {"config": asdict(config), "weights_sha256": weights_sha256(prior), "batches": _length(loader)}
    return EpochState(path, _KEPT, parts | own, facts)


def _taken(optimizer: torch.optim.Adam) -> int:
    """The steps behind Adam, by its own count."""
    return max((int(state["step"]) for state in optimizer.state.values()), default=0)


def _placed(
    loader: Loader, runtime: Runtime, net: nn.Module | None, *, single: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches with the images on the device, checked if there is a network to check them with.

    Those of one image are left out unless ``single``: alone it has no statistics.
    """
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


def save_warmed(net: nn.Module, path: str | os.PathLike[str], **metadata: Any) -> None:
    """Write a variational network's tensors (safetensors) with JSON metadata, atomically.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_warmed(to_variational(nn.Linear(2, 2)), folder + "/net.safetensors", epochs=5)
        ...     net = load_warmed(nn.Linear(2, 2), folder + "/net.safetensors")
    """
    write_state(path, _KIND, {"network": dict(net.state_dict()), "about": metadata})


def load_warmed(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Read what `warm_up` saved into a variational copy of ``model``, a network of the same architecture.

    Raises:
        ValueError: If the file is damaged, of another kind, or of another network.
    """
    try:
        tensors = read_state(path, _KIND)["network"]
    except ValueError as error:
        plain = " If it holds the weights of a plain network, warm that up first: vcotta.warm_up, `vcotta warmup`."
        raise ValueError(f"{error}.{'' if is_warmed_file(path) else plain}") from error
    net = copy.deepcopy(model) if is_variational(model) else to_variational(model, unsupported="keep")
    ours, theirs = (
        {key: tuple(getattr(value, "shape", ())) for key, value in state.items()}
        for state in (net.state_dict(), tensors)
    )
    if ours != theirs:
        odd = next(key for key in (*ours, *theirs) if ours.get(key) != theirs.get(key))
        raise ValueError(
            f"The warmed network in {path} is not one of this {type(model).__name__}: {odd!r} has shape "
            f"{theirs.get(odd)} there and {ours.get(odd)} in the network."
        )
    net.load_state_dict(tensors)
    return net.requires_grad_(False).eval()


def is_warmed_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a warmed network, by its header alone."""
    return state_kind(path) == _KIND


def _finite(loss: Tensor, step: int) -> float:
    """The loss of a step, or an error if it is not a number to go on with."""
    value = loss.item()
    if not math.isfinite(value):
        raise FloatingPointError(
            f"The warm-up's loss became {value} at step {step}. Lower `lr` or `sigma_ratio`, and check that the model "
            "is trained and takes images in [0, 1]."
        )
    return value


def _length(loader: Loader) -> int:
    """The number of batches, 0 where the loader does not know it (a DataLoader may have a length and refuse it)."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return 0


def _source_size(loader: Loader) -> int:
    dataset = getattr(loader, "dataset", None)
    if isinstance(dataset, Sized):
        return len(dataset)
    if isinstance(loader, (list, tuple)):
        return sum(len(labels) for _, labels in loader)
    raise ValueError(
        "Expected to learn the number of source images from `loader.dataset`, but the loader has none. "
        "Give WarmUpConfig(source_size=...), or a `kl_weight`, which does not need it."
    )


@contextmanager
def _reporter(progress: Report | bool, steps: int) -> Iterator[Report]:
    """Turn the `progress` argument into a callable, drawing a bar while the block lasts."""
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield lambda step, steps, loss: None
    else:
        console = Console()
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("Warm-up", total=steps or None)
            yield lambda step, steps, loss: bar.update(
                task, completed=step, description="Warm-up" if math.isnan(loss) else f"Warm-up, loss {loss:.3f}"
            )

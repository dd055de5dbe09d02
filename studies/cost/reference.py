"""Runs methods of a user's own checkout of mariodoebler/test-time-adaptation, to time them.

Used by `studies.cost.prices`, in a process of its own. The checkout's methods, losses and settings are its own. Its
loaders of data and networks are replaced, as both sides get the same batches and the same network. Packages that it
imports and that are not installed have stand-ins (`studies.checkouts`); without torchvision its random views are ours.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from studies.checkouts import Loader, importable, merge, read_config
from vcotta.nn.views import random_view

REPOSITORY = "mariodoebler/test-time-adaptation"
CLASSES = {"tent": "Tent", "cotta": "CoTTA", "roid": "ROID", "eata": "EATA", "rmt": "RMT"}
"""The methods that are timed, and the names of their classes."""
SETTINGS = {"digits": "cifar10_c", "cifar10": "cifar10_c", "cifar100": "cifar100_c", "imagenet": "imagenet_c"}
"""Whose settings are used, by our data set."""
CHANGES: dict[str, dict[str, Any]] = {
    "rmt": {"RMT": {"LAMBDA_CE_SRC": 0.0, "NUM_SAMPLES_WARM_UP": 1000}},
}
"""As ours does: RMT without a replay of source images. Its warm-up is short on both sides, and is not timed."""
OURS: dict[str, dict[str, Any]] = {"rmt": {"warm_up_images": 1000}}
"""Options of our methods to match."""

Step = Callable[[Tensor], Tensor]


@contextmanager
def reference_step(
    checkout: Path, method: str, net: nn.Module, source: list[tuple[Tensor, Tensor]], data: str, scratch: Path
) -> Iterator[tuple[Step, list[str]]]:
    """Give the step of a method of the checkout, and the packages that have stand-ins; it runs inside the block.

    Args:
        checkout: Folder of the checkout.
        method: One of `CLASSES`.
        net: The network in RobustBench's layout, on its device; it is trained.
        source: Labelled source batches, of the stream's batch size.
        data: Our data set, which chooses the checkout's settings, see `SETTINGS`.
        scratch: Folder for files that the checkout writes.
    """
    root, folder = checkout / "classification", SETTINGS[data]
    if not (root / "methods" / f"{method}.py").is_file():
        raise ValueError(f"Expected a checkout of {REPOSITORY}, but {root} has no methods/{method}.py.")
    replaced: dict[str, dict[str, Any]] = {
        "models.model": {"ResNetDomainNet126": type("None", (nn.Module,), {}), "split_up_model": _split},
        "datasets.data_loading": {"get_source_loader": lambda **options: (None, Loader(source))},
    }
    if importlib.util.find_spec("torchvision") is None:
        replaced["augmentations.transforms_cotta"] = {"get_tta_transforms": _views(flip=data != "digits")}
    with importable(root, replaced) as missing:
        config = read_config(root, f"{folder}/{method}")
        merge(config, {"CKPT_DIR": str(scratch), "TEST": {"BATCH_SIZE": len(source[0][0])}})
        merge(config, CHANGES.get(method, {}))
        net.model_preprocess = None  # type: ignore[assignment]
        classes = net(source[0][0][:2]).shape[-1]
        adapter = getattr(importlib.import_module(f"methods.{method}"), CLASSES[method])(config, net, classes)
        yield adapter, [name for name in missing if name in sys.modules]


def _views(flip: bool) -> Callable[..., Callable[[Tensor], Tensor]]:
    """Our views in place of the checkout's ``get_tta_transforms``."""

    def make(size: Any, gaussian_std: float = 0.005, *, cotta_augs: bool = True, **options: Any) -> Any:
        return lambda images: random_view(images, flip=flip, kind="cotta" if cotta_augs else "roid")

    return make


def _split(net: Any, *names: str) -> tuple[nn.Module, nn.Module]:
    """Features and classifier of a wide residual network, as the checkout's function splits it."""
    parts = [net.conv1, net.block1, net.block2, net.block3, net.bn1]
    return nn.Sequential(_Normalise(net), *parts, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()), net.fc


class _Normalise(nn.Module):
    """The first operation of a network, without its parameters."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.normalise = net.normalise

    def forward(self, images: Tensor) -> Tensor:
        normalised: Tensor = self.normalise(images)
        return normalised


def no_gradient(step: Step, images: Tensor) -> Tensor:
    """Return the logits of a step; the checkout switches gradients on itself, as in its own loop."""
    with torch.no_grad():
        return step(images).detach()

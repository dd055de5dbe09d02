"""Runs methods of a user's own checkout of mariodoebler/test-time-adaptation, to time them.

Used by `studies.cost.prices`, in a process of its own. The checkout's methods, losses and settings are its own. Its
loaders of data and networks are replaced, as both sides get the same batches and the same network. Packages that it
imports and that are not installed have stand-ins; without torchvision its random views are ours.
"""

from __future__ import annotations

import ast
import copy
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

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
PACKAGES = ("gdown", "iopath", "kornia", "open_clip", "pandas", "robustbench", "timm", "torchvision", "tqdm", "yacs")
PACKAGES += ("webdataset", "wilds", "einops")

Step = Callable[[Tensor], Tensor]


class Config(dict[str, Any]):
    """Settings with attributes, in place of ``yacs.config.CfgNode``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def clone(self) -> Config:
        """Return a copy."""
        return copy.deepcopy(self)

    def freeze(self) -> None:
        """Do nothing: settings are changed after they were read."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Config:
        return Config({key: copy.deepcopy(value, memo) for key, value in self.items()})


class _StandIn(ModuleType):
    """A module whose missing names are modules, if in small letters, or classes that cannot be made."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full == "yacs.config.CfgNode":
            return Config
        if full == "tqdm.tqdm":
            return lambda items, **options: items
        value = importlib.import_module(full) if name.islower() else type(name, (), {"__init__": _refuse})
        setattr(self, name, value)
        return value


def _refuse(self: Any, *args: Any, **options: Any) -> None:
    raise ImportError(f"Expected not to need {type(self).__name__}, but the checkout uses it. Install its package.")


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for every module of the packages that are not installed."""

    def __init__(self, missing: list[str]) -> None:
        self.missing = missing

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        missing = name.partition(".")[0] in self.missing
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if missing else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


class _Batches(list[tuple[Tensor, Tensor]]):
    """Source batches as the checkout's loader gives them."""

    @property
    def batch_size(self) -> int:
        """Images in a batch."""
        return len(self[0][0])


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout."""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"Expected a checkout of {REPOSITORY}, but {checkout} is no git repository.")
    return done.stdout.strip()


def reference_step(
    checkout: Path, method: str, net: nn.Module, source: list[tuple[Tensor, Tensor]], data: str, scratch: Path
) -> tuple[Step, list[str]]:
    """Return the step of a method of the checkout, and what stands in for packages that are not installed.

    The process can import nothing else that has the names of the checkout's folders afterwards.

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
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    sys.meta_path.insert(0, _StandIns(missing))
    sys.path.insert(0, str(root))
    for path in root.iterdir():  # namespaces: importing one method does not import all of them
        if path.is_dir() and path.name.isidentifier():
            sys.modules[path.name] = package = ModuleType(path.name)
            package.__path__ = [str(path)]
    replaced: dict[str, dict[str, Any]] = {
        "models.model": {"ResNetDomainNet126": type("None", (nn.Module,), {}), "split_up_model": _split},
        "datasets.data_loading": {"get_source_loader": lambda **options: (None, _Batches(source))},
    }
    if "torchvision" in missing:
        replaced["augmentations.transforms_cotta"] = {"get_tta_transforms": _views(flip=data != "digits")}
    for name, members in replaced.items():
        sys.modules[name] = module = ModuleType(name)
        vars(module).update(members)
    config = importlib.import_module("conf").cfg.clone()
    _merge(config, _read(root / "cfgs" / folder / f"{method}.yaml"))
    own = {"CKPT_DIR": str(scratch), "TEST": {"BATCH_SIZE": len(source[0][0])}}
    for changes in (own, CHANGES.get(method, {})):
        _merge(config, changes)
    net.model_preprocess = None  # type: ignore[assignment]
    classes = net(source[0][0][:2]).shape[-1]
    adapter = getattr(importlib.import_module(f"methods.{method}"), CLASSES[method])(config, net, classes)
    return adapter, [name for name in missing if name in sys.modules]


def _read(path: Path) -> Any:
    import yaml

    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _merge(config: Any, changes: Mapping[str, Any]) -> None:
    """Set values, those of groups one by one; YAML takes 1e-3 for text."""
    for key, value in changes.items():
        if isinstance(value, Mapping):
            _merge(config[key], value)
            continue
        try:
            config[key] = ast.literal_eval(value) if isinstance(value, str) else value
        except (ValueError, SyntaxError):
            config[key] = value


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

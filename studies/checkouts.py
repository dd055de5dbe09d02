"""Imports code from other people's checkouts, with small stand-ins for packages it imports that are not installed."""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

PACKAGES = (
    "einops",
    "gdown",
    "iopath",
    "kornia",
    "open_clip",
    "pandas",
    "robustbench",
    "timm",
    "torchvision",
    "tqdm",
    "webdataset",
    "wilds",
    "yacs",
)
"""What other repositories import and this package does not depend on; a stand-in takes the place of a missing one."""


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
        return Config({key: value.clone() if isinstance(value, Config) else value for key, value in self.items()})

    def freeze(self) -> None:
        """Do nothing: settings are changed after they were read."""


def merge(config: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Set values, those of groups one by one; YAML takes 1e-3 for text, here it becomes a number."""
    for key, value in changes.items():
        if isinstance(value, Mapping):
            merge(config.setdefault(key, Config()), value)
            continue
        try:
            config[key] = ast.literal_eval(value) if isinstance(value, str) else value
        except (ValueError, SyntaxError):
            config[key] = value


class Loader(list[tuple[torch.Tensor, torch.Tensor]]):
    """Source batches as other repositories' loaders give them."""

    @property
    def batch_size(self) -> int:
        """Images in a batch."""
        return len(self[0][0])


class _Resize(nn.Module):
    """``torchvision.transforms.Resize`` to the size that the images have already."""

    def __init__(self, size: Sequence[int]) -> None:
        super().__init__()
        self.size = tuple(size)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if (size := tuple(images.shape[-2:])) != self.size:
            raise ValueError(f"Expected images of {self.size}, but got {size}. Install torchvision.")
        return images


def _rearrange(x: torch.Tensor, pattern: str, ps1: int, ps2: int) -> torch.Tensor:
    """``einops.rearrange`` for the two patterns of DeYO: an image to its patches, and back."""
    if pattern == "b c (ps1 h) (ps2 w) -> b (ps1 ps2) c h w":
        return x.unflatten(3, (ps2, -1)).unflatten(2, (ps1, -1)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    if pattern == "b (ps1 ps2) c h w -> b c (ps1 h) (ps2 w)":
        return x.unflatten(1, (ps1, ps2)).permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    raise ValueError(f"Expected a pattern of DeYO's, but got {pattern!r}. Install einops.")


_KNOWN = {
    "yacs.config.CfgNode": Config,
    "torchvision.transforms.Resize": _Resize,
    "einops.rearrange": _rearrange,
    "tqdm.tqdm": lambda items, **options: items,
}


class _StandIn(ModuleType):
    """A module whose missing names are classes that may be inherited from and cannot be made."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full not in _KNOWN and name.islower():
            return importlib.import_module(full)
        value = _KNOWN.get(full) or type(name, (), {"__init__": _refuse})
        setattr(self, name, value)
        return value


def _refuse(self: Any, *args: Any, **options: Any) -> None:
    name = type(self).__name__
    raise ImportError(f"Expected not to need {name}, but the checkout uses it. Install its package.")


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for every module of the packages that are not installed."""

    def __init__(self) -> None:
        self.missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        missing = name.partition(".")[0] in self.missing
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if missing else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


@contextmanager
def importable(root: Path, replaced: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    """Let a checkout's code be imported and run inside the block; yields the packages that have stand-ins.

    Packages of the checkout are namespaces here, so that importing one method does not import all of them. Afterwards
    nothing of it is left in ``sys.modules``.

    Args:
        root: Folder whose modules are imported by their names.
        replaced: Modules in place of the checkout's, the names in each by the name of the module.
    """
    folders = {path.name for path in root.iterdir() if path.is_dir() and path.name.isidentifier()}
    own = folders | {path.stem for path in root.glob("*.py")}
    finder = _StandIns()
    own |= set(finder.missing)
    hidden = _take_out(own)
    for folder in folders:
        package = ModuleType(folder)
        package.__path__ = [str(root / folder)]
        sys.modules[folder] = package
    for name, members in replaced.items():
        sys.modules[name] = module = ModuleType(name)
        vars(module).update(members)
        parent, _, last = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], last, module)
    sys.path.insert(0, str(root))
    sys.meta_path.insert(0, finder)
    try:
        yield finder.missing
    finally:
        sys.meta_path.remove(finder)
        sys.path.remove(str(root))
        _take_out(own)
        sys.modules.update(hidden)


def _take_out(packages: set[str]) -> dict[str, ModuleType]:
    """Remove the modules of some packages from ``sys.modules``, and return them."""
    names = [name for name in sys.modules if name.partition(".")[0] in packages]
    return {name: sys.modules.pop(name) for name in names}


def read_config(root: Path, name: str) -> Any:
    """Return a checkout's own settings: its ``conf.py``, changed by its ``cfgs/NAME.yaml``; inside `importable`."""
    import yaml

    config = importlib.import_module("conf").cfg.clone()
    merge(config, yaml.safe_load((root / "cfgs" / f"{name}.yaml").read_text(encoding="utf-8")))
    return config


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout.

    Raises:
        ValueError: The folder is not a checkout, or its files were changed.
    """
    commands = (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "--", "*.py", "*.yaml"])
    found = [
        subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, check=False)
        for words in commands
    ]
    if any(run.returncode for run in found):
        raise ValueError(f"Expected a git checkout, but {checkout} is none: {found[0].stderr.strip()}")
    if found[1].stdout.strip():
        raise ValueError(f"Expected an unchanged checkout, but in {checkout} code was changed:\n{found[1].stdout}")
    return found[0].stdout.strip()

"""A small network, adapters of it, and functions called in several real processes, which talk over gloo."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vcotta
from vcotta import Runtime, build_adapter
from vcotta.methods import find_method
from vcotta.nn.distributed import World, join_world

from .methods.promises import PROMISES

__all__ = ["adapter", "free_port", "images", "together"]

OPTIONS: dict[str, dict[str, Any]] = {"rotta": {"capacity": 32}, "adacontrast": {"refine_after": 8}}


class Net(nn.Module):
    """Normalised before and after the average over pixels; convolutions without bias, as those before BatchNorm are.

    Such a bias has no effect and a gradient of zero, of which Adam makes steps of its own size out of rounding errors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, stride=2, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.fc(x.mean((2, 3)))


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = Net().train()
        net(torch.rand(64, 3, 8, 8))
    return net.eval()


def adapter(name: str, precision: str = "fp64", seed: int = 0, **options: Any) -> vcotta.Adapter:
    model = (PROMISES[name].network or network)(seed=seed)
    if find_method(name).needs_variational:
        model = vcotta.to_variational(model)
    if find_method(name).needs_source:
        draws = torch.Generator().manual_seed(0)
        options["source"] = [(torch.rand(24, 3, 8, 8, generator=draws), torch.arange(24) % 4) for _ in range(2)]
    if "lr" in find_method(name).Config.__dataclass_fields__:
        options.setdefault("lr", 0.01)
    chosen = PROMISES[name].options | OPTIONS.get(name, {}) | options
    return build_adapter(name, model, runtime=Runtime(precision=precision), **chosen)


def images(batch: int, n: int) -> Tensor:
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(batch))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def together(act: Callable[[World], Any], folder: Path, processes: int = 2, timeout: float = 60) -> list[Any]:
    """Call ``act`` in several processes that know each other; what it returned in each, or the text of its error."""
    port, children = free_port(), []
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(processes):
        child = os.fork()
        if not child:
            code = 1
            try:
                names = {"RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                os.environ.update({name: str(value) for name, value in names.items()})
                torch.save(_outcome(act, timeout), folder / f"{rank}.pt")
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    paths = (folder / f"{rank}.pt" for rank in range(processes))
    return [torch.load(path) if end == 0 else end for path, end in zip(paths, ended, strict=True)]


def _outcome(act: Callable[[World], Any], timeout: float) -> Any:
    try:
        with join_world(timeout=timeout) as world:
            return act(world)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

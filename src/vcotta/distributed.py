"""One batch on several processes: who computes which rows, and what they must tell each other.

A method runs in every process on the whole batch; only passes through networks are split (`split_batch`), and their
outputs gathered. So whatever a method does with them, means, margins, filters, losses, is what it does alone. What
must know of the split are the things inside a pass that look beyond one image, BatchNorm's statistics (`var_mean`), or
draw for one image, noise (`noise_like`), and the gradient, of which every process has a part (`average`). Without
processes to share with each of these is torch's own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from vcotta.normalise import normalise
from vcotta.state_files import pack_state, unpack_state

__all__ = [
    "World",
    "average",
    "is_shared",
    "join_world",
    "noise_like",
    "split_batch",
    "var_mean",
    "whole_batch",
    "whole_length",
]

TIMEOUT = 300.0  # seconds; a checkpoint of a large network, for which all wait, takes about one


@dataclass(frozen=True)
class World:
    """The processes that share a run, and which of them this is. The default is a process of its own.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes.
        backend: What torch.distributed joins them by; None for a process that joined nobody.

    Example:
        >>> World().leads, World().exchange("alone")
        (True, ['alone'])
    """

    rank: int = 0
    size: int = 1
    backend: str | None = None

    @property
    def leads(self) -> bool:
        """Whether this process writes the files and talks to the user."""
        return self.rank == 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Share batches and gradients within the block."""
        global _world
        before, _world = _world, self if self.size > 1 else None
        try:
            yield
        finally:
            _world = before

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """What fails in one process within the block fails in all of them after it."""
        problem = None
        try:
            yield
        except Exception as error:
            problem = str(error) or type(error).__name__
            raise
        finally:
            told = self.exchange(problem)
        for rank, text in enumerate(told):
            if text is not None:
                raise RuntimeError(f"Process {rank} of {self.size} stopped: {text}")

    def exchange(self, value: Any) -> list[Any]:
        """Return what every process gave, by rank; plain values, as JSON has them."""
        if self.size == 1:
            return [value]
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [int(length) for length in self.gather(torch.tensor([len(data)]), [1] * self.size)]
        return [json.loads(part.numpy().tobytes()) for part in self.gather(data, lengths).split(lengths)]

    def share_state(self, state: dict[str, Any] | None) -> dict[str, Any]:
        """Return the leading process's state, nested dictionaries and lists of tensors and plain values."""
        tensors: dict[str, Tensor] = {}
        packed = pack_state(state, "", tensors) if self.leads else None
        about = [(name, str(tensor.dtype), list(tensor.shape)) for name, tensor in tensors.items()]
        packed, about = self.exchange([packed, about])[0]
        for name, dtype, shape in about:
            if not self.leads:
                tensors[name] = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            bytes_of_it = tensors[name].view(-1).view(torch.uint8)
            if self.size > 1 and len(bytes_of_it):
                self._call(dist.broadcast, bytes_of_it, 0)
        shared: dict[str, Any] = unpack_state(packed, tensors)
        return shared

    def gather(self, part: Tensor, sizes: Sequence[int]) -> Tensor:
        """The parts of all processes one after another; ``sizes`` are their lengths."""
        padded = part.new_zeros(max(sizes), *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in sizes]
        self._call(dist.all_gather, parts, padded)
        return torch.cat([whole[:size] for whole, size in zip(parts, sizes, strict=True)])

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add up what the processes have, in place."""
        self._call(dist.all_reduce, tensor)
        return tensor

    def _call(self, collective: Callable[..., Any], *arguments: Any) -> None:
        try:
            collective(*arguments)
        except RuntimeError as error:
            raise RuntimeError(
                f"Process {self.rank} of {self.size} has lost another one, which stopped or did not answer in time. "
                f"What was recorded is on disk: start all of them again with --resume. ({_first_line(error)})"
            ) from error


@contextmanager
def join_world(device: str = "cpu", *, backend: str | None = None, timeout: float = TIMEOUT) -> Iterator[World]:
    """Meet the other processes that torchrun started, for as long as the block lasts.

    Args:
        device: ``"cpu"``, or ``"cuda"`` for one GPU a process, which becomes torch's current one.
        backend: Of torch.distributed; by default gloo for the CPU and NCCL for GPUs.
        timeout: Seconds after which a process that does not answer is given up.

    Raises:
        ValueError: The process was not started by torchrun, or ``device`` is a certain GPU, or there are too few.
    """
    if missing := [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise ValueError(
            f"Expected to be started by torchrun, but {missing[0]} is not set. "
            "Try: torchrun --nproc-per-node 2 -m vcotta run --distributed ..."
        )
    gpu = torch.device(device).type == "cuda"
    if gpu:
        if torch.device(device).index is not None:
            raise ValueError(f"Expected `device` to be cpu or cuda, one GPU for each process, but got {device!r}.")
        place, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if place >= count and backend is None:
            raise ValueError(
                f"Expected a GPU for each process, but this machine has {count} and this is its process {place + 1}. "
                f"Start {count} of them, or use --device cpu."
            )
        torch.cuda.set_device(place % count)
    backend = backend or ("cpu:gloo,cuda:nccl" if gpu else "gloo")
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    yield World(dist.get_rank(), dist.get_world_size(), backend)
    dist.destroy_process_group()  # not after an error: it might wait for those that are gone


_world: World | None = None


@dataclass(frozen=True)
class _Share:
    """The rows of a batch that this process computes.

    Attributes:
        world: The processes.
        sizes: Numbers of rows, by process.
        weights: The same as shares of the batch, on its device.
        views: The batch is so many views one after another, and every process has its rows of each.
    """

    world: World
    sizes: tuple[int, ...]
    weights: Tensor
    views: int

    @property
    def rows(self) -> slice:
        start = sum(self.sizes[: self.world.rank])
        return slice(start, start + self.sizes[self.world.rank])

    def take(self, batch: Tensor) -> Tensor:
        """This process's rows of all views."""
        if self.views == 1:
            return batch[self.rows]
        own: Tensor = batch.unflatten(0, (self.views, -1))[:, self.rows].flatten(0, 1)
        return own


_share: _Share | None = None


def is_shared() -> bool:
    """Whether batches are shared with other processes here."""
    return _world is not None


def split_batch(forward: Callable[[Tensor], Tensor], images: Tensor, views: int = 1) -> Tensor:
    """Compute ``forward(images)``, of which every process does its rows, as if there were but one process.

    A batch of fewer images than processes is not worth splitting: each process computes all of it.

    Args:
        forward: A pass through a network, called on the rows of this process; it returns a tensor with as many rows.
        images: The whole batch, the same in every process.
        views: The batch is so many views one after another.

    Returns:
        The whole batch's output, the same in every process. Its gradient, averaged over processes by `average`, is
        that of the whole batch.

    Example:
        >>> split_batch(torch.sqrt, torch.tensor([1.0, 4.0]))
        tensor([1., 2.])
    """
    global _share
    batch = len(images) // views
    if _world is None or batch < _world.size:
        return forward(images)
    small, more = divmod(batch, _world.size)
    sizes = tuple(small + (rank < more) for rank in range(_world.size))
    weights = torch.tensor(sizes, dtype=torch.float64).div_(batch).to(images.device, non_blocking=True)
    _share = share = _Share(_world, sizes, weights, views)
    try:
        with _WholeStatistics():
            return whole_batch(forward(share.take(images)))
    finally:
        _share = None


def whole_batch(rows: Tensor) -> Tensor:
    """Gather what a pass computed of this process's rows, (rows, ...), over all processes, with its gradient."""
    if _share is None:
        return rows
    if _share.views == 1:
        return _gather(rows, _share.sizes)
    rows = rows.unflatten(0, (_share.views, -1)).transpose(0, 1)
    return _gather(rows, _share.sizes).transpose(0, 1).flatten(0, 1)


def noise_like(x: Tensor) -> Tensor:
    """Draw from N(0, 1) in the shape of ``x``, what a pass computed: each image's noise, whoever computes it.

    All processes draw for the whole batch and keep what is for their rows.
    """
    if _share is None:
        return torch.randn_like(x)
    rows = _share.views * _share.sizes[_share.world.rank]
    if len(x) % rows:
        raise RuntimeError(
            f"Expected {rows} rows or a multiple, one block an image, but a layer gave {tuple(x.shape)}."
        )
    batch, block = sum(_share.sizes), len(x) // rows
    last = x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    whole = torch.empty(
        (_share.views * batch * block, *x.shape[1:]),
        dtype=x.dtype,
        device=x.device,
        memory_format=torch.channels_last if last else torch.contiguous_format,  # numbers are drawn in memory order
    ).normal_()
    if block == 1:
        return _share.take(whole).clone()  # a view would keep the noise of the whole batch until the backward pass
    return _share.take(whole.unflatten(0, (-1, block))).flatten(0, 1)


def whole_length(x: Tensor) -> int:
    """How many rows the whole batch has, of which ``x`` are those of this process."""
    return len(x) if _share is None else len(x) // _share.sizes[_share.world.rank] * sum(_share.sizes)


def var_mean(x: Tensor, dims: list[int], *, correction: int = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """``torch.var_mean`` over the whole batch, of which ``x`` are this process's rows, with its gradient.

    Example:
        >>> var_mean(torch.tensor([[1.0], [3.0]]), [0])
        (tensor([2.]), tensor([2.]))
    """
    if _share is None:
        return torch.var_mean(x, dims, correction=correction, keepdim=keepdim)
    mean = x.mean(dims, keepdim=True)
    variance = (x - mean.detach()).square().mean(dims, keepdim)  # several times as fast as torch.var_mean on the CPU
    mean = mean if keepdim else mean.view_as(variance)
    count = x.numel() // mean.numel() // _share.sizes[_share.world.rank] * sum(_share.sizes)
    parts = _gather(torch.stack([variance, mean]).unsqueeze(0), [1] * _share.world.size)
    weights = _share.weights.to(mean.dtype).view(-1, *[1] * mean.ndim)
    variances, means = parts.unbind(1)
    mean = (weights * means).sum(0)
    variance = (weights * (variances + (means - mean).square())).sum(0)
    return variance * (count / (count - correction)) if correction else variance, mean


def average(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Average gradients over the processes: each has the part that came through its rows, times their number.

    Example:
        >>> average([torch.ones(2)])
        [tensor([1., 1.])]
    """
    if _world is None or not gradients:
        return list(gradients)
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    parts = _world.sum_(flat).div_(_world.size).split([gradient.numel() for gradient in gradients])
    return [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)]


class _Gather(torch.autograd.Function):
    """The rows of all processes; back to a process flow the gradients of all that used its rows, added up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, world: World, sizes: Sequence[int]) -> Tensor:
        ctx.world, ctx.sizes = world, sizes
        return world.gather(rows, sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        total = ctx.world.sum_(grad.contiguous().clone())
        return total.split(list(ctx.sizes))[ctx.world.rank], None, None


def _gather(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    assert _share is not None
    whole: Tensor = _Gather.apply(rows, _share.world, sizes)
    return whole


class _WholeStatistics(TorchFunctionMode):
    """Within the block BatchNorm of any kind, all of which ends in ``F.batch_norm``, normalises by the whole batch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm:
            return _batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training:
        return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    precise = x.to(torch.promote_types(x.dtype, torch.float32))
    variance, mean = var_mean(precise, [0, *range(2, x.ndim)], correction=0)
    if running_mean is not None and running_var is not None:
        count = whole_length(x) * x[0, 0].numel()
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((variance * (count / (count - 1))).to(running_var.dtype), momentum)
    return normalise(x, mean, variance, weight, bias, eps)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]

"""One batch on several processes: which process computes which rows, and what they exchange.

A method runs in every process on the whole batch; only passes through networks are split, and their outputs gathered.
So losses and predictions are those of one process. BatchNorm's statistics, noise and gradients must know of the split:
they call the hook `vcotta.nn.sharing.current`.
"""

from __future__ import annotations

import importlib
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

from vcotta._util.tensorfile import pack_state, unpack_state
from vcotta.nn.batch_norm import MixedStatistics
from vcotta.nn.sharing import Sharing, use_sharing

__all__ = ["World", "join_world"]

TIMEOUT = 300.0  # seconds; all processes wait about one for the checkpoint of a large network


@dataclass(frozen=True)
class World:
    """The processes that share a run, and which of them this is; by default one process alone.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes.
        backend: The backend of torch.distributed; None for one process.

    Example:
        >>> World().leads, World().exchange("alone")
        (True, ['alone'])
    """

    rank: int = 0
    size: int = 1
    backend: str | None = None

    @property
    def leads(self) -> bool:
        """Whether this process writes the files and prints."""
        return self.rank == 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Share batches and gradients inside the block."""
        with use_sharing(_Shared(self) if self.size > 1 else Sharing()):
            yield

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """If one process fails inside the block, all others fail after it."""
        problem = None
        try:
            yield
        except Exception as error:
            problem = str(error) or type(error).__name__
            raise
        finally:
            problems = self.exchange(problem)
        for rank, text in enumerate(problems):
            if text is not None:
                raise RuntimeError(f"Process {rank} of {self.size} stopped: {text}")

    def exchange(self, value: Any) -> list[Any]:
        """Return every process's value, by rank; values must be plain, as in JSON."""
        if self.size == 1:
            return [value]
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [int(length) for length in self.gather(torch.tensor([len(data)]), [1] * self.size)]
        return [json.loads(part.numpy().tobytes()) for part in self.gather(data, lengths).split(lengths)]

    def share_state(self, state: dict[str, Any] | None) -> dict[str, Any]:
        """Return the state of process 0: nested dictionaries and lists of tensors and plain values."""
        tensors: dict[str, Tensor] = {}
        packed = pack_state(state, "", tensors) if self.leads else None
        about = [(name, str(tensor.dtype), list(tensor.shape)) for name, tensor in tensors.items()]
        packed, about = self.exchange([packed, about])[0]
        for name, dtype, shape in about:
            if not self.leads:
                tensors[name] = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            raw = tensors[name].view(-1).view(torch.uint8)
            if self.size > 1 and len(raw):
                self._call(dist.broadcast, raw, 0)
        shared: dict[str, Any] = unpack_state(packed, tensors)
        return shared

    def gather(self, part: Tensor, sizes: Sequence[int]) -> Tensor:
        """Concatenate the parts of all processes; ``sizes`` are their lengths."""
        padded = part.new_zeros(max(sizes), *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in sizes]
        self._call(dist.all_gather, parts, padded)
        return torch.cat([whole[:size] for whole, size in zip(parts, sizes, strict=True)])

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the processes, in place."""
        self._call(dist.all_reduce, tensor)
        return tensor

    def _call(self, collective: Callable[..., Any], *arguments: Any) -> None:
        try:
            collective(*arguments)
        except RuntimeError as error:
            reason = str(error).strip().split("\n")[0]
            raise RuntimeError(
                f"Process {self.rank} of {self.size} has lost another one, which stopped or did not answer in time. "
                f"Records so far are on disk: start all processes again with --resume. ({reason})"
            ) from error


@contextmanager
def join_world(device: str = "cpu", *, timeout: float = TIMEOUT) -> Iterator[World]:
    """Join the other processes that torchrun started, inside the block, by gloo on CPUs and NCCL on GPUs.

    Args:
        device: ``"cpu"``, or ``"cuda"`` for one GPU per process, which becomes torch's current one.
        timeout: Seconds to wait for a process that does not answer.

    Raises:
        ValueError: The process was not started by torchrun, ``device`` names one GPU, or there are too few GPUs.
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
        if place >= count:
            raise ValueError(
                f"Expected a GPU for each process, but this machine has {count} and this is its process {place + 1}. "
                f"Start {count} of them, or use --device cpu."
            )
        torch.cuda.set_device(place)
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    # Functions there have the group as a default argument if imported after it exists (a first optimiser does that).
    # Kept so, its threads outlive it and may abort the process when Python ends.
    importlib.import_module("torch.distributed.nn.functional")
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    yield World(dist.get_rank(), dist.get_world_size(), backend)
    dist.destroy_process_group()  # not after an error: it could wait for processes that ended


class _Shared(Sharing):
    """Between passes: batches are split, gradients averaged."""

    is_shared = True

    def __init__(self, world: World) -> None:
        self.world = world

    def split(self, forward: Callable[[Tensor], Tensor], images: Tensor, views: int = 1) -> Tensor:
        batch = len(images) // views
        if batch < self.world.size:  # not worth splitting: each process computes all of it
            return forward(images)
        part = _Pass(self.world, batch, views, images.device)
        # Nothing is mixed: BatchNorm of every kind asks the hook for its statistics.
        with use_sharing(part), MixedStatistics(share=0.0):
            return part.whole_batch(forward(part.take(images)))

    def average(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        if not gradients:
            return []
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        parts = self.world.sum_(flat).div_(self.world.size).split([gradient.numel() for gradient in gradients])
        return [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)]


class _Pass(_Shared):
    """Inside a pass: this process computes some rows of each view of the batch."""

    def __init__(self, world: World, batch: int, views: int, device: torch.device) -> None:
        super().__init__(world)
        small, more = divmod(batch, world.size)
        self.sizes = [small + (rank < more) for rank in range(world.size)]  # rows by process
        self.weights = torch.tensor(self.sizes, dtype=torch.float64).div_(batch).to(device, non_blocking=True)
        self.views = views

    @property
    def own(self) -> int:
        """Number of rows of this process in each view."""
        return self.sizes[self.world.rank]

    def take(self, batch: Tensor) -> Tensor:
        """This process's rows of all views."""
        start = sum(self.sizes[: self.world.rank])
        rows = slice(start, start + self.own)
        if self.views == 1:
            return batch[rows]
        own: Tensor = batch.unflatten(0, (self.views, -1))[:, rows].flatten(0, 1)
        return own

    def whole_batch(self, rows: Tensor) -> Tensor:
        if self.views == 1:
            return self._gather(rows, self.sizes)
        rows = rows.unflatten(0, (self.views, -1)).transpose(0, 1)
        return self._gather(rows, self.sizes).transpose(0, 1).flatten(0, 1)

    def whole_length(self, rows: Tensor) -> int:
        return len(rows) // self.own * sum(self.sizes)

    def noise_like(self, x: Tensor) -> Tensor:
        """Every process draws for the whole batch and keeps what belongs to its rows."""
        rows = self.views * self.own
        if len(x) % rows:
            raise RuntimeError(
                f"Expected {rows} rows or a multiple, the same number per image, but a layer gave {tuple(x.shape)}."
            )
        block = len(x) // rows
        last = x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
        whole = torch.empty(
            (self.views * sum(self.sizes) * block, *x.shape[1:]),
            dtype=x.dtype,
            device=x.device,
            memory_format=torch.channels_last if last else torch.contiguous_format,  # numbers are drawn in memory order
        ).normal_()
        if block == 1:
            return self.take(whole).clone()  # a view would keep the noise of the whole batch until the backward pass
        return self.take(whole.unflatten(0, (-1, block))).flatten(0, 1)

    def var_mean(
        self, x: Tensor, dims: list[int], *, correction: int = 1, keepdim: bool = False
    ) -> tuple[Tensor, Tensor]:
        mean = x.mean(dims, keepdim=True)
        variance = (x - mean.detach()).square().mean(dims, keepdim)  # several times as fast as torch.var_mean on a CPU
        mean = mean if keepdim else mean.view_as(variance)
        count = x.numel() // mean.numel() // self.own * sum(self.sizes)
        parts = self._gather(torch.stack([variance, mean]).unsqueeze(0), [1] * self.world.size)
        weights = self.weights.to(mean.dtype).view(-1, *[1] * mean.ndim)
        variances, means = parts.unbind(1)
        mean = (weights * means).sum(0)
        variance = (weights * (variances + (means - mean).square())).sum(0)
        return variance * (count / (count - correction)) if correction else variance, mean

    def _gather(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        whole: Tensor = _Gather.apply(rows, self.world, sizes)
        return whole


class _Gather(torch.autograd.Function):
    """The rows of all processes; the gradient of a process's rows is the sum over all processes that used them."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, world: World, sizes: Sequence[int]) -> Tensor:
        ctx.world, ctx.sizes = world, sizes
        return world.gather(rows, sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        total = ctx.world.sum_(grad.contiguous().clone())
        return total.split(list(ctx.sizes))[ctx.world.rank], None, None

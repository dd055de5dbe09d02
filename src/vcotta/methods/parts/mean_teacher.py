"""Mean teachers: the teacher's moving average, and the restoration of some of the student's weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.bayes import inverse_softplus, variational_parameters
from vcotta.nn.elementwise import alike, flat, for_each_layer, fused, shaped

__all__ = [
    "fisher_information",
    "quantile",
    "restore_least",
    "restore_randomly",
    "restore_tensors",
    "smallest",
    "student_and_teacher",
    "update_teacher",
]


def student_and_teacher(model: nn.Module, frozen: Sequence[Tensor] = ()) -> dict[str, nn.Module]:
    """The networks of a mean-teacher method: the model, trained, and a copy, its average, without gradients.

    Tensors in ``frozen`` are not trained, and both networks hold the same ones.
    """
    kept = {id(tensor): tensor for tensor in frozen}
    teacher = copy.deepcopy(model, dict(kept)).requires_grad_(False)
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) not in kept)
    return {"student": model, "teacher": teacher}


@torch.no_grad()
def update_teacher(
    teacher: nn.Module,
    student: nn.Module,
    beta: float,
    done: Tensor | None = None,
    *,
    compiled: bool = False,
    named: Callable[[str], bool] = lambda name: True,
) -> None:
    r"""Exponential moving average, in place: teacher <- beta * teacher + (1 - beta) * student (paper, Eq. update_tea).

    Means and point parameters are averaged as they are. Of a variational network the **standard deviation** is
    averaged, not rho: :math:`\bar\sigma \leftarrow \beta\bar\sigma + (1-\beta)\sigma`. Buffers stay, and so do tensors
    that both networks share.

    Args:
        teacher: The average.
        student: What is averaged.
        beta: Decay.
        done: Whether to update, a scalar on the device; None for yes.
        compiled: Compile the arithmetic of standard deviations, which is faster on a GPU.
        named: Whether to update the parameter of a name; by default all.

    Example:
        >>> teacher, student = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(teacher.weight), nn.init.ones_(student.weight)
        >>> update_teacher(teacher, student, beta=0.75)
        >>> teacher.weight.item()
        0.25
    """
    if beta == 1:
        return  # rho would change by rounding
    rhos = {id(rho) for _, _, rho in variational_parameters(teacher)}
    both = zip(teacher.named_parameters(), student.parameters(), strict=True)
    pairs: list[tuple[Tensor, Tensor]] = [(old, new) for (name, old), new in both if old is not new and named(name)]
    if not pairs:
        return
    taken = torch.ones((), dtype=torch.bool, device=pairs[0][0].device) if done is None else done
    share = torch.full((), 1 - beta, device=taken.device)  # compiled code is valid for one number or any tensor
    points = [pair for pair in pairs if id(pair[0]) not in rhos]
    if points:
        olds, news = map(list, zip(*points, strict=True))
        averages = torch._foreach_lerp(olds, news, 1 - beta)
        chosen = [torch.where(taken, average, old) for average, old in zip(averages, olds, strict=True)]
        torch._foreach_copy_(olds, chosen)
    deviations = [pair for pair in pairs if id(pair[0]) in rhos]
    dense = [pair for pair in deviations if compiled and alike(*pair)]
    rest = [pair for pair in deviations if not (compiled and alike(*pair))]
    rhos_now = [shaped(fused(_average_rho)(flat(old), flat(new), share, taken), old) for old, new in dense]
    rhos_now += [one for (one,) in for_each_layer(lambda old, new: (_average_rho(old, new, 1 - beta, taken),), rest)]
    if rhos_now:
        torch._foreach_copy_([old for old, _ in (*dense, *rest)], rhos_now)


def _average_rho(old: Tensor, new: Tensor, share: Tensor | float, taken: Tensor) -> Tensor:
    """The rho of the average standard deviation, or the old one, to the bit, if the average is not to be taken."""
    return torch.where(taken, inverse_softplus(torch.lerp(F.softplus(old), F.softplus(new), share)), old)


@torch.no_grad()
def restore_randomly(student: nn.Module, source: nn.Module, share: float, done: Tensor) -> None:
    """Return each weight of the student to the source's value with probability ``share``, if ``done`` (CoTTA)."""
    restore_tensors(student.parameters(), source.parameters(), share, done)


@torch.no_grad()
def restore_tensors(tensors: Iterable[Tensor], originals: Iterable[Tensor], share: float, done: Tensor) -> None:
    """Return each element of ``tensors`` to that of ``originals`` with probability ``share``, if ``done``, in place."""
    if share:
        for tensor, original in zip(tensors, originals, strict=True):
            mask = torch.rand_like(tensor, dtype=torch.float32) < share
            tensor.copy_(torch.where(mask & done, original, tensor))


@contextmanager
def fisher_information(optimizer: torch.optim.Optimizer | None) -> Iterator[list[Tensor]]:
    """Inside the block, collect the squared gradients of all parameters at the optimiser's next step."""
    assert optimizer is not None
    fisher: list[Tensor] = []

    def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        fisher.extend(torch.zeros_like(p) if p.grad is None else p.grad.square() for p in parameters)

    hook = optimizer.register_step_pre_hook(keep)
    try:
        yield fisher
    finally:
        hook.remove()


@torch.no_grad()
def restore_least(student: nn.Module, source: nn.Module, fisher: list[Tensor], delta: float, done: Tensor) -> None:
    """Return the weights whose Fisher information is below the delta-quantile to the source's, if ``done`` (PETAL)."""
    if not delta:
        return
    least = quantile(torch.cat([information.flatten() for information in fisher]), delta)
    for parameter, original, information in zip(student.parameters(), source.parameters(), fisher, strict=True):
        parameter.copy_(torch.where((information < least) & done, original, parameter))


@torch.no_grad()
def quantile(values: Tensor, share: float) -> Tensor:
    """``torch.quantile`` (linear interpolation) of non-negative values, without its limit of 16 million values."""
    values = values.flatten()
    rank = share * (values.numel() - 1)
    below = int(rank)
    fast = values.is_cuda and values.dtype == torch.float32
    lower = smallest(values, below) if fast else values.kthvalue(below + 1).values
    following = torch.where(values > lower, values, torch.inf).amin()
    upper = torch.where((values <= lower).sum() > below + 1, lower, following)
    return torch.lerp(lower, upper, rank - below) if rank > below else lower


def smallest(values: Tensor, rank: int) -> Tensor:
    """The value with ``rank`` others before it in ascending order, of non-negative float32 values, exactly.

    Read as integers, the bits of non-negative floats are ordered as the floats are: 31 halvings of the integer range,
    each with a count over all values, leave one. On a GPU torch's ``kthvalue`` is slower: it runs in a single block.
    """
    bits = values.view(torch.int32)
    low = torch.zeros((), dtype=torch.int32, device=values.device)
    high = torch.full_like(low, torch.iinfo(torch.int32).max)
    for _ in range(31):
        middle = low + (high - low) // 2
        enough = (bits <= middle).sum() > rank
        low, high = torch.where(enough, low, middle + 1), torch.where(enough, middle, high)
    return low.view(torch.float32)

"""Forward passes that collect BatchNorm's statistics of single images, replace those of a network, or correct them."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from vcotta.nn.batch_norm import Correction, normalise
from vcotta.nn.sharing import current

__all__ = ["Corrected", "Known", "Pool"]


class BatchNormMode(TorchFunctionMode):
    """Replaces ``F.batch_norm``, in which every kind of BatchNorm ends, where the source's statistics are known."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.replace(*args, **(kwargs or {})) if func is F.batch_norm else func(*args, **(kwargs or {}))

    def replace(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Call `normalised` where the source's statistics would be used."""
        if training or running_mean is None or running_var is None:
            return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        return self.normalised(x, running_mean, running_var, weight, bias, eps)

    def normalised(
        self, x: Tensor, known_mean: Tensor, known_variance: Tensor, weight: Any, bias: Any, eps: float
    ) -> Tensor:
        """Normalise a batch in a layer whose statistics in the source are known."""
        raise NotImplementedError


class Known(BatchNormMode):
    """A pass with the source's statistics that collects them."""

    def __init__(self) -> None:
        super().__init__()
        self._found: list[Tensor] = []

    def normalised(
        self, x: Tensor, known_mean: Tensor, known_variance: Tensor, weight: Any, bias: Any, eps: float
    ) -> Tensor:
        """Normalise by the source's statistics, and note them."""
        self._found.append(torch.stack([known_mean, known_variance + known_mean.square()]))
        return F.batch_norm(x, known_mean, known_variance, weight, bias, False, 0.0, eps)

    @property
    def layers(self) -> int:
        """How many times a layer normalised a batch."""
        return len(self._found)

    def known(self) -> Tensor:
        """See `vcotta.nn.class_statistics.ClassStatistics.known`."""
        last = len(self._found) - 1
        rows = [
            torch.cat([moments, torch.full_like(moments[:1], (last - layer) / last if last else 0.0)])
            for layer, moments in enumerate(self._found)
        ]
        return torch.cat(rows, 1) if rows else torch.empty(3, 0)


class Pool(BatchNormMode):
    """A pass with the statistics of a pool: images and memory by their weights, and the source for the rest.

    The moments of the pool are the sum of its parts'; those that do not depend on the batch are added up beforehand.

    Args:
        per_image: Weights of the images among images and memory, (batch,).
        shares: The share of images and memory for each channel of all layers; the rest is the source's.
        remembered: The memory's sums by the weights of its classes, (columns,); None without a memory.
        known: `vcotta.nn.class_statistics.ClassStatistics.known`.
    """

    def __init__(self, per_image: Tensor, shares: Tensor, remembered: Tensor | None, known: Tensor) -> None:
        super().__init__()
        channels = known.shape[1]
        rest = (1 - shares) * known[:2]
        if remembered is not None:
            rest = rest + shares * remembered[1 : 1 + 2 * channels].view(2, channels)
        self._weights = shares.unsqueeze(1) * per_image  # (channels, batch); a layer's channels have the same ones
        self._rest, self._used = rest, 0
        self._moments: list[tuple[Tensor, Tensor]] = []
        self._pooled: list[tuple[Tensor, Tensor]] = []
        self._eps: list[float] = []
        self._first: Tensor | None = None

    def normalised(
        self, x: Tensor, known_mean: Tensor, known_variance: Tensor, weight: Any, bias: Any, eps: float
    ) -> Tensor:
        """Normalise by the pool's statistics, and note the images' own."""
        with torch.autocast(x.device.type, enabled=False):
            moments = _moments(x, known_mean.dtype)
            rest = self._rest[:, self._used : self._used + len(known_mean)]
            weights = self._weights[self._used]
            mean, second = (torch.addmv(r, m.T, weights) for r, m in zip(rest, moments, strict=True))
            variance = torch.addcmul(second, mean, mean, value=-1).clamp_min_(0)
        if self._first is None:
            deviation = known_variance.clamp_min(1e-12).sqrt()
            shift = (moments[0] - known_mean) / deviation
            square = (moments[1] - 2 * known_mean * moments[0] + known_mean.square()) / deviation.square()
            self._first = torch.cat([shift, square.clamp_min(1e-4).log()], 1)
        self._used += len(known_mean)
        self._moments.append(moments)
        self._pooled.append((mean, variance))
        self._eps.append(eps)
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)

    @property
    def features(self) -> int:
        """The number of features of the first layer."""
        return 0 if self._first is None else self._first.shape[1]

    @cached_property
    def rows(self) -> Tensor:
        """For each image what the memory adds up."""
        ones = self._weights.new_ones(self._weights.shape[1], 1)
        if self._first is None:
            return ones
        first, second = zip(*self._moments, strict=True)
        return torch.cat([ones, *first, *second, self._first, self._first.square()], 1)

    def correction(self) -> Correction:
        """What turns activations normalised by the batch's statistics into those of this pass."""
        if not self._pooled:
            return []
        sizes = [len(mean) for mean, _ in self._pooled]
        first, second = self.rows[:, 1 : 1 + 2 * sum(sizes)].mean(0).chunk(2)
        mean, variance = (torch.cat(parts) for parts in zip(*self._pooled, strict=True))
        eps = _repeated(tuple(self._eps), tuple(sizes), mean.device, mean.dtype)
        deviation = (variance + eps).sqrt()
        own = (torch.addcmul(second, first, first, value=-1).clamp_min(0) + eps).sqrt()
        return list(zip((own / deviation).split(sizes), ((first - mean) / deviation).split(sizes), strict=True))


@lru_cache(maxsize=16)
def _repeated(values: tuple[float, ...], times: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Each value so many times, kept on the device: a copy in every step would make the host wait."""
    with torch.inference_mode(False):
        return torch.tensor(values).repeat_interleave(torch.tensor(times)).to(device, dtype)


class Corrected(BatchNormMode):
    """Inside the block a network normalises a batch by its own statistics, and then corrects them.

    Gradients pass through the batch's statistics as usual. A layer that sees one value per channel, which has no
    variance, uses the source's statistics.
    """

    def __init__(self, correction: Correction) -> None:
        super().__init__()
        self.correction, self._layer = correction, 0

    def normalised(
        self, x: Tensor, known_mean: Tensor, known_variance: Tensor, weight: Any, bias: Any, eps: float
    ) -> Tensor:
        """Normalise by the batch, and correct."""
        scale, offset = self.correction[self._layer]
        self._layer += 1
        sharing = current()
        if sharing.whole_length(x) * x[0, 0].numel() == 1:
            return F.batch_norm(x, known_mean, known_variance, weight, bias, False, 0.0, eps)
        if weight is not None:
            scale, offset = scale * weight, offset * weight
        offset = offset if bias is None else offset + bias
        if not sharing.is_shared:
            return F.batch_norm(x, None, None, scale, offset, True, 0.0, eps)
        precise = x.to(torch.promote_types(x.dtype, scale.dtype))
        variance, mean = sharing.var_mean(precise, [0, *range(2, x.ndim)], correction=0)
        return normalise(x, mean, variance, scale, offset, eps)


def _moments(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Mean and mean square of each image's channels, (batch, channels) each, of the whole batch."""
    dtype = torch.promote_types(x.dtype, dtype)
    if x.ndim == 2:
        first, second = x.to(dtype), x.to(dtype).square()
    else:
        dims = list(range(2, x.ndim))
        first = x.mean(dims, dtype=dtype)
        second = torch.linalg.vector_norm(x, dim=dims, dtype=dtype).square_() / x[0, 0].numel()
    if not current().is_shared:
        return first, second
    whole = current().whole_batch(torch.stack([first, second], 1))
    return whole[:, 0], whole[:, 1]

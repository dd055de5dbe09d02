"""BN: statistics of the test batch in every BatchNorm layer (Schneider et al., 2020; Nado et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vcotta._util.validation import NonNegativeInt, UnitInterval
from vcotta.methods.base import Adapter
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.registry import register_method
from vcotta.nn.batch_norm import MixedStatistics, SavedStatistics, batch_norms

__all__ = ["BN", "BNConfig"]


@dataclass(frozen=True)
class BNConfig(StreamSettings):
    """Settings of BN.

    Attributes:
        statistics: ``batch``: mean and biased variance of the batch (Nado et al.; the usual baseline). ``prior``: a
            mixture of the source's and the batch's, without memory (Schneider et al.). ``ema``: running statistics that
            start at the source's and keep moving (re-implementation by Döbler et al.). ``inferred``: see
            `StreamSettings`.
        alpha: Share of the batch in ``prior`` (0.1, for batches of one image; re-implementation). For batches of 200
            nothing is published; of 0.1, 0.5 and 0.9 we found 0.5 by far the best on held-out corruptions.
        prior_images: N, the number of images that the source's statistics count for in ``prior``: a batch of n has the
            share n / (n + N), whatever ``alpha`` is (paper). None for ``alpha``.
        momentum: Share of the batch in each move of ``ema`` (0.1, torch's default).
    """

    statistics: Literal["batch", "prior", "ema", "inferred"] = "batch"  # type: ignore[assignment]
    alpha: UnitInterval = 0.1
    prior_images: NonNegativeInt | None = None
    momentum: UnitInterval = 0.1


@register_method
class BN(Adapter):
    r"""Statistics of the current batch replace or move the source's; nothing is trained.

    With ``statistics="prior"`` a layer normalises by :math:`\mu = (1-\alpha)\mu_S + \alpha\mu_B` and
    :math:`\sigma^2 = (1-\alpha)\sigma_S^2 + \alpha\sigma_B^2` with the batch's unbiased variance, as the source's is;
    ``batch`` uses the biased one. ``prior`` suits single images too. All kinds of BatchNorm are mixed; the
    re-implementation mixes BatchNorm2d alone.

    With ``statistics="ema"`` one pass, normalised by the batch, moves the running statistics, and a second predicts
    with them, as in the re-implementation. A batch of one moves nothing, nor does one that would make a statistic not
    finite (``last["skipped"]``).

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> BN(net, BNConfig(statistics="prior", prior_images=16))(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "bn"
    summary = "batch statistics, nothing trained"
    card = Card(
        "NeurIPS 2020",
        "nothing",
        "nothing",
        "1 forward; 2 with `ema`",
        "official code",
        distributed=True,
        without_batch_norm="has nothing to do there and predicts as the network does. Choose a method that trains "
        "other layers, such as cotta or vcotta.",
    )
    Config = BNConfig

    def setup(self, model: nn.Module) -> None:
        """For ``ema`` keep a network that moves its statistics; else the start network is enough."""
        if self.config.statistics != "ema":
            return
        self.networks = {"model": model}
        for norm in batch_norms(model):
            if norm.running_mean is not None:
                norm.track_running_stats, norm.momentum = True, self.config.momentum

    @torch.no_grad()
    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict with the statistics of the batch, or with the running ones that it moved."""
        if (share := self._share(len(images))) < 1:
            with MixedStatistics(share):
                return self.logits(self.start, images, batch_statistics=False).log_softmax(-1)
        if self.config.statistics != "ema":
            return self.source_logits(images).log_softmax(-1)
        model = self.networks["model"]
        if len(images) > 1:
            self._move(model, images)
        return self.logits(model, images, batch_statistics=False).log_softmax(-1)

    def _share(self, count: int) -> float:
        """All, or that of ``prior``."""
        if self.config.statistics != "prior":
            return 1.0
        prior = self.config.prior_images
        return float(self.config.alpha) if prior is None else count / (count + prior)

    def _move(self, model: nn.Module, images: Tensor) -> None:
        """Let one pass move the running statistics; all stay as they were if one is no longer finite."""
        before = SavedStatistics(model)
        self.logits(model, images)
        buffers = [buffer.isfinite().all() for norm in batch_norms(model) for buffer in norm.buffers()]
        if buffers:
            finite = torch.stack(buffers).all()
            before.restore(unless=finite)
            self.note(skipped=~finite)

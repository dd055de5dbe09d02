"""BN: statistics of the test batch in every BatchNorm layer (Schneider et al., 2020; Nado et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vcotta.batch_norm import batch_norms
from vcotta.fields import check_fields
from vcotta.methods.base import Adapter
from vcotta.methods.facts import Facts

__all__ = ["BN", "BNConfig"]


@dataclass(frozen=True)
class BNConfig:
    """Settings of BN.

    Attributes:
        statistics: ``batch``: mean and biased variance of the batch (Nado et al.; the usual baseline). ``prior``: a
            mixture of the source's and the batch's, nothing of which is remembered (Schneider et al.). ``ema``: running
            statistics that start at the source's and go on moving (re-implementation by Döbler et al.).
        alpha: Share of the batch in ``prior`` (0.1, for batches of one image; re-implementation). For batches of 200
            nothing is published; of 0.1, 0.5 and 0.9 the half was by far the best on held-out corruptions.
        prior_images: N, how many images the source's statistics are worth in ``prior``: a batch of n then has the share
            n / (n + N), whatever ``alpha`` is (paper). None for ``alpha``.
        momentum: Share of the batch in each move of ``ema`` (0.1, torch's default).
    """

    statistics: Literal["batch", "prior", "ema"] = "batch"
    alpha: float = 0.1
    prior_images: int | None = None
    momentum: float = 0.1

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("alpha", "momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Expected `{name}` to lie in [0, 1], but got {getattr(self, name)}.")
        if self.prior_images is not None and self.prior_images < 0:
            raise ValueError(f"Expected `prior_images` to be at least 0, but got {self.prior_images}.")


class BN(Adapter):
    r"""Statistics of the current batch replace or move the source's; nothing is trained.

    With ``statistics="prior"`` a layer normalises by :math:`\mu = (1-\alpha)\mu_S + \alpha\mu_B` and
    :math:`\sigma^2 = (1-\alpha)\sigma_S^2 + \alpha\sigma_B^2`, where the batch's variance is the unbiased one, as the
    source's is; for more than one image :math:`\alpha = 1` is ``batch``, whose variance is biased. It is meant for
    single images too. All kinds of BatchNorm are mixed; the re-implementation mixes BatchNorm2d alone.

    With ``statistics="ema"`` one pass, normalised by the batch, moves the running statistics, and a second predicts
    with them, as in the re-implementation. A batch of one moves nothing, and neither does one that would leave a
    statistic that is not finite (``last["skipped"]``).

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> BN(net)(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
        >>> BN(net, BNConfig(statistics="prior", prior_images=16))(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "bn"
    summary = "batch statistics, nothing trained"
    facts = Facts("NeurIPS 2020", "nothing", "nothing", "1 forward; 2 with `ema`", "official code", distributed=True)
    Config = BNConfig

    def setup(self, model: nn.Module) -> None:
        """Keep nothing beside the start network, but for ``ema`` a network that moves its statistics."""
        if self.config.statistics != "ema":
            return
        self.networks = {"model": model}
        for norm in batch_norms(model):
            if norm.running_mean is not None:
                norm.track_running_stats, norm.momentum = True, self.config.momentum

    @torch.no_grad()
    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict with the statistics of the batch, or with those that it moved."""
        if self.config.statistics != "ema":
            return self.logits(self.start, images).log_softmax(-1)
        model = self.networks["model"]
        if len(images) > 1:
            self._move(model, images)
        return self.logits(model, images, batch_statistics=False).log_softmax(-1)

    def share_of_batch(self, count: int) -> float:
        """All, or that of ``prior``."""
        if self.config.statistics != "prior":
            return super().share_of_batch(count)
        prior = self.config.prior_images
        return float(self.config.alpha) if prior is None else count / (count + prior)

    def _move(self, model: nn.Module, images: Tensor) -> None:
        """Let one pass move the running statistics; all stay as they were if one is not finite any more."""
        before = [buffer.clone() for buffer in model.buffers()]
        self.logits(model, images)
        after = list(model.buffers())
        if after:
            finite = torch.stack([buffer.isfinite().all() for buffer in after]).all()
            torch._foreach_copy_(after, [torch.where(finite, new, old) for new, old in zip(after, before, strict=True)])
            self.note(skipped=~finite)

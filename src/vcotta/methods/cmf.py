"""CMF: ROID's losses and a Kalman filter over the parameters (Lee and Chang, ICLR 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from vcotta._util.validation import NonNegative, UnitInterval
from vcotta.methods.card import Card
from vcotta.methods.registry import register_method
from vcotta.methods.roid import ROID, ROIDConfig

__all__ = ["CMF", "CMFConfig"]

_REFERENCE_SIZE = 38_400  # parameters in the LayerNorms of a ViT-B/16, for which the noise was set
_LOWEST_GAIN, _SURE = 0.89, 0.9999


@dataclass(frozen=True)
class CMFConfig(ROIDConfig):
    """Settings of CMF: those of `ROIDConfig` and two more, from the re-implementation by ROID's authors.

    Attributes:
        source_momentum: gamma: share of the adapted parameters when they are mixed with the hidden ones (0.99).
        alpha: Share of the hidden parameters that stays when they move back to the source (0.99).
        noise: Variance q that a step adds, for 38400 normalisation parameters; scaled with their number (0.005).
    """

    alpha: UnitInterval = 0.99
    noise: NonNegative = 0.005


@register_method
class CMF(ROID):
    r"""`ROID`, pulled not to the source but to a hidden model that a Kalman filter infers from the adapted ones.

    Hidden parameters :math:`\theta_h`, at first the source's, and their scalar variance P, at first 0, are predicted
    and then corrected by the adapted parameters, an observation with variance :math:`1 - q`:

    .. math::
        \theta_h &\leftarrow \alpha \theta_h + (1 - \alpha) \theta_0, \quad P \leftarrow \alpha^2 P + q \\
        \beta &= \frac{1 - q}{P + 1 - q}, \quad
        \theta_h \leftarrow \beta \theta_h + (1 - \beta) \theta, \quad P \leftarrow \beta P \\
        \theta &\leftarrow \gamma \theta + (1 - \gamma) \theta_h

    with :math:`\beta` at least 0.89, and 1 from 0.9999 on. Loss, prediction and differences from the official code are
    those of `ROID`. Only trained parameters are filtered. A reset also returns P to 0; the re-implementation keeps it.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> sorted(CMF(net).memory)
        ['hidden', 'variance']
    """

    name = "cmf"
    summary = "ROID's losses, parameters filtered towards a drifting source"
    card = Card(
        "ICLR 2024", "normalisation", "nothing", "2 forwards, 1 backward", "re-implementation", distributed=True
    )
    Config = CMFConfig
    datasets: ClassVar = ROID.datasets

    def setup(self, model: nn.Module) -> None:
        """As `ROID`, with the hidden parameters at the source's and no variance."""
        super().setup(model)
        if self.trained:
            self.memory["hidden"] = parameters_to_vector(self.sources)
            self.memory["variance"] = torch.zeros((), dtype=self.runtime.dtype, device=self.runtime.device)

    @torch.no_grad()
    def _ensemble(self, usable: Tensor) -> None:
        """Predict and correct the hidden parameters, then mix the adapted ones with them."""
        config, hidden, variance = self.config, self.memory["hidden"], self.memory["variance"]
        adapted = parameters_to_vector(self.trained)
        q = config.noise * adapted.numel() / _REFERENCE_SIZE

        predicted = torch.lerp(hidden, parameters_to_vector(self.sources), 1 - config.alpha)
        expected = config.alpha**2 * variance + q
        beta = ((1 - q) / (expected + 1 - q)).clamp_min(_LOWEST_GAIN)
        beta = torch.where(beta < _SURE, beta, 1.0)
        refined = torch.lerp(predicted, adapted, 1 - beta)
        mixed = torch.lerp(adapted, refined, 1 - config.source_momentum)

        self.note(beta=beta)
        self.memory["variance"] = torch.where(usable, beta * expected, variance)
        self.memory["hidden"] = torch.where(usable, refined, hidden)
        self._write(torch.where(usable, mixed, adapted))

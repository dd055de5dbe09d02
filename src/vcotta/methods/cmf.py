"""CMF: ROID's losses and a Kalman filter over the parameters (Lee and Chang, ICLR 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from vcotta.methods.facts import Facts
from vcotta.methods.roid import ROID, ROIDConfig

__all__ = ["CMF", "CMFConfig"]

_REFERENCE_SIZE = 38_400  # parameters in the LayerNorms of a ViT-B/16, for which the noise was set
_LOWEST_GAIN, _SURE = 0.89, 0.9999


@dataclass(frozen=True)
class CMFConfig(ROIDConfig):
    """Settings of CMF; those of ROID, defaults for CIFAR10-C from the re-implementation by ROID's authors.

    Attributes:
        lr: Step size (CIFAR 1e-3, ImageNet-C 2.5e-4).
        optimizer: ``adam`` for CIFAR, ``sgd`` for ImageNet-C.
        probability_momentum: Decay of the average prediction that diversity is measured against (0.9).
        temperature: Of the weights by certainty and diversity (1/3).
        prior_correction: What the batch's class prior multiplies in the returned prediction, as in `ROIDConfig`
            (``logits``).
        flip: Whether views may mirror the image.
        source_momentum: gamma: share of the adapted parameters when they are mixed with the hidden ones (0.99).
        alpha: How much of the hidden parameters stays when they drift back to the source (0.99).
        noise: Variance q that a step adds, for a network whose normalisation has 38400 parameters; it is scaled with
            their number (0.005).
    """

    alpha: float = 0.99
    noise: float = 0.005

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"Expected `alpha` to lie in [0, 1], but got {self.alpha}.")
        if self.noise < 0:
            raise ValueError(f"Expected `noise` to be at least 0, but got {self.noise}.")


class CMF(ROID):
    r"""`ROID`, pulled not to the source but to a hidden model that a filter infers from the adapted ones.

    Hidden parameters :math:`\theta_h`, which start at the source's, and their scalar variance P, which starts at 0, are
    predicted and then corrected by the adapted parameters, an observation with variance :math:`1 - q`:

    .. math::
        \theta_h &\leftarrow \alpha \theta_h + (1 - \alpha) \theta_0, \quad P \leftarrow \alpha^2 P + q \\
        \beta &= \frac{1 - q}{P + 1 - q}, \quad
        \theta_h \leftarrow \beta \theta_h + (1 - \beta) \theta, \quad P \leftarrow \beta P \\
        \theta &\leftarrow \gamma \theta + (1 - \gamma) \theta_h

    with :math:`\beta` at least 0.89, and 1 from 0.9999 on. Loss, prediction and deviations are those of `ROID`. Only
    trained parameters are filtered: the others never leave the source. A reset also returns P to 0, which the
    re-implementation forgets.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = CMF(net)
        >>> _ = adapter(torch.rand(4, 3, 8, 8))
        >>> sorted(adapter.memory)
        ['average_prediction', 'hidden', 'variance']
    """

    name = "cmf"
    summary = "ROID's losses, parameters filtered towards a drifting source"
    facts = Facts(
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

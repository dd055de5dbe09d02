"""VCL: each batch's posterior is the prior of the next (after Nguyen et al., ICLR 2018), as an ablation of VCoTTA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from vcotta._util.validation import between
from vcotta.methods.card import Preset
from vcotta.methods.registry import register_method
from vcotta.methods.vcotta import VCoTTA, VCoTTAConfig

__all__ = ["VCL", "VCLConfig"]

Nought = Annotated[float, between(0, 0)]


def _without_prior(preset: Preset) -> Preset:
    """VCoTTA's preset without its prior and its guard, which would hide what the prior does."""

    def rest(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name not in ("alpha", "beta")}

    datasets = {name: rest(settings) for name, settings in preset.datasets.items()}
    return replace(preset, settings=rest(preset.settings), datasets=datasets, guarded=False)


@dataclass(frozen=True)
class VCLConfig(VCoTTAConfig):
    """Settings of VCL: those of `VCoTTAConfig`, with the prior fixed.

    Attributes:
        alpha: 0: the source is no prior.
        beta: 0: the teacher is the student of the batch before.
    """

    alpha: Nought = 0.0
    beta: Nought = 0.0


@register_method
class VCL(VCoTTA):
    r"""VCoTTA whose only prior is the posterior of the batch before, as in variational continual learning.

    .. math:: q_t = \operatorname{argmin}_q \mathrm{CE}(\bar p' \to q) + \mathrm{KL}(q \| q_{t-1}) / \lambda

    where :math:`q_{t-1}` also gives the prediction returned and, over views, the target :math:`\bar p'`. It is VCoTTA
    with ``alpha=0`` and ``beta=0``, and has no options of its own. The VCoTTA paper argues against this rule: without
    labels, errors enter the posterior, which passes them on as the next prior.

    VCL was published for supervised tasks, each trained to convergence from :math:`q_{t-1}`. Here a batch takes one
    step, as everywhere, and at :math:`q = q_{t-1}` the gradient of the divergence is zero: this prior holds nothing
    back. The posterior is that of VCoTTA's warm-up; there are no coresets. The presets are VCoTTA's ``best``
    and ``paper``, with this prior and without a guard, so that each can be compared with VCoTTA's own.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from vcotta.bayes import to_variational
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> VCL(to_variational(net), VCLConfig(views=2))(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "vcl"
    summary = "VCoTTA with the previous posterior as its only prior"
    card = replace(VCoTTA.card, venue="ICLR 2018")
    Config: ClassVar[type[Any]] = VCLConfig
    presets: ClassVar = {name: _without_prior(VCoTTA.presets[name]) for name in ("best", "paper")}

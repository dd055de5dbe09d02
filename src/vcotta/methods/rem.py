"""REM: predictions of masked images follow, and their entropies stay in order (Han et al., ICML 2025)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from vcotta._util.validation import NonNegative, at_least, below
from vcotta.methods.base import Adapter
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.layers import train_early_normalisation
from vcotta.methods.parts.losses import cross_entropy, entropy
from vcotta.methods.parts.tokens import catch_attention, keep_patches, require_tokens
from vcotta.methods.registry import register_method

__all__ = ["REM", "REMConfig", "least_attended"]


@dataclass(frozen=True)
class REMConfig(StreamSettings):
    """Settings of REM, the official code's; they are the same for CIFAR and ImageNet-C.

    Attributes:
        lr: Step size of Adam (1e-3).
        share: m: each further level drops this share of the patches (0.1).
        levels: n: levels of masking, the whole image among them (3: nothing, 10 % and 20 %).
        ranking: lambda: weight of the ranking loss (1).
        margin: By how much entropies must differ, as a share of log C (0).
    """

    lr: NonNegative = 1e-3
    share: Annotated[float, at_least(0), below(1)] = 0.1
    levels: Annotated[int, at_least(2)] = 3
    ranking: NonNegative = 1.0
    margin: NonNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share * (self.levels - 1) >= 1:
            raise ValueError(
                f"Expected `share` times `levels` - 1 to be less than 1, so that patches are left, but got "
                f"{self.share} times {self.levels - 1}."
            )


@register_method
class REM(Adapter):
    r"""Predict harder versions of an image as the easier ones, and be no less sure of the easier ones.

    Level i drops the share :math:`i m` of an image's patches, those that the class token attends to most in the last
    block; level 0 is the whole image. With :math:`p_i` and :math:`H_i` its prediction and entropy, and means over the
    batch,

    .. math:: L = \sum_{j < i} \mathrm{CE}(\bar p_j \to p_i)
        + \lambda \sum_{j < i} \max(0, H_j - \bar H_i + \epsilon \log C)

    where a bar stops the gradient. Scale and shift of the early normalisation layers are trained (see
    `train_early_normalisation`). What is returned is :math:`p_0`, from before the step. The method needs a vision
    transformer: it refuses networks without tokens, as the official code has nothing for them.

    Differs from the official code: in its CIFAR scripts a wrapper renames the last norm, which is then trained against
    the rule that the code states; here it never is.

    Example:
        >>> from vcotta.models import ViT
        >>> adapter = REM(ViT(depth=2, width=8, heads=2))
        >>> adapter(torch.rand(4, 3, 32, 32)).shape
        torch.Size([4, 10])
    """

    name = "rem"
    summary = "ranked entropies of images with masked patches; vision transformers only"
    card = Card("ICML 2025", "normalisation", "nothing", "3 forwards, 1 backward", "official code")
    Config = REMConfig
    needs_tokens = True
    datasets: ClassVar = {"digits": {"lr": 3e-4, "share": 0.05}}

    def setup(self, model: nn.Module) -> None:
        """Let scale and shift of the early normalisation layers require gradients, nothing else."""
        require_tokens(model, self.name, "Choose another method for it.")
        self.networks = {"model": model}
        self.make_optimizer(train_early_normalisation(model, "REM"), "adam", self.config.lr)

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict the whole images, then the masked ones, and take one step."""
        config, model = self.config, self.networks["model"]
        with catch_attention(model) as caught:
            whole = self.logits(model, images).log_softmax(-1)
        levels = [whole]
        for level in range(1, config.levels):
            with keep_patches(model, least_attended(caught[0], level * config.share)):
                levels.append(self.logits(model, images).log_softmax(-1))
        pairs = [(easy, hard) for place, hard in enumerate(levels) for easy in levels[:place]]
        consistency = torch.stack([cross_entropy(easy.detach(), hard).mean() for easy, hard in pairs]).sum()
        apart = config.margin * math.log(whole.shape[-1])
        excess = [(entropy(easy) - entropy(hard).detach() + apart).relu().mean() for easy, hard in pairs]
        disorder = torch.stack(excess).sum()
        self.minimise(consistency + config.ranking * disorder)
        self.note(consistency=consistency.detach(), disorder=disorder.detach())
        return whole


def least_attended(attention: Tensor, dropped: float) -> Tensor:
    """Return the numbers of the patches that stay, (batch, patches), when a share of the most attended is dropped.

    Example:
        >>> least_attended(torch.tensor([[0.4, 0.1, 0.3, 0.2]]), 0.25)
        tensor([[1, 3, 2]])
    """
    kept = max(1, int(attention.shape[1] * (1 - dropped)))
    order: Tensor = attention.argsort(stable=True, dim=1)
    return order[:, :kept]

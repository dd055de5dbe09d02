"""SANTA: source anchoring and target alignment (Chakrabarty, Sreenivas and Biswas, TMLR 2023)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vcotta._util.validation import NonNegative, Positive
from vcotta.methods.base import Adapter
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.class_features import make_projector, prototype_contrast, source_prototypes
from vcotta.methods.parts.layers import classifier, train_only_normalisation
from vcotta.methods.parts.losses import cross_entropy
from vcotta.methods.registry import register_method
from vcotta.nn.optim import OptimizerName
from vcotta.nn.views import random_view

__all__ = ["SANTA", "SANTAConfig"]


@dataclass(frozen=True)
class SANTAConfig(StreamSettings):
    """Settings of SANTA; defaults for CIFAR10-C from the code the authors contributed to the TTA benchmark of RMT.

    Attributes:
        lr: Step size (CIFAR 1e-3, ImageNet-C 0.01).
        optimizer: ``adam`` for CIFAR, ``sgd`` for ImageNet-C.
        anchor: Weight of the source anchoring (1). The paper prints the sum of the two halves: 2.
        contrast: Weight of the contrastive loss (1).
        temperature: Of the contrastive loss (0.1).
        flip: Whether views may mirror the image (yes); not where left and right matter, as in digits.
    """

    lr: NonNegative = 1e-3
    optimizer: OptimizerName = "adam"
    anchor: NonNegative = 1.0
    contrast: NonNegative = 1.0
    temperature: Positive = 0.1
    flip: bool = True


@register_method
class SANTA(Adapter):
    r"""Stay near the source's prediction for the batch, and draw features to the nearest source prototype.

    With p and p~ the predictions for an image and one random view of it, and a that of the source network normalised by
    the same batch, the normalisation layers and a projector minimise

    .. math:: L = \lambda_a \Big(-\tfrac12 \sum_c p_c \log a_c - \tfrac12 \sum_c \tilde p_c \log a_c\Big)
        + \lambda_c L_{con}(\pi, h, \tilde h),

    where :math:`L_{con}` is `contrastive_loss` of three views of each image: its nearest source prototype, its features
    and those of the view. The anchor stands inside the logarithm: the minimum is at the anchor's most likely class, not
    at its distribution. The prediction is p, from before the step.

    This follows the authors' contribution to the TTA benchmark of RMT, which the official repository names as its code.
    The paper prints the anchoring without the halves and the contrastive loss without its minus sign.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = SANTA(net.append(nn.Linear(4, 2)))
        >>> adapter.prepare([(torch.rand(6, 3, 8, 8), torch.arange(6) % 2)])
        >>> adapter(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "santa"
    summary = "source anchoring and prototype alignment"
    card = Card(
        "TMLR 2023", "normalisation", "class prototypes", "3 forwards, 1 backward", "official code", distributed=True
    )
    Config = SANTAConfig
    datasets: ClassVar = {"imagenet": {"lr": 0.01, "optimizer": "sgd"}, "digits": {"lr": 0.01, "flip": False}}
    needs_source = True

    def setup(self, model: nn.Module) -> None:
        """Train scale and shift of the normalisation layers and the projector; the start network is the anchor."""
        trained = train_only_normalisation(model, "SANTA")
        projector = self.runtime.place(make_projector(classifier(model).in_features))
        self.networks = {"model": model, "projector": projector}
        if trained:
            self.make_optimizer([*trained, *projector.parameters()], self.config.optimizer, self.config.lr)

    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """The class prototypes."""
        return {"prototypes": source_prototypes(self, source)}

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, then one step towards anchor and prototypes."""
        config, model = self.config, self.networks["model"]
        features, logits = self.features_and_logits(model, images)
        log_probs = logits.log_softmax(-1)
        if self.optimizer is None:
            return log_probs
        view = random_view(images, flip=config.flip)
        features_of_view, logits_of_view = self.features_and_logits(model, view)
        with torch.no_grad():
            anchor = self.source_logits(images).log_softmax(-1)
        anchoring = 0.5 * (cross_entropy(log_probs, anchor) + cross_entropy(logits_of_view.log_softmax(-1), anchor))
        loss = config.anchor * anchoring.mean()
        if config.contrast:
            loss = loss + config.contrast * prototype_contrast(
                self.networks["projector"], self.prepared["prototypes"], features, features_of_view, config.temperature
            )
        self.note(anchoring=anchoring.mean().detach())
        self.minimise(loss)
        return log_probs

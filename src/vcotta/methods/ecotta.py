"""EcoTTA: small meta networks beside a frozen network, for little memory (Song et al., CVPR 2023)."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vcotta._util.validation import Count, NonNegative, Settings
from vcotta.methods.base import Adapter
from vcotta.methods.card import Card
from vcotta.methods.parts.attached import Part, PartShape, attach, find_blocks, measure_parts, train_on_source, under
from vcotta.methods.parts.losses import entropy
from vcotta.methods.parts.reliable import entropy_ceiling, is_below, masked_mean
from vcotta.methods.registry import register_method
from vcotta.nn.batch_norm import freeze_statistics, moving_statistics
from vcotta.nn.inputs import check_labels
from vcotta.nn.optim import OptimizerName, make_optimizer
from vcotta.nn.views import strong_view

__all__ = ["ECoTTA", "ECoTTAConfig", "MetaNetwork", "MetaPart", "partition"]

_PUBLISHED = {  # blocks of WRN-28, ResNet-50 and WRN-40 in each part
    (12, 4): [2, 2, 4, 4],
    (12, 5): [2, 2, 2, 2, 4],
    (16, 4): [3, 3, 5, 5],
    (16, 5): [2, 2, 4, 4, 4],
    (18, 4): [3, 3, 6, 6],
    (18, 5): [3, 3, 3, 3, 6],
}


@dataclass(frozen=True)
class ECoTTAConfig(Settings):
    """Settings of EcoTTA; defaults from the third-party code, for CIFAR100-C and a WRN-40.

    Its BatchNorm layers are not those of the source network, so it has neither inferred statistics nor a label prior.

    Attributes:
        lr: Step size at test time (5e-3).
        optimizer: ``momentum``: SGD with momentum 0.9.
        parts: K, the number of parts with a meta network; fewer in a network of fewer blocks (5).
        margin: E_0 as a share of log C: only images of lower entropy count in the entropy (0.4).
        regularisation: lambda: weight of the distance to the frozen network (0.25).
        warm_up_epochs: Epochs on labelled source data before testing (CIFAR 10, ImageNet 3).
        warm_up_lr: Their step size; the first epoch has half of it, where the third-party code rises linearly (0.05).
        schedule: ``steps``: a fifth of the step size after 3, 6 and 8 tenths of the epochs (CIFAR). ``cosine``
            (ImageNet).
    """

    lr: NonNegative = 5e-3
    optimizer: OptimizerName = "momentum"
    parts: Count = 5
    margin: NonNegative = 0.4
    regularisation: NonNegative = 0.25
    warm_up_epochs: Count = 10
    warm_up_lr: NonNegative = 0.05
    schedule: Literal["steps", "cosine"] = "steps"


class MetaNetwork(nn.Module):
    r"""What is trained beside a part E: :math:`m(x) = BN_a(E(x)) + ReLU(BN_b(Conv_{3 \times 3}(x)))`."""

    def __init__(self, shape: PartShape) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(shape.outputs)
        self.conv = nn.Conv2d(shape.inputs, shape.outputs, 3, shape.stride, padding=1, bias=False)
        self.side_norm = nn.BatchNorm2d(shape.outputs)

    def forward(self, x: Tensor, output: Tensor) -> Tensor:
        """Return m(x), given E(x) as ``output``."""
        side = F.relu(self.side_norm(self.conv(x)))
        if side.shape != output.shape:  # the part rounds odd sides down
            side = F.adaptive_avg_pool2d(side, (output.shape[2], output.shape[3]))
        changed: Tensor = self.norm(output) + side
        return changed


class MetaPart(Part):
    """A part that stores nothing but its input for the backward pass, which then runs it again.

    Attributes:
        adapts: Whether to do so, and to measure the distance; off in the warm-up.
        distance: The mean of ``|m(x) - E(x)|`` in the latest pass, with a gradient for this meta network alone.
    """

    adapts: bool = True
    distance: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Run the blocks and the meta network."""
        if not (self.adapts and torch.is_grad_enabled()):
            return super().forward(x)
        changed: Tensor
        changed, self.distance = checkpoint(self._with_distance, x, use_reentrant=False, preserve_rng_state=False)
        return changed

    def _with_distance(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output = self.blocks(x)
        alone = self.attached(x.detach(), output.detach())
        return self.attached(x, output), (alone - output.detach()).abs().mean()


@register_method
class ECoTTA(Adapter):
    r"""Meta networks beside the parts of the frozen source network minimise entropy and stay near what is frozen.

    The blocks of the network form K parts :math:`E_k`. Each gets a meta network, and the part's output becomes

    .. math:: m_k(x) = BN_a(E_k(x)) + ReLU(BN_b(Conv_{3 \times 3}(x))).

    The meta networks are warmed up on labelled, augmented source images with the cross-entropy. At test time they alone
    take one step per batch on the entropy H of the images below :math:`E_0`, and on self-distilled regularisation:

    .. math:: L = \mathrm{mean}_{H_i < E_0} H_i
        + \lambda \sum_k \mathrm{mean} |m_k(x_k) - E_k(x_k)|, \quad E_0 = 0.4 \log C,

    in which no gradient reaches :math:`x_k`. The prediction returned is from before the step. All BatchNorm layers use
    the statistics of the batch.

    **Memory** is the point: source weights are held once and never copied, and of every part only its input is stored
    for the backward pass, which runs the part again. Gradients are exact; the price is that pass. While a part is run
    again its own activations are there, those of one part at a time.

    Written from a third-party code (Lily-Le/EcoTTA), as there is no official one. It differs: there the regularisation
    takes a step of its own, before a second forward pass for the entropy, while the paper presents one loss, as here;
    running statistics move there at test time; activations of frozen layers are stored there. Blur in the warm-up
    reaches further than its 3 x 3 pixels. In a network without residual blocks each convolution is a block.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = ECoTTA(net)
        >>> adapter.prepare([(torch.rand(8, 3, 8, 8), torch.arange(8) % 2)])
        >>> adapter(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "ecotta"
    summary = "meta networks beside a frozen network; little memory"
    card = Card(
        "CVPR 2023",
        "attached modules",
        "a labelled warm-up",
        "1 forward, 1 backward that runs the parts again",
        "re-implementation",
    )
    Config = ECoTTAConfig
    datasets: ClassVar = {"imagenet": {"warm_up_epochs": 3, "schedule": "cosine"}}
    needs_source = True

    def setup(self, model: nn.Module) -> None:
        """Attach the meta networks as the warm-up left them; before it there are none."""
        if not self.prepared:
            return
        self.parts = self._attach(model, [_shape(self.prepared, place) for place in range(len(self._sizes()))])
        for place, part in enumerate(self.parts):
            part.attached.load_state_dict(under(self.prepared, f"meta.{place}."))
        freeze_statistics(model)
        self.networks = {"model": model}
        self.make_optimizer(_trained(self.parts), self.config.optimizer, self.config.lr)

    def frozen(self) -> list[Tensor]:
        """The whole source network."""
        return [*self.start.parameters(), *self.start.buffers()]

    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """The meta networks after the warm-up, and the strides of their convolutions."""
        config, model = self.config, copy.deepcopy(self.start, {id(tensor): tensor for tensor in self.frozen()})
        first = next(iter(source))[0]
        with torch.no_grad():
            shapes = measure_parts(model, self._sizes(), lambda: self.logits(model, first))
        parts = self._attach(model, shapes)
        freeze_statistics(model)
        for part in parts:
            part.adapts = False
        optimizer = make_optimizer(_trained(parts), config.optimizer, 0.0)

        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            view = self.runtime.place_images(strong_view(images, flip=False, jittered=0.4, greyed=0.1, blurred=0.2))
            logits = self.logits(model, view)
            check_labels(labels, len(images), logits.shape[-1])
            return F.cross_entropy(logits, labels)

        with moving_statistics(*(part.attached for part in parts)):
            train_on_source(optimizer, source, _rates(config), loss_of)
        learned = {f"stride.{place}": torch.tensor(shape.stride) for place, shape in enumerate(shapes)}
        for place, part in enumerate(parts):
            learned |= {f"meta.{place}.{name}": tensor for name, tensor in part.attached.state_dict().items()}
        return learned

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, then one step of the meta networks."""
        config = self.config
        log_probs = self.logits(self.networks["model"], images).log_softmax(-1)
        distances = [part.distance for part in self.parts if part.distance is not None]
        for part in self.parts:
            part.distance = None
        distance = torch.stack(distances).sum()
        entropies = entropy(log_probs)
        kept = is_below(entropies.detach(), entropy_ceiling(config.margin, log_probs))
        loss = masked_mean(entropies, kept) + config.regularisation * distance
        self.minimise(loss, when=None if config.regularisation else kept.any())
        self.note(kept=kept.float().mean(), distance=distance.detach())
        return log_probs

    def _sizes(self) -> list[int]:
        """How many blocks each part has."""
        names = find_blocks(self.start)
        if isinstance(self.start.get_submodule(names[0]), nn.modules.conv._ConvNd):
            return [1] * min(len(names), self.config.parts)  # other layers lie between them
        return partition(len(names), self.config.parts)

    def _attach(self, model: nn.Module, shapes: list[PartShape]) -> list[MetaPart]:
        metas = [self.runtime.place(MetaNetwork(shape)) for shape in shapes]
        return attach(model, self._sizes(), metas, MetaPart)


def partition(blocks: int, parts: int) -> list[int]:
    """Return how many blocks each part has: the published numbers, else the same for all but a longer last part.

    Example:
        >>> partition(12, 5), partition(9, 5), partition(3, 5)
        ([2, 2, 2, 2, 4], [1, 1, 1, 1, 5], [1, 1, 1])
    """
    parts = min(blocks, parts)
    each = blocks // parts
    return _PUBLISHED.get((blocks, parts), [each] * (parts - 1) + [blocks - each * (parts - 1)])


def _rates(config: ECoTTAConfig) -> list[float]:
    """The step size of each epoch of the warm-up."""
    rates = []
    for epoch in range(config.warm_up_epochs):
        done = epoch / config.warm_up_epochs
        cosine = 0.5 + 0.5 * math.cos(math.pi * done)
        share = cosine if config.schedule == "cosine" else 0.2 ** sum(done >= after for after in (0.3, 0.6, 0.8))
        rates.append(config.warm_up_lr * share * (1.0 if epoch else 0.5))
    return rates


def _trained(parts: list[MetaPart]) -> list[Tensor]:
    return [parameter for part in parts for parameter in part.attached.parameters()]


def _shape(prepared: dict[str, Tensor], place: int) -> PartShape:
    """The shape of a part, from its prepared meta network."""
    outputs, inputs = prepared[f"meta.{place}.conv.weight"].shape[:2]
    return PartShape(inputs, outputs, int(prepared[f"stride.{place}"]))

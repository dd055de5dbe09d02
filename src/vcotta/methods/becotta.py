"""BECoTTA, a reconstruction: experts blended by routers of pseudo-domains (after Lee, Yoon and Hwang, ICML 2024)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta._util.validation import Count, NonNegative, UnitInterval
from vcotta.methods.base import Adapter
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.attached import Part, attach, measure_parts, stage_sizes, train_on_source, under
from vcotta.methods.parts.losses import entropy
from vcotta.methods.parts.mean_teacher import restore_randomly
from vcotta.methods.parts.reliable import entropy_ceiling, is_below, masked_mean
from vcotta.methods.registry import register_method
from vcotta.nn.batch_norm import freeze_statistics
from vcotta.nn.inputs import check_labels
from vcotta.nn.optim import OptimizerName, make_optimizer
from vcotta.nn.sharing import current

__all__ = ["PSEUDO_DOMAINS", "BECoTTA", "BECoTTAConfig", "Blended", "Experts", "synergy_loss"]

PSEUDO_DOMAINS = {
    "source": lambda images: images,
    "grey": lambda images: images.mean(1, keepdim=True).expand_as(images),
    "dark": torch.square,
    "pale": torch.sqrt,
}
"""The copies of the source images; none of them is a corruption of the benchmarks."""


@dataclass(frozen=True)
class BECoTTAConfig(StreamSettings):
    """Settings of the reconstruction of BECoTTA.

    Attributes:
        lr: Step size at test time (ours, TENT's).
        optimizer: ``adam``, as in the released code.
        experts: E, the number of experts (6, size M of the released code).
        active: K, how many of them an image uses (3).
        width: How many times narrower an expert is than what it is attached to (32, the ratio of size M).
        margin: Share of log C below which an image's entropy must be for it to be learned from (ours, EATA's 0.4).
        restore: Probability that a weight returns to its value after the warm-up (0.01).
        warm_up_epochs: Epochs on labelled source data before testing (ours).
        warm_up_lr: Their step size (ours).
        domain: Weight of the domain classifier's loss in the warm-up (0.1).
        synergy: Weight of `synergy_loss` in the warm-up (0.0005).
    """

    lr: NonNegative = 1e-3
    optimizer: OptimizerName = "adam"
    experts: Count = 6
    active: Count = 3
    width: Count = 32
    margin: NonNegative = 0.4
    restore: UnitInterval = 0.01
    warm_up_epochs: Count = 5
    warm_up_lr: NonNegative = 1e-3
    domain: NonNegative = 0.1
    synergy: NonNegative = 5e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.active > self.experts:
            raise ValueError(f"Expected `active` to be at most `experts`, {self.experts}, but got {self.active}.")


class Experts(nn.Module):
    """Low-rank experts, blended for each image by the router of its pseudo-domain.

    Attributes:
        domain: The pseudo-domain of each image of the batch at hand, (batch,).
        scores: The experts' scores in the latest pass, (batch, experts), with their gradient.
    """

    domain: Tensor | None = None
    scores: Tensor | None = None

    def __init__(self, channels: int, experts: int, active: int, width: int) -> None:
        super().__init__()
        self.experts, self.active, self.rank = experts, active, max(1, channels // width)
        self.down = nn.Conv2d(channels, experts * self.rank, 1)
        self.up = nn.Conv2d(experts * self.rank, channels, 1, bias=False)
        self.router = nn.Linear(channels, len(PSEUDO_DOMAINS) * 2 * experts, bias=False)
        nn.init.zeros_(self.up.weight)  # so that the network is the source's at first

    def forward(self, x: Tensor, output: Tensor) -> Tensor:
        """Add the blend to a stage's output."""
        hidden = F.gelu(self.down(output)).unflatten(1, (self.experts, self.rank))
        blended = hidden * self.gates(output)[:, :, None, None, None].to(hidden.dtype)
        added: Tensor = self.up(blended.flatten(1, 2))
        return output + added

    def gates(self, output: Tensor) -> Tensor:
        """The weight of each expert for each image, (batch, experts): ``active`` of them, adding up to 1."""
        assert self.domain is not None
        routed = self.router(output.mean((2, 3))).unflatten(1, (len(PSEUDO_DOMAINS), 2, self.experts))
        clean, spread = routed[torch.arange(len(routed), device=routed.device), self.domain].unbind(1)
        self.scores = clean + current().noise_like(clean) * (F.softplus(spread) + 0.01)
        lowest = self.scores.topk(self.active).values[:, -1:]
        return self.scores.masked_fill(self.scores < lowest, -torch.inf).softmax(-1)


class Blended(nn.Module):
    """The source network with experts after its stages, and the classifier of pseudo-domains that picks the router."""

    def __init__(self, source: nn.Module, stages: list[Experts], channels: int) -> None:
        super().__init__()
        self.source, self.stages = source, stages  # a plain list: the experts are modules of the source already
        layers: list[nn.Module] = []
        for inputs, outputs in ((channels, 8), (8, 16), (16, 32)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
        self.domains = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, len(PSEUDO_DOMAINS)))
        self.chosen: int | None = None

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits; ``chosen`` takes the place of the classifier's pseudo-domains."""
        if self.chosen is None:
            with torch.no_grad():
                domain = self.domains(images).argmax(-1)
        else:
            domain = torch.full((len(images),), self.chosen, device=images.device)
        for experts in self.stages:
            experts.domain = domain
        logits: Tensor = self.source(images)
        return logits

    @property
    def experts(self) -> nn.ModuleList:
        """The experts of all stages."""
        return nn.ModuleList(self.stages)

    def pop_scores(self) -> list[Tensor]:
        """The experts' mean scores in the latest pass, for each stage."""
        found = []
        for experts in self.stages:
            assert experts.scores is not None
            found.append(experts.scores.mean(0))
            experts.scores = experts.domain = None
        return found


@register_method
class BECoTTA(Adapter):
    r"""Experts beside a frozen network, blended by routers of pseudo-domains.

    **A reconstruction.** The code that was released is for semantic segmentation with a SegFormer; the recipe for
    classification, of which results were published, is not public. This is the simplest method for classification that
    does what the abstract and that code do. Its errors say nothing about the original's.

    Before testing, experts, routers and a classifier of pseudo-domains are warmed up on labelled source images and
    copies of them in other styles, by cross-entropy, the classifier's loss and `synergy_loss`. At test time the
    classifier picks a router for each image, which blends K of E low-rank experts after every stage. Experts and
    routers take one step per batch on the network's own labels for images of entropy below :math:`E_0`; then each of
    their weights returns to its value after the warm-up with a small probability. The prediction returned is from
    before the step.

    As in the released code: bottlenecks added to a stage's output, GELU, noisy top-K routing with one router for each
    of four pseudo-domains, noise at test time too, sizes of M, weights of the losses, restoration. Ours, since nothing
    is known:

    * experts are 1 x 1 convolutions after each stage of residual blocks, or after each convolution; their last layer
      starts at zero and has no shift;
    * a router reads the average over pixels, and each image has its own gates, with gradient (the released code uses
      the first image's, and experts by number instead of by score);
    * pseudo-domains are the source images, grey, squared and square-rooted ones, instead of rain, night and fog;
    * the domain classifier averages over pixels and is trained with the cross-entropy; in the warm-up the router is
      that of the true pseudo-domain;
    * length, optimiser and step size of the warm-up, and the step size at test time;
    * labels are learned from where entropy is low (there: where confidence is above 0.69 and above the start's);
    * the classifier of classes is frozen, and BatchNorm uses the statistics of the batch.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = BECoTTA(net)
        >>> adapter.prepare([(torch.rand(8, 3, 8, 8), torch.arange(8) % 2)])
        >>> adapter(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "becotta"
    summary = "low-rank experts blended by routers of pseudo-domains"
    card = Card(
        "ICML 2024",
        "attached modules",
        "a labelled warm-up",
        "1 forward, 1 backward",
        "reconstruction",
        distributed=True,
    )
    Config = BECoTTAConfig
    needs_source = True

    def setup(self, model: nn.Module) -> None:
        """Attach experts and routers as the warm-up left them; before it there are none."""
        if not self.prepared:
            return
        widths = [int(width) for width in self.prepared["widths"]]
        net = self._blended(model, widths, int(self.prepared["domains.0.weight"].shape[1]))
        net.experts.load_state_dict(under(self.prepared, "experts."))
        net.domains.load_state_dict(under(self.prepared, "domains."))
        trained = net.requires_grad_(False).experts.requires_grad_(True)
        self.networks = {"model": net, "warmed": copy.deepcopy(trained).requires_grad_(False)}
        self.make_optimizer(trained.parameters(), self.config.optimizer, self.config.lr)

    def frozen(self) -> list[Tensor]:
        """The whole source network."""
        return [*self.start.parameters(), *self.start.buffers()]

    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Experts, routers and domain classifier after the warm-up."""
        config, model = self.config, copy.deepcopy(self.start, {id(tensor): tensor for tensor in self.frozen()})
        images = next(iter(source))[0]
        with torch.no_grad():
            shapes = measure_parts(model, stage_sizes(model), lambda: self.logits(model, images))
        net = self._blended(model, [shape.outputs for shape in shapes], images.shape[1])
        learned = [*net.experts.parameters(), *net.domains.parameters()]

        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            losses, scores = [], []
            for domain, change in enumerate(PSEUDO_DOMAINS.values()):
                view = self.runtime.place_images(change(images))
                net.chosen = domain
                logits = self.logits(net, view)
                check_labels(labels, len(images), logits.shape[-1])
                scores.append(torch.stack(net.pop_scores()))
                guess = self.runtime.forward(net.domains, view)
                losses.append(F.cross_entropy(logits, labels))
                losses.append(config.domain * F.cross_entropy(guess, torch.full_like(labels, domain).long()))
            together = torch.stack([synergy_loss(matrix) for matrix in torch.stack(scores, 1)]).mean()
            loss: Tensor = torch.stack(losses).sum() / len(PSEUDO_DOMAINS) + config.synergy * together
            return loss

        optimizer = make_optimizer(learned, config.optimizer, 0.0)
        train_on_source(optimizer, source, [config.warm_up_lr] * config.warm_up_epochs, loss_of)
        kept = {"widths": torch.tensor([shape.outputs for shape in shapes])}
        for name, module in (("experts", net.experts), ("domains", net.domains)):
            kept |= {f"{name}.{key}": tensor for key, tensor in module.state_dict().items()}
        return kept

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, one step of experts and routers, then restore some of their weights."""
        config, net = self.config, self.networks["model"]
        assert isinstance(net, Blended)
        log_probs = self.logits(net, images).log_softmax(-1)
        net.pop_scores()
        kept = is_below(entropy(log_probs.detach()), entropy_ceiling(config.margin, log_probs))
        done = self.minimise(masked_mean(-log_probs.amax(-1), kept), when=kept.any())
        restore_randomly(net.experts, self.networks["warmed"], config.restore, done)
        self.note(kept=kept.float().mean())
        return log_probs

    def _blended(self, model: nn.Module, widths: list[int], channels: int) -> Blended:
        config = self.config
        experts = [Experts(width, config.experts, config.active, config.width) for width in widths]
        attach(model, stage_sizes(model), experts, Part)
        net = Blended(model, experts, channels)
        freeze_statistics(self.runtime.place(net))
        return net


def synergy_loss(matrix: Tensor) -> Tensor:
    r"""Minus the mutual information of pseudo-domains and experts, from their scores M, (domains, experts).

    .. math:: L = -\sum_{de} M_{de} \log\Big(\frac{M_{de}}{P_d P_e} + 10^{-4}\Big)

    with M scaled to [0, 1], :math:`P_d` the softmax of its row sums and :math:`P_e` that of its column sums, each plus
    :math:`10^{-4}`, as in the released code. A constant matrix counts as zeros.
    """
    low, high = matrix.min(), matrix.max()
    scaled = (matrix - low) / (high - low).clamp_min(1e-6)
    of_domains, of_experts = (scaled.sum(dim).softmax(0) + 1e-4 for dim in (1, 0))
    information: Tensor = (scaled * (scaled / (of_domains[:, None] * of_experts[None, :]) + 1e-4).log()).sum()
    return information.neg()

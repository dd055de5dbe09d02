"""FOA: prompts found by an evolution strategy, and features shifted to the source's (Niu et al., ICML 2024)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from vcotta._util.validation import Count, NonNegative, NonNegativeInt, Positive, UnitInterval, at_least
from vcotta.methods.base import Adapter
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.cma_es import CMAES
from vcotta.methods.parts.layers import catch_features, classifier
from vcotta.methods.parts.losses import entropy
from vcotta.methods.parts.tokens import catch_class_tokens, insert_tokens, require_tokens
from vcotta.methods.registry import register_method

__all__ = ["FOA", "FOAConfig"]

_BATCH = 64  # for which the official code weighs the two parts of the fitness


@dataclass(frozen=True)
class FOAConfig(StreamSettings):
    """Settings of FOA; ImageNet-C's from the official code, which has none for CIFAR.

    Attributes:
        prompts: Number of prompt tokens (3). 0 shifts features only, in one pass; that works on any network whose last
            layer is linear.
        population: Prompts drawn for each batch (27, which is 4 + 3 log of their numbers, rounded down, for a ViT-B).
            None: by that rule for the network at hand.
        discrepancy: lambda: weight of the statistics in the fitness (0.4; 0.2 for ImageNet-R).
        memory: Share of the past in the moving mean of features (0.9).
        shift: How far features are moved towards the source's mean (1).
        step: Step size with which the search starts (1).
        source_images: Source images, without labels, whose statistics are taken (50 000).
    """

    prompts: NonNegativeInt = 3
    population: Annotated[int, at_least(4)] | None = None
    discrepancy: NonNegative = 0.4
    memory: UnitInterval = 0.9
    shift: NonNegative = 1.0
    step: Positive = 1.0
    source_images: Count = 50_000


@register_method
class FOA(Adapter):
    r"""Search for prompt tokens by their predictions alone, and shift features back to where the source's are.

    There is no backward pass, and no weight of the network changes. Of B images each candidate, some tokens between
    class token and patches, is one forward pass. With the class tokens of all blocks, their mean and deviation over the
    batch :math:`\mu, \sigma` and over source images :math:`\mu_0, \sigma_0`, the fitness of a candidate is

    .. math:: \sum_i H(p_i) + \lambda \frac{B}{64}
        \left(\lVert\sigma - \sigma_0\rVert^2 + \lVert\mu - \mu_0\rVert^2\right)

    `CMAES` draws the candidates, the best one of the batch before joins them, and the strategy learns from their
    order. What is returned is the prediction of the best candidate from features moved by ``shift`` times the source's
    mean less the moving mean of the features so far, none on the first batch. ``memory`` has that mean (``features``),
    whether there is one (``seen``), the last best prompts (``best``) and the search.

    On a network without tokens only the shift works: ``prompts=0``, the official ``foa_shift``; other settings are
    refused there. The features are what the last linear layer reads.

    Differs from the official code: the first candidates do not have the package ``cma``'s seed; of the candidates, one
    more than the population, the best ones get the weights; of a single image the deviations, which it does not have,
    are left out; a batch with a fitness that is not finite changes nothing.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
        >>> adapter = FOA(net, FOAConfig(prompts=0))
        >>> adapter.prepare([(torch.rand(8, 3, 8, 8), torch.zeros(8))])
        >>> adapter(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "foa"
    summary = "prompts found by an evolution strategy, features shifted; no backward pass; vision transformers only"
    card = Card("ICML 2024", "prompts", "moments of features", "28 forwards", "official code", distributed=True)
    Config = FOAConfig
    needs_source = True

    @property
    def needs_tokens(self) -> bool:  # type: ignore[override]
        """Whether there are prompts; True for the class itself."""
        return bool(self.config.prompts > 0)

    def frozen(self) -> list[Tensor]:
        """All of the source network: nothing of it changes."""
        return [*self.start.parameters(), *self.start.buffers()]

    def setup(self, model: nn.Module) -> None:
        """Start the search; the first best prompts are uniform, as a new layer's weights."""
        self.networks = {"model": model}
        width = classifier(model).in_features
        self.memory = {"features": torch.zeros(width, dtype=self.runtime.dtype), "seen": torch.tensor(False)}
        if self.needs_tokens:
            found: Any = require_tokens(model, self.name, "Pass prompts=0 to shift its features only.")
            width, patch = found.cls_token.shape[-1], found.patch_embed.proj.kernel_size
            self._strategy = CMAES(self.config.prompts * width, self.config.population)
            bound = (6 / (3 * patch[0] * patch[1] + width)) ** 0.5
            best = torch.empty(self._strategy.dimensions, dtype=torch.float64).uniform_(-bound, bound)
            self.memory |= {**self._strategy.start(step=self.config.step), "best": best}
        self.memory = self.placed(self.memory)

    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Mean and deviation of the class tokens, or of the features, over source images."""
        rows, left = [], self.config.source_images
        for images, _ in source:
            tokens, features, logits = self._forward(images[:left])
            if not torch.allclose(self._classify(features), logits, rtol=1e-2, atol=1e-2):
                raise ValueError(
                    f"Expected logits that are the output of the last linear layer, whose input {self.name} shifts, "
                    "but the network changes them further."
                )
            rows.append(tokens)
            left -= len(images)
            if left <= 0:
                break
        features = torch.cat(rows)
        if len(features) < 2 or not features.isfinite().all():
            raise ValueError(
                f"Expected finite features of two source images or more, but got those of {len(features)}. Give more "
                "source images, and check the network."
            )
        deviation, mean = torch.std_mean(features, 0)
        return {"mean": mean, "deviation": deviation}

    @torch.no_grad()
    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict with every candidate, return the best one's prediction, and learn from their order."""
        candidates, memory = self._candidates(), self.memory
        away = self.prepared["mean"][-len(memory["features"]) :] - memory["features"]
        shift = self.config.shift * memory["seen"] * away
        fitness, log_probs, means = [], [], []
        for prompts in candidates:
            tokens, features, logits = self._forward(images, prompts)
            fitness.append(self._fitness(tokens, logits))
            log_probs.append(self._classify(features + shift).log_softmax(-1))
            means.append(features.mean(0))
        values = torch.stack(fitness)
        done = values.isfinite().all()
        best = values.where(values.isfinite(), torch.inf).argmin()
        rate = torch.where(memory["seen"], 1 - self.config.memory, 1)
        new = {"features": torch.lerp(memory["features"], torch.stack(means).mean(0), rate), "seen": done}
        if self.needs_tokens:
            found = torch.stack([prompts.flatten() for prompts in candidates if prompts is not None])
            new |= self._strategy.tell(memory, found, values.where(done, 0), injected=1) | {"best": found[best]}
        self.memory = {name: torch.where(done, new[name], memory[name]) for name in memory}
        self.note(loss=values[best], skipped=~done, updated=done)
        return torch.stack(log_probs)[best]

    def _candidates(self) -> list[Tensor | None]:
        """Prompts to try, (prompts, width) each, the last best ones at the end; None for no prompts."""
        if not self.needs_tokens:
            return [None]
        drawn = torch.cat([self._strategy.ask(self.memory), self.memory["best"].unsqueeze(0)])
        return list(drawn.unflatten(1, (self.config.prompts, -1)))

    def _forward(self, images: Tensor, prompts: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Class tokens of all blocks, or features; features; and logits."""
        net = self.networks["model"]
        with torch.no_grad(), ExitStack() as stack:
            features = stack.enter_context(catch_features(net))
            tokens = stack.enter_context(catch_class_tokens(net)) if self.needs_tokens else features
            if prompts is not None:
                stack.enter_context(insert_tokens(net, prompts))
            logits = self.logits(net, images)
        return tokens[-1], features[-1], logits

    def _classify(self, features: Tensor) -> Tensor:
        """The logits of features."""
        return self.runtime.forward(classifier(self.networks["model"]), features.to(self.runtime.dtype))

    def _fitness(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """How unsure the predictions are, and how far the tokens' statistics are from the source's."""
        apart = (tokens.mean(0) - self.prepared["mean"]).square().sum()
        if len(tokens) > 1:
            apart = apart + (tokens.std(0) - self.prepared["deviation"]).square().sum()
        unsure = entropy(logits.log_softmax(-1)).sum()
        fitness: Tensor = unsure + self.config.discrepancy * len(tokens) / _BATCH * apart
        return fitness

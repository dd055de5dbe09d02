"""The adapter as the server sees it; nothing else here reaches into it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vcotta.methods import Adapter, build_adapter
from vcotta.runtime import Runtime
from vcotta.serve.bundle import Bundle

__all__ = ["Answer", "Engine"]


@dataclass(frozen=True)
class Answer:
    """What the adapter says of a batch, one row an image, on the CPU.

    Attributes:
        probabilities: (images, classes).
        entropy: Entropy of the prediction, in nats, (images,).
        more: Further numbers an image, by name: ``predictive_entropy``, ``expected_entropy``,
            ``mutual_information``, ``alpha``, ``abstain``.
        notes: What the step saw, plain values that JSON can hold.
    """

    probabilities: Tensor
    entropy: Tensor
    more: dict[str, Tensor]
    notes: dict[str, Any]

    def part(self, start: int, stop: int) -> Answer:
        """Return the rows of one request in a pooled batch."""
        rows = slice(start, stop)
        more = {name: values[rows] for name, values in self.more.items()}
        return Answer(self.probabilities[rows], self.entropy[rows], more, self.notes)


class Engine:
    """An adapter that either takes a whole step or is left as it was.

    Args:
        bundle: What to serve.
        runtime: Device and precision.
        trusted: The one factory outside vcotta, torchvision and timm that the bundle may name.
        pool: Images of the batches that are worth compiling for; None for the bundle's batch size.

    Attributes:
        adapter: The adapter.
    """

    adapter: Adapter

    def __init__(
        self, bundle: Bundle, runtime: Runtime | None = None, trusted: str | None = None, pool: int | None = None
    ) -> None:
        model = bundle.build_network(trusted)
        shared: dict[str, Any] = {"seed": bundle.seed, "runtime": runtime or Runtime()}
        self.adapter = build_adapter(
            bundle.method, model, guard=bundle.build_guard() or False, **shared, **bundle.settings
        )
        self.adapter.compile_for((bundle.batch_size if pool is None else pool, *bundle.preprocess.shape))
        if bundle.prepared:
            self.adapter.adopt(bundle.prepared)
        image = torch.zeros(1, *bundle.preprocess.shape)
        outputs = self.try_out(image).probabilities.shape[1]  # a network that takes no such images is told at the start
        if outputs != len(bundle.class_names):
            raise ValueError(f"Expected a network with {len(bundle.class_names)} outputs, but it has {outputs}.")

    def adapt(self, images: Tensor) -> Answer:
        """Predict a batch and adapt to it; if anything fails the adapter is as it was before."""
        before = self.adapter.state_dict()
        try:
            log_probs = self.adapter(images)
            answer = _answer(log_probs, _plain(self.adapter.last))
        except Exception:
            self.adapter.load_state_dict(before)
            raise
        return answer

    def try_out(self, images: Tensor) -> Answer:
        """Take a step and take it back, whether it fails or not."""
        before = self.adapter.state_dict()
        try:
            return _answer(self.adapter(images), _plain(self.adapter.last))
        finally:
            self.adapter.load_state_dict(before)

    def look(self, images: Tensor, coverage: float | None = None) -> Answer:
        """Predict a batch without adapting to it.

        Args:
            images: The batch.
            coverage: Share of images that shall be answered; the others are marked to abstain.
        """
        seen = self.adapter.predict(images, coverage=coverage)
        names = ("predictive_entropy", "expected_entropy", "mutual_information", "alpha", "abstain")
        more = {name: values.cpu() for name in names if (values := getattr(seen, name)) is not None}
        return _answer(seen.probabilities.log(), {}, **more)

    def reset(self) -> None:
        """Return to the start."""
        self.adapter.reset()

    @torch.no_grad()
    def drift(self) -> float:
        """How far the adapting network's parameters are from where they started, relative to their size then."""
        network = next(iter(self.adapter.networks.values()), self.adapter.start)
        starts = dict(self.adapter.start.named_parameters())
        pairs = [(starts[name], now) for name, now in network.named_parameters() if name in starts]
        if not pairs:
            return 0.0
        moved = torch.stack([(now - start).square().sum() for start, now in pairs]).sum()
        size = torch.stack([start.square().sum() for start, _ in pairs]).sum()
        return float((moved / size.clamp_min(1e-12)).sqrt())


def _answer(log_probs: Tensor, notes: dict[str, Any], **more: Tensor) -> Answer:
    probabilities = log_probs.double().exp().cpu()
    if not bool(probabilities.isfinite().all()):
        raise FloatingPointError("Expected probabilities, but the network's outputs are not finite.")
    return Answer(probabilities, torch.special.entr(probabilities).sum(-1), more, notes)


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: numbers that are none become None."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)

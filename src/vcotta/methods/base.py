"""The adapter contract: what every method shares, and the few functions each defines itself."""

from __future__ import annotations

import copy
import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from vcotta._util.tensorfile import tensors_sha256
from vcotta._util.validation import check_kind
from vcotta._util.warn import warn
from vcotta.bayes import is_variational
from vcotta.methods.card import Declared
from vcotta.methods.guard import Guard, Watch
from vcotta.methods.parts.losses import entropy
from vcotta.methods.passes import new_notes, read_notes
from vcotta.methods.prediction import RECENT, Prediction, abstain, check_request, decompose
from vcotta.methods.probe import IMAGES, LABELS, as_probe, check_probe
from vcotta.methods.state import adapter_state, load_adapter_state
from vcotta.methods.stream_classes import StreamClasses
from vcotta.nn.batch_norm import batch_norms, freeze_statistics, join_views, order_of_layers, use_batch_statistics
from vcotta.nn.distributed import World
from vcotta.nn.inputs import SourceBatches, check_accepted, check_images, check_learned, check_network
from vcotta.nn.mirroring import FirstBatches, look_at_mirrored
from vcotta.nn.optim import OptimizerName
from vcotta.nn.pooled_statistics import Known
from vcotta.nn.rng import OwnRng
from vcotta.nn.runtime import Runtime

__all__ = ["Adapter", "OptimizerName"]

P = ParamSpec("P")
R = TypeVar("R")


def _exclusive(function: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Let one thread at a time into an adapter, with inference mode off."""

    @functools.wraps(function)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock, torch.inference_mode(False):
            return function(self, *args, **kwargs)

    return call


class Adapter(Declared, StreamClasses, ABC):
    """A classifier that predicts a batch and then adapts to it.

    ``adapter(images)`` takes float images in [0, 1], (batch, channels, height, width), and returns log-probabilities,
    (batch, classes), of the prediction made before the update. The given model is copied, never changed. Random numbers
    come from the adapter's own stream (`vcotta.nn.rng.OwnRng`). Threads take turns, also with adapters of their own.

    With ``share_start`` the model is not copied but becomes ``start`` itself. Given another adapter's ``start``, many
    adapters hold the frozen network once; all of them must then run in one thread.

    A method declares the attributes of `Declared` and defines `setup`, `predict_and_adapt` and, if it learns from
    source data before testing, `learn_source`. Its state is what it assigns to ``networks``, ``optimizer`` and
    ``memory``. Input checks, modes, counting, reset and saving are done here.

    Attributes:
        start: The network as it was given, frozen: the source model.
        shares_start: Whether other adapters may hold the same ``start``.
        networks: The networks that change, by role.
        optimizer: The optimiser, or None.
        memory: Tensors carried between batches, by name; delete a key to drop one.
        prepared: What the method learned from source data, tensors by name; `reset` keeps them.
        world: The processes that share each batch, see `vcotta.methods.distribute`; by default this one alone.
        guard: Its protections, or None.
        last: Facts about the latest step: ``forwards`` and ``backwards`` (passes over the batch), ``skipped``, what the
            method notes (``loss``, ``alpha``, ...) and, if the guard acted, ``guard``: its ``causes`` (names of
            `Guard`'s fields, or ``"not finite"``) and its ``action``, see `vcotta.methods.guard.Action`.
        signals: The guard's signals on the latest step, by the names of its fields, and ``probe`` on a step with a look
            at it; empty before it judges.
        steps: Batches seen since the start.
        skipped: Batches whose update was dropped.
    """

    networks: dict[str, nn.Module]
    memory: dict[str, Tensor]
    prepared: dict[str, Tensor]
    guard: Guard | None
    last: dict[str, Any]
    signals: dict[str, float]
    steps: int
    skipped: int
    _shared_prepared: str | None
    _rng: OwnRng
    _recent: Tensor

    @torch.inference_mode(False)
    def __init__(
        self,
        model: nn.Module,
        config: Any = None,
        *,
        seed: int = 0,
        runtime: Runtime | None = None,
        guard: Guard | None = None,
        share_start: bool = False,
    ) -> None:
        self._lock = threading.RLock()
        check_network(model)
        if self.needs_variational and not is_variational(model):
            raise ValueError(
                f"Expected a variational network for {self.name}, but got a plain {type(model).__name__}. Warm it up "
                f"first, vcotta.warm_up(model, loader), or call build_adapter({self.name!r}, model, source=loader)."
            )
        check_kind("config", config, self.Config)
        check_kind("runtime", runtime, Runtime, f"Try Runtime(device={runtime!r}).")
        check_kind("guard", guard, Guard, "Try Guard().")
        self.runtime = (runtime or Runtime.on_device_of(model)).fit_for(model)
        accepted = (torch.float32, self.runtime.dtype)
        if other := next((p.dtype for p in model.parameters() if p.dtype not in accepted), None):
            raise ValueError(f"Expected a float32 network, but got parameters of {other}. Call model.float() first.")
        self.config = self.Config() if config is None else config
        self.seed = seed
        self.guard = guard
        self.shares_start = share_start
        self.start = self.runtime.place(model if share_start else copy.deepcopy(model)).requires_grad_(False)
        join_views(self.start)  # the model may be another adapter's
        freeze_statistics(self.start)
        if self.card.without_batch_norm and not any(batch_norms(self.start)):
            warn(f"{type(model).__name__} has no BatchNorm layer: {self.name} {self.card.without_batch_norm}")
        self._normalises = any(norm.running_mean is not None for norm in batch_norms(self.start))
        self._accepted: dict[tuple[int, ...], int] = {}  # classes by shape of the images
        self._notes = {}
        self._fixed_shape: tuple[int, ...] | None = None
        self.prepared, self._shared_prepared = {}, None
        self.world = World()
        self.reset()

    @abstractmethod
    def setup(self, model: nn.Module) -> None:
        """Make ``self.networks`` and ``self.optimizer`` from ``model``, a copy of the start network to keep.

        Its `frozen` tensors are those of the start network themselves.
        """

    @abstractmethod
    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Return the log-probabilities of valid images, (batch, classes), and adapt to them."""

    def frozen(self) -> list[Tensor]:
        """Return the tensors of ``start`` that all networks share, because they never change; here none."""
        return []

    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Return what the method learns from source data, tensors by name, for ``prepared``; here nothing.

        ``source`` yields (images, labels) on the device, the images checked. The adapter has just been reset.
        """
        return {}

    @property
    def uses_source(self) -> bool:
        """Whether the method learns from source data when it is given."""
        return self.needs_source

    @_exclusive
    def prepare(self, source: Iterable[tuple[Tensor, Tensor]], *, look: bool = True) -> None:
        """Learn from source data, and start anew with what was learned.

        Args:
            source: Yields (images, labels).
            look: Warn if views are mirrored, but left and right seem to matter in the first two hundred images, which a
                method that learns nothing from ``source`` reads for that alone, unless it is a generator.

        Raises:
            ValueError: If needed source data is missing, images or labels are unfit, or what is learned is not finite.
        """
        probe = {name: tensor for name, tensor in self.prepared.items() if name in (IMAGES, LABELS)}
        self.prepared = {}
        self.reset()
        self._notes = new_notes()
        batches = FirstBatches(SourceBatches(source, self.runtime, self._check_accepted), isinstance(source, Iterator))
        with self._rng.scope():
            learned = self.learn_source(batches)
            if look and getattr(self.config, "flip", False) and getattr(self.config, "views", 1):
                use_batch_statistics(self.start, False)
                look_at_mirrored(self.start, batches.kept(), self.runtime, f"{self.name} `flip=False`")
        check_learned(self.name, learned)
        self.adopt(learned | probe)

    @_exclusive
    def add_probe(self, images: Tensor, labels: Tensor) -> None:
        """Start anew with labelled images that the guard predicts now and then, see `vcotta.data.make_probe`.

        They go into ``prepared``, and so into saved adapters and bundles.

        Args:
            images: Bytes, (conditions, images, channels, height, width), the same images in each condition.
            labels: One for each image.

        Raises:
            ValueError: They do not fit together or the network, or the adapter has no guard.
        """
        classes = self._check_accepted(self._valid(images[0, :2].float() / 255)) if images.ndim == 5 else 0
        self.adopt(self.prepared | as_probe(self, images, labels, classes))

    @_exclusive
    def adopt(self, prepared: dict[str, Tensor], *, share: bool = False) -> None:
        """Start anew with ``prepared`` of another adapter of this method and network.

        With ``share`` the tensors are not copied, so that many adapters hold them once, and states have only a hash.
        """
        check_probe(prepared)
        detached = {name: tensor.detach() for name, tensor in prepared.items()}
        self.prepared = detached if share else self.placed(detached)
        self._shared_prepared = tensors_sha256(detached) if share else None
        self.reset()

    @_exclusive
    def __call__(self, images: Tensor) -> Tensor:
        """Predict a batch, adapt to it, and return the log-probabilities of the prediction."""
        images = self._valid(images)
        self._notes = new_notes()
        with self._rng.scope(), self.world.active(), torch.enable_grad():
            looked = self._look_at_classes(images)
            adapted = self.predict_and_adapt(images).detach()
            log_probs = self._learn_label_prior(adapted)
        self._recent = torch.cat([self._recent, entropy(adapted)])[-RECENT:]
        watched = {f"guard {key}": value for key, value in self._watched(images, adapted).items()}
        self.steps += 1
        read = read_notes(self._notes | watched)
        self.last = {key: value for key, value in read.items() if key not in watched}
        self.skipped += self.last["skipped"]
        signals = {key.removeprefix("guard "): read[key] for key in watched}
        self.signals = {name: value for name, value in signals.items() if not isinstance(value, bool)}
        self._learn_classes(len(images), looked)
        if self._watch is not None:
            self._watch.act(self, signals)
            if self._clumps.low and self.config.statistics == "inferred":
                self.last.setdefault("guard", {"causes": ["diversity"], "action": "note"})
        return log_probs

    @_exclusive
    def predict(self, images: Tensor, *, samples: int = 8, coverage: float | None = None) -> Prediction:
        """Predict a batch without adapting to it; neither the adapter nor any random stream changes.

        The probabilities are those the next ``adapter(images)`` would return. Uncertainties and abstentions leave the
        label prior out: images that all look alike make each other no surer. For methods other than VCoTTA a copy of
        the adapter takes a whole step.

        Args:
            images: As for a call of the adapter.
            samples: Draws of the weights for the uncertainties, two passes each; only VCoTTA has a posterior to draw
                from.
            coverage: Share of the stream to be answered, see `vcotta.methods.prediction.abstain`; None for all.

        Example:
            >>> from vcotta.methods import build_adapter
            >>> adapter = build_adapter("source", nn.Sequential(nn.Flatten(), nn.Linear(12, 2)))
            >>> adapter.predict(torch.rand(5, 3, 2, 2), coverage=0.6).abstain.sum()
            tensor(2)
        """
        check_request(samples, coverage)
        before = self._notes, self._compiled_shape
        rng = OwnRng(self.seed, self.runtime.device)
        rng.load_state_dict(self._rng.state_dict())
        images = self._valid(images)
        self._compiled_shape = self._compiled_shape or ()  # do not compile for a prediction
        self._notes = new_notes()
        try:
            with rng.scope(), torch.no_grad():
                self._look_at_classes(images, always=False)
                log_probs, draws, alpha = self.predict_only(images, samples)
            withheld = abstain(entropy(log_probs), self._recent, coverage)
            log_probs = self._use_label_prior(log_probs)
        finally:
            self._notes, self._compiled_shape = before
            self._inferred = self._inferred_labels = None
        return Prediction(log_probs.exp(), *decompose(draws), alpha, withheld)

    def predict_only(self, images: Tensor, samples: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return log-probabilities, those of ``samples`` draws of the weights (here the prediction), and alpha."""
        with torch.enable_grad():
            log_probs = copy.deepcopy(self, {id(self.start): self.start}).predict_and_adapt(images).detach()
        return log_probs, log_probs.unsqueeze(0), None

    @_exclusive
    def reset(self) -> None:
        """Return to the state the adapter started from, bit for bit."""
        self.networks, self.optimizer, self.memory, self.last = {}, None, {}, {}
        self._compiled_shape = self._fixed_shape
        self.steps = self.skipped = 0
        self.signals = {}
        self._recent = torch.empty(0, device=self.runtime.device)
        self._watch = None if self.guard is None else Watch(self.guard, self.runtime.device)
        self._forget_classes()
        self._rng = OwnRng(self.seed, self.runtime.device)
        self.restart()

    @_exclusive
    def restart(self) -> None:
        """Take networks, optimiser and memory back to the start.

        Counters, guard, random numbers, label prior and what is known of the stream's statistics stay.
        """
        self.memory = {}
        kept = {id(tensor): tensor for tensor in self.frozen()}
        with self._rng.scope():
            self.setup(copy.deepcopy(self.start, kept))
        self._first_memory = frozenset(self.memory)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config}, seed={self.seed}, steps={self.steps})"

    def watch(self, source: Tensor, adapted: Tensor, drift: Tensor | None = None) -> None:
        """Show the guard the log-probabilities of source and adapted network, (batch, classes), before the update.

        A method that runs the source network anyway saves a pass this way, and the guard can forbid this update; other
        methods are watched after their step, and the guard forbids the next one. ``drift`` is that of `drift`, where
        the method has computed it already.
        """
        if self._watch is not None:
            watched = self._watch.guard.drift is not None
            self._watch.judge(source, adapted, (self.drift() if drift is None else drift) if watched else None)

    @torch.no_grad()
    def _watched(self, images: Tensor, log_probs: Tensor) -> dict[str, Tensor]:
        """The guard's signals on a step; runs the source network if the method did not call `watch`."""
        if self._watch is None or not self.networks:
            return {}
        if not self._watch.judged:
            self.watch(self.source_logits(images).log_softmax(-1), log_probs)
        return self._watch.signals()

    def drift(self) -> Tensor | None:
        """KL(student || source) in nats per weight, on variational networks; None for other methods."""
        return None

    @torch.no_grad()
    def parameter_distance(self) -> float:
        """Return ``||theta - theta_0|| / ||theta_0||`` of the first of ``networks``; 0 if the method changes none."""
        network = next(iter(self.networks.values()), self.start)
        starts = dict(self.start.named_parameters())
        pairs = [(starts[name], now) for name, now in network.named_parameters() if name in starts]
        if not pairs:
            return 0.0
        moved = torch.stack([(now - start).square().sum() for start, now in pairs]).sum()
        size = torch.stack([start.square().sum() for start, _ in pairs]).sum()
        return float((moved / size.clamp_min(1e-12)).sqrt())

    @_exclusive
    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed stream needs; of `frozen` tensors a hash, see `vcotta.methods.state`."""
        return adapter_state(self)

    @_exclusive
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`; one of another method, setting or network is refused and changes nothing."""
        load_adapter_state(self, state)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()  # a copy has a lock of its own

    def placed(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copies of tensors on the adapter's device."""
        return {name: tensor.to(self.runtime.device, copy=True) for name, tensor in tensors.items()}

    def _valid(self, images: Tensor) -> Tensor:
        """Check images and put them on the device."""
        check_images(images)
        if self.needs_source and not self.prepared:
            raise ValueError(
                f"Expected {self.name} to be prepared on source data ({self.card.source}), but it was not. Build it "
                f"with build_adapter({self.name!r}, model, source=loader), or call its prepare(loader)."
            )
        images = images.clone() if images.is_inference() else images.detach()
        images = self.runtime.place_images(images)
        self._check_accepted(images)
        return images

    def _check_accepted(self, images: Tensor) -> int:
        """Return the number of classes; try a new shape of images first, so that a misfit changes nothing."""
        shape = tuple(images.shape[1:])
        if shape not in self._accepted:
            use_batch_statistics(self.start, False)
            with (
                order_of_layers(self.start) as run,
                Known() as known,
                torch.no_grad(),
                OwnRng(self.seed, self.runtime.device).scope(),
                self.runtime.autocast(),
            ):
                self._accepted[shape] = check_accepted(self.start, images)
            listed = [norm for norm in batch_norms(self.start) if norm.running_mean is not None]
            self._in_order = run == listed and known.layers == len(listed)
        return self._accepted[shape]

"""The adapter contract: what every method shares, and the few things it defines itself."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from vcotta._messages import unknown_name
from vcotta.batch_norm import freeze_statistics, join_views, use_batch_statistics
from vcotta.bayes import is_variational
from vcotta.distributed import World, average, is_shared
from vcotta.guard import Guard, Watch
from vcotta.inputs import check_accepted, check_images
from vcotta.methods.facts import Facts
from vcotta.methods.interventions import intervene, signals
from vcotta.methods.losses import entropy
from vcotta.methods.passes import Passes
from vcotta.methods.source_data import Placed
from vcotta.methods.state import adapter_state, load_adapter_state
from vcotta.prediction import RECENT, Prediction, abstain, check_request, decompose
from vcotta.rng import OwnRng
from vcotta.runtime import Runtime

__all__ = ["Adapter", "OptimizerName"]

OptimizerName = Literal["adam", "sgd", "momentum"]
"""``adam`` with torch's defaults; ``sgd`` with Nesterov momentum 0.9, both as the CoTTA line of work uses them; or
``momentum``, SGD with the plain momentum of 0.9 of the official code of EATA, SAR, RDumb and DeYO."""


class Adapter(Passes, ABC):
    """A classifier that predicts a batch and then adapts to it.

    ``adapter(images)`` takes float images in [0, 1], (batch, channels, height, width), and returns log-probabilities,
    (batch, classes), of the prediction made before the update. The given model is copied, never changed. Randomness
    comes from the adapter's own stream; torch's global generators are left as they were.

    A method defines `setup`, which makes networks and optimiser out of a fresh copy of the model, and
    `predict_and_adapt`; one that learns from source data before testing also defines `learn_source`. It names what
    belongs to its state: modules and the optimiser it assigns to ``networks`` and ``optimizer``, and tensors in
    ``memory``. Everything else (input checks, modes, counting, reset, saving) is done here, once.

    Attributes:
        name: The method's name in `build_adapter`.
        summary: What it does, in a few words.
        facts: Where it comes from, what it needs and what it costs.
        Config: The method's frozen settings; its defaults are for CIFAR10-C or any network.
        datasets: What differs from these defaults by data set, see `vcotta.methods.DATASETS`.
        needs_source: Whether it must be prepared on source data before its first batch.
        needs_variational: Whether the model must be a variational network.
        start: The network as it was given, frozen; methods use it as the source model.
        networks: The networks that change, by role.
        optimizer: The optimiser, or None.
        memory: What else the method remembers from batch to batch, tensors by name; a thing forgotten is a name gone.
        prepared: What it learned from source data, tensors by name; `reset` keeps them.
        world: The processes that share each batch, see `vcotta.methods.distribute`; by default this one alone.
        guard: Its protections, or None.
        last: What the latest step saw: ``forwards`` and ``backwards`` (passes over the batch), ``skipped``, what the
            method notes (``loss``, ``alpha``, ...) and, if the guard did something, ``guard``: its ``causes`` (names of
            `Guard`'s fields, or ``"not finite"``) and its ``action``, see `vcotta.guard.Action`.
        signals: The guard's numbers of the latest step by the names of its fields; those of ``unsure`` are nats, those
            of ``drift`` nats a weight. Empty without a guard or before it judges.
        steps: Batches seen since the start. ``skipped``: those whose update was dropped.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    facts: ClassVar[Facts]
    Config: ClassVar[type[Any]]
    datasets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    needs_source: ClassVar[bool] = False
    needs_variational: ClassVar[bool] = False

    networks: dict[str, nn.Module]
    optimizer: torch.optim.Optimizer | None
    memory: dict[str, Tensor]
    prepared: dict[str, Tensor]
    guard: Guard | None
    last: dict[str, Any]
    signals: dict[str, float]
    steps: int
    skipped: int
    _rng: OwnRng
    _watch: Watch | None
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
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"Expected `model` to be a torch.nn.Module, but got {type(model).__name__}.")
        if self.needs_variational and not is_variational(model):
            raise ValueError(
                f"Expected a variational network for {self.name}, but got a plain {type(model).__name__}. Warm it up "
                f"first, vcotta.warm_up(model, loader), or call build_adapter({self.name!r}, model, source=loader)."
            )
        if config is not None and not isinstance(config, self.Config):
            raise TypeError(f"Expected `config` to be a {self.Config.__name__}, but got {type(config).__name__}.")
        if runtime is not None and not isinstance(runtime, Runtime):
            raise TypeError(
                f"Expected `runtime` to be a Runtime, but got {runtime!r}. Try Runtime(device={runtime!r})."
            )
        if guard is not None and not isinstance(guard, Guard):
            raise TypeError(f"Expected `guard` to be a Guard or None, but got {guard!r}. Try Guard().")
        self.runtime = (runtime or Runtime()).fit_for(model)
        accepted = (torch.float32, self.runtime.dtype)
        if other := next((p.dtype for p in model.parameters() if p.dtype not in accepted), None):
            raise ValueError(f"Expected a float32 network, but got parameters of {other}. Call model.float() first.")
        self.config = self.Config() if config is None else config
        self.seed = seed
        self.guard = guard
        self.start = self.runtime.place(copy.deepcopy(model)).requires_grad_(False)
        join_views(self.start)  # the model may be another adapter's
        freeze_statistics(self.start)
        self._accepted: dict[tuple[int, ...], int] = {}  # classes by shape of the images
        self._notes = {}
        self._fixed_shape: tuple[int, ...] | None = None
        self.prepared = {}
        self.world = World()
        self.reset()

    @classmethod
    def settings_for(cls, dataset: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a data set changes in the config's defaults: ``datasets``, unless that hangs on ``options``."""
        return dict(cls.datasets.get(dataset or "", {}))

    @abstractmethod
    def setup(self, model: nn.Module) -> None:
        """Make ``self.networks`` and ``self.optimizer`` from ``model``, a copy of the start network to keep."""

    @abstractmethod
    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Return the log-probabilities of valid images, (batch, classes), and adapt to them."""

    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Return what the method wants of source data, tensors by name, for ``prepared``; most want nothing.

        ``source`` yields (images, labels), checked and on the device. It runs with the adapter freshly reset.
        """
        return {}

    @property
    def uses_source(self) -> bool:
        """Whether source data would teach it something; a method may be able to do without."""
        return self.needs_source

    @torch.inference_mode(False)
    def prepare(self, source: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Learn from source data before testing, and start anew with what was learned.

        Raises:
            ValueError: If ``source`` yields nothing although the method needs it, images that are not in [0, 1] or
                that the network does not take, or labels that are not its classes to a method that uses them.
        """
        self.prepared = {}
        self.reset()
        self._notes = {"forwards": 0, "backwards": 0, "skipped": False}
        with self._rng.scope():
            learned = self.learn_source(Placed(source, self.runtime, self._check_accepted))
        self.adopt(learned)

    @torch.inference_mode(False)
    def adopt(self, prepared: dict[str, Tensor]) -> None:
        """Start anew with what this method learned from source data at another time, ``prepared`` of its adapter."""
        self.prepared = self.placed({name: tensor.detach() for name, tensor in prepared.items()})
        self.reset()

    def __call__(self, images: Tensor) -> Tensor:
        """Predict a batch, adapt to it, and return the log-probabilities of the prediction."""
        with torch.inference_mode(False):
            images = self._taken(images)
            self._notes = {"forwards": 0, "backwards": 0, "skipped": False}
            with self._rng.scope(), self.world.active(), torch.enable_grad():
                log_probs = self.predict_and_adapt(images).detach()
            self._recent = torch.cat([self._recent, entropy(log_probs)])[-RECENT:]
            watched = {f"guard {key}": value for key, value in signals(self, self._watch, images, log_probs).items()}
            self.steps += 1
            read = _read(self._notes | watched)
            self.last = {key: value for key, value in read.items() if key not in watched}
            self.skipped += self.last["skipped"]
            judged = {key.removeprefix("guard "): read[key] for key in watched}
            intervene(self, self._watch, judged)
        return log_probs

    def predict(self, images: Tensor, *, samples: int = 8, coverage: float | None = None) -> Prediction:
        """Predict a batch without adapting to it; nothing of the adapter changes, nor anybody's random numbers.

        Args:
            images: As for a call of the adapter.
            samples: How many draws of the weights tell the kinds of doubt apart; only VCoTTA has a posterior to draw
                from. Each costs two passes.
            coverage: Share of the stream to be answered, see `vcotta.prediction.abstain`; None to abstain never.

        Returns:
            The prediction. Its probabilities are what the next ``adapter(images)`` would answer. Methods other than
            VCoTTA are asked by a copy of the adapter that takes a whole step, and pay its price.

        Example:
            >>> from vcotta.methods import build_adapter
            >>> adapter = build_adapter("bn", nn.Sequential(nn.Flatten(), nn.Linear(12, 2)))
            >>> adapter.predict(torch.rand(5, 3, 2, 2), coverage=0.6).abstain.sum()
            tensor(2)
        """
        check_request(samples, coverage)
        before, rng = (self._notes, self._compiled_shape), OwnRng(self.seed, self.runtime.device)
        rng.load_state_dict(self._rng.state_dict())
        with torch.inference_mode(False):
            images = self._taken(images)
            self._compiled_shape = self._compiled_shape or ()  # no shape: a look at a batch is not worth compiling for
            self._notes = {"forwards": 0, "backwards": 0, "skipped": False}
            try:
                with rng.scope(), torch.no_grad():
                    answer, draws, alpha = self.predict_only(images, samples)
            finally:
                self._notes, self._compiled_shape = before
            return Prediction(answer.exp(), *decompose(draws), alpha, abstain(entropy(answer), self._recent, coverage))

    def predict_only(self, images: Tensor, samples: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """What `predict` is made of: the answer's log-probabilities, those of ``samples`` draws, and alpha.

        A method without a posterior returns its answer as the only draw.
        """
        with torch.enable_grad():
            answer = copy.deepcopy(self).predict_and_adapt(images).detach()
        return answer, answer.unsqueeze(0), None

    @torch.inference_mode(False)
    def reset(self) -> None:
        """Return to the state the adapter started from, bit for bit."""
        self.networks, self.optimizer, self.memory, self.last = {}, None, {}, {}
        self._compiled_shape = self._fixed_shape
        self.steps = self.skipped = 0
        self.signals = {}
        self._recent = torch.empty(0, device=self.runtime.device)
        self._watch = None if self.guard is None else Watch(self.guard, self.runtime.device)
        self._rng = OwnRng(self.seed, self.runtime.device)
        self.restart()

    @torch.inference_mode(False)
    def restart(self) -> None:
        """Take networks, optimiser and memory back to the start; counters, guard and random numbers go on."""
        self.memory = {}
        with self._rng.scope():
            self.setup(copy.deepcopy(self.start))
        self._first_memory = frozenset(self.memory)

    def compile_for(self, shape: Sequence[int]) -> None:
        """Compile for batches of this shape alone, (batch, channels, height, width), now and after every reset or load.

        Without it the fast path (``Runtime.compile``) is compiled for the first batch that it is shown, whatever its
        size.

        Example:
            >>> from vcotta.methods import build_adapter
            >>> adapter = build_adapter("cotta", nn.Sequential(nn.Flatten(), nn.Linear(12, 2)))
            >>> adapter.compile_for((64, 3, 2, 2))
        """
        self._fixed_shape = self._compiled_shape = tuple(shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config}, seed={self.seed}, steps={self.steps})"

    # What methods are written with, beside `Passes`.

    def minimise(self, loss: Tensor, when: Tensor | None = None) -> Tensor:
        """One optimiser step; nothing changes if loss or gradient is not finite, or the guard forbids it.

        Args:
            loss: The loss.
            when: Whether there is anything to learn from this batch, a scalar on the device; None for yes. Where it is
                false no step is taken, not even by the optimiser's momentum, and none counts as skipped.

        Returns:
            Whether the step was taken, as a scalar on the device: the host does not wait to know.
        """
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)  # what an interrupted step may have left
        loss.backward()
        self._notes["backwards"] += 1
        gradients = [p.grad for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        if is_shared():
            torch._foreach_copy_(gradients, average(gradients))
        done = loss.detach().isfinite() & nn.utils.get_total_norm(gradients).isfinite()
        self.note(loss=loss.detach(), skipped=~done if when is None else ~done & when)
        done = done if when is None else done & when
        done = done if self._watch is None else done & self._watch.calm
        # The fused optimisers' own way to skip a step, which AMP's GradScaler uses.
        self.optimizer.found_inf = (~done).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return done

    def note(self, **values: Any) -> None:
        """Add to what ``last`` will say of this step; scalar tensors are read once, at the end."""
        self._notes.update(values)

    def watch(self, source: Tensor, adapted: Tensor) -> None:
        """Show the guard, if there is one, the log-probabilities of source and adapted network before the update.

        A method that has the source's opinion of the batch at hand saves a pass by it, and an update that the guard
        forbids is this batch's; other methods are watched after their step, which forbids the next.
        """
        if self._watch is not None:
            self._watch.look(source, adapted, None if self._watch.guard.drift is None else self.drift())

    def drift(self) -> Tensor | None:
        """How far the method is from the source, KL in nats a weight; None where there is no such number."""
        return None

    def make_optimizer(
        self, parameters: Iterable[Tensor], name: OptimizerName, lr: float, scales: Sequence[float] | None = None
    ) -> None:
        """Create ``self.optimizer`` over ``parameters``; ``scales`` multiply the step size, one for each of them."""
        groups: list[Tensor] | list[dict[str, Any]] = list(parameters)
        if scales is not None:
            groups = [{"params": [p], "lr": lr * scale} for p, scale in zip(groups, scales, strict=True)]
        if name == "adam":
            self.optimizer = torch.optim.Adam(groups, lr=lr, fused=True)
        elif name in ("sgd", "momentum"):
            self.optimizer = torch.optim.SGD(groups, lr=lr, momentum=0.9, nesterov=name == "sgd", fused=True)
            for parameter in (p for group in self.optimizer.param_groups for p in group["params"]):
                # Left to itself it makes this at the first step, and if that step is not taken leaves it unfilled.
                self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        else:
            raise unknown_name("optimizer", name, get_args(OptimizerName))

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed stream needs: networks, optimiser, randomness, counters, and the start to reset to."""
        return adapter_state(self)

    @torch.inference_mode(False)
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`; one of another method, setting or network is refused before anything changes."""
        load_adapter_state(self, state)

    def placed(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copies of tensors on the adapter's device."""
        return {name: tensor.to(self.runtime.device, copy=True) for name, tensor in tensors.items()}

    def _taken(self, images: Tensor) -> Tensor:
        """Images that the method can work with, or an error that says why not."""
        check_images(images)
        if self.needs_source and not self.prepared:
            raise ValueError(
                f"Expected {self.name} to be prepared on source data ({self.facts.source}), but it was not. Build it "
                f"with build_adapter({self.name!r}, model, source=loader), or call its prepare(loader)."
            )
        images = images.clone() if images.is_inference() else images.detach()
        images = self.runtime.place_images(images)
        self._check_accepted(images)
        return images

    def _check_accepted(self, images: Tensor) -> int:
        """Try a shape the network has not seen, so that a misfit is found before any change; returns the classes."""
        shape = tuple(images.shape[1:])
        if shape not in self._accepted:
            use_batch_statistics(self.start, False)
            with torch.no_grad(), self._rng_kept(), self.runtime.autocast():
                self._accepted[shape] = check_accepted(self.start, images)
        return self._accepted[shape]

    def _rng_kept(self) -> AbstractContextManager[None]:
        """Draws inside the block leave neither the global nor the adapter's randomness changed."""
        return OwnRng(self.seed, self.runtime.device).scope()


def _read(notes: dict[str, Any]) -> dict[str, Any]:
    """Notes as plain values, the tensors among them fetched in one go."""
    tensors = {key: value for key, value in notes.items() if isinstance(value, Tensor)}
    values = torch.stack([value.double() for value in tensors.values()]).tolist() if tensors else []
    read = {k: bool(v) if tensors[k].dtype == torch.bool else v for k, v in zip(tensors, values, strict=True)}
    return notes | read

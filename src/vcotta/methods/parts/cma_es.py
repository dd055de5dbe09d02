"""CMA-ES: minimises a function of a vector from its values alone, by adapting a Gaussian to where they are low."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

__all__ = ["CMAES"]

State = Mapping[str, Tensor]


class CMAES:
    r"""Evolution strategy with covariance matrix adaptation (Hansen, "The CMA Evolution Strategy: A Tutorial", 2016).

    Candidates are :math:`x_k = m + \sigma y_k`, :math:`y_k \sim N(0, C)`. Sorted by their values, lowest first, they
    move the mean, :math:`m \leftarrow m + \sigma \langle y \rangle_w` with :math:`\langle y \rangle_w = \sum_k w_k^+
    y_k`; two paths add up these moves, and from them step size and covariance follow:

    .. math::
        C \leftarrow \left(1 - c_1 - c_\mu \sum_k w_k\right) C + c_1\, p_c p_c^\top + c_\mu \sum_k w_k\, y_k y_k^\top,
        \qquad \sigma \leftarrow \sigma \exp\left(\frac{c_\sigma}{d_\sigma}
        \left(\frac{\lVert p_\sigma \rVert}{E\lVert N(0, I) \rVert} - 1\right)\right)

    Weights and rates are the tutorial's, which the package ``cma`` uses too; weights of the worse half are negative
    (active CMA). The state is a dictionary of float64 tensors that `tell` never changes in place, and the random
    numbers are torch's, so that a stream resumes exactly. C is decomposed now and then only, as in the tutorial.

    Args:
        dimensions: Length of the vectors.
        population: Candidates of a generation; None for 4 + 3 log(dimensions), rounded down.

    Example:
        >>> strategy = CMAES(3)
        >>> state = strategy.start()
        >>> for _ in range(60):
        ...     candidates = strategy.ask(state)
        ...     state = strategy.tell(state, candidates, (candidates - 1).square().sum(-1))
        >>> state["mean"].round(decimals=2).tolist()
        [1.0, 1.0, 1.0]
    """

    def __init__(self, dimensions: int, population: int | None = None) -> None:
        n = dimensions
        self.dimensions = n
        self.population = 4 + int(3 * math.log(n)) if population is None else population
        if self.population < 4:
            raise ValueError(f"Expected `population` to be at least 4, but got {self.population}.")
        raw = [math.log((self.population + 1) / 2) - math.log(rank) for rank in range(1, self.population + 1)]
        parents = [weight for weight in raw if weight > 0]
        worse = [weight for weight in raw if weight <= 0]
        self.mass = mass = sum(parents) ** 2 / sum(weight**2 for weight in parents)  # mu_eff
        self.rate_one = 2 / ((n + 1.3) ** 2 + mass)
        self.rate_mu = min(1 - self.rate_one, 2 * (0.25 + mass - 2 + 1 / mass) / ((n + 2) ** 2 + mass))
        self.rate_path = (4 + mass / n) / (n + 4 + 2 * mass / n)
        self.rate_step = (mass + 2) / (n + mass + 5)
        self.damping = 1 + 2 * max(0.0, math.sqrt((mass - 1) / (n + 1)) - 1) + self.rate_step
        against = sum(worse) ** 2 / sum(weight**2 for weight in worse)
        negative = min(
            1 + self.rate_one / self.rate_mu,
            1 + 2 * against / (mass + 2),
            (1 - self.rate_one - self.rate_mu) / (n * self.rate_mu),
        )
        self.weights = [weight / sum(parents) for weight in parents]
        self.weights += [negative * weight / -sum(worse) for weight in worse]

    @cached_property
    def usual_length(self) -> float:
        """The mean length of a standard normal vector, to the tutorial's precision."""
        n = self.dimensions
        return math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))

    @cached_property
    def every(self) -> int:
        """Generations between two decompositions of C."""
        return max(1, int(1 / (10 * self.dimensions * (self.rate_one + self.rate_mu))))

    def start(
        self, mean: Tensor | None = None, step: float = 1.0, device: torch.device | str = "cpu"
    ) -> dict[str, Tensor]:
        """The first state: N(mean, step^2 I), the mean zero unless given."""
        zeros = torch.zeros(self.dimensions, dtype=torch.float64)
        return {
            "mean": zeros if mean is None else mean.to(zeros),
            "step": zeros.new_tensor(step),
            "covariance": zeros.new_ones(self.dimensions).diag(),
            "axes": zeros.new_ones(self.dimensions).diag(),
            "spreads": zeros + 1,
            "path": zeros,
            "step_path": zeros.clone(),
            "generation": torch.zeros((), dtype=torch.int64),
        }

    def ask(self, state: State) -> Tensor:
        """Draw a generation of candidates, (population, dimensions)."""
        device = state["mean"].device
        draws = torch.randn(self.population, self.dimensions, dtype=torch.float64).to(device)  # alike on any device
        return state["mean"] + state["step"] * (draws * state["spreads"]) @ state["axes"].T

    def tell(self, state: State, candidates: Tensor, values: Tensor, injected: int = 0) -> dict[str, Tensor]:
        """Return the next state, given candidates and their values.

        Args:
            state: The state that the candidates were asked from.
            candidates: At least as many as the population, (candidates, dimensions). Of more the best are used.
            values: One value for each; all finite.
            injected: How many of the last candidates come from elsewhere. Their distance from the mean is limited
                (Hansen, "Injecting External Solutions Into CMA-ES", 2011).
        """
        n, generation = self.dimensions, state["generation"] + 1
        steps = (candidates.double() - state["mean"]) / state["step"]
        lengths = self._whitened(state, steps).norm(dim=-1)
        limit = math.sqrt(n) + 2 * n / (n + 2)
        foreign = torch.arange(len(steps), device=steps.device) >= len(steps) - injected
        shrink = torch.where(foreign, limit / lengths.clamp_min(limit), 1)
        order = values.argsort(stable=True)[: self.population]
        steps, lengths = (steps * shrink.unsqueeze(-1))[order], (lengths * shrink)[order]
        weights = steps.new_tensor(self.weights)
        move = weights.clamp_min(0) @ steps

        keep = 1 - self.rate_step
        scale = math.sqrt(self.rate_step * (2 - self.rate_step) * self.mass)
        step_path = keep * state["step_path"] + scale * self._whitened(state, move)
        length = step_path.norm() / (1 - keep ** (2 * generation)).sqrt()
        calm = length < (1.4 + 2 / (n + 1)) * self.usual_length  # else the step is far too small
        keep = 1 - self.rate_path
        scale = math.sqrt(self.rate_path * (2 - self.rate_path) * self.mass)
        path = keep * state["path"] + calm * scale * move
        slack = (~calm) * self.rate_path * (2 - self.rate_path)

        # So that C stays positive definite, a step of negative weight counts as one of the usual length.
        signed = torch.where(weights < 0, weights * n / lengths.square().clamp_min(1e-300), weights)
        old = 1 + self.rate_one * (slack - 1) - self.rate_mu * weights.sum()
        covariance = old * state["covariance"] + self.rate_one * torch.outer(path, path)
        covariance = covariance + self.rate_mu * (steps.T * signed) @ steps
        growth = (self.rate_step / self.damping) * (step_path.norm() / self.usual_length - 1)
        new = {
            "mean": state["mean"] + state["step"] * move,
            "step": state["step"] * growth.clamp_max(1).exp(),
            "covariance": covariance,
            "axes": state["axes"],
            "spreads": state["spreads"],
            "path": path,
            "step_path": step_path,
            "generation": generation,
        }
        if int(generation) % self.every == 0:
            variances, axes = torch.linalg.eigh((covariance + covariance.T) / 2)
            new |= {"axes": axes, "spreads": variances.clamp_min(1e-20).sqrt()}
        return new

    @staticmethod
    def _whitened(state: State, steps: Tensor) -> Tensor:
        """C^(-1/2) times the steps, (..., dimensions)."""
        return ((steps @ state["axes"]) / state["spreads"]) @ state["axes"].T

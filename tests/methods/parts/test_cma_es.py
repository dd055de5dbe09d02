from __future__ import annotations

import math

import pytest
import torch

from vcotta.methods.parts.cma_es import CMAES


def minimise(strategy: CMAES, value, generations: int, state=None, seed: int = 0):
    """The state after some generations, with random numbers of their own."""
    state = strategy.start() if state is None else state
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for _ in range(generations):
            candidates = strategy.ask(state)
            state = strategy.tell(state, candidates, value(candidates))
    return state


def test_weights_and_rates_are_those_of_the_package_cma() -> None:
    # As its documentation prints them for 20 dimensions.
    strategy = CMAES(20)
    assert strategy.population == 12
    weights = [0.4024029428, 0.2533890840, 0.1662215645, 0.1043752252, 0.05640347757, 0.01720770576]
    weights += [-0.05018713636, -0.1406167894, -0.2203813963, -0.2917332686, -0.3562788884, -0.4152044225]
    assert strategy.weights == pytest.approx(weights, rel=1e-8)
    rates = (strategy.rate_one, strategy.rate_mu, strategy.rate_path)
    assert rates == pytest.approx((0.00437235, 0.00921656, 0.171767), rel=1e-5)
    assert CMAES(3 * 768).population == 27  # FOA's


def test_it_finds_the_minimum_of_an_ill_conditioned_function_and_its_shape() -> None:
    scales = 10 ** torch.linspace(0, 2, 5, dtype=torch.float64)
    state = minimise(CMAES(5), lambda x: ((x - 2) * scales).square().sum(-1), 180)
    assert torch.allclose(state["mean"], torch.full((5,), 2.0, dtype=torch.float64), atol=1e-4)
    spreads = (state["step"] * state["covariance"].diagonal().sqrt()).log10()
    assert (spreads[0] - spreads[-1]).item() == pytest.approx(2, abs=0.3)  # as wide as the function is flat


def test_only_the_order_of_values_matters() -> None:
    def value(x):
        return (x - 1).square().sum(-1)

    first = minimise(CMAES(4), value, 25)
    second = minimise(CMAES(4), lambda x: 7 * value(x).log() - 3, 25)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_rotated_function_is_solved_as_the_plain_one() -> None:
    turn, _ = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    scales = torch.tensor([1.0, 3.0, 10.0, 30.0], dtype=torch.float64)
    plain, turned, strategy = CMAES(4).start(), CMAES(4).start(), CMAES(4)
    draws = torch.Generator().manual_seed(2)
    for _ in range(20):
        y = torch.randn(strategy.population, 4, dtype=torch.float64, generator=draws)
        root = plain["axes"] * plain["spreads"] @ plain["axes"].T
        there = turn.T @ (turned["axes"] * turned["spreads"] @ turned["axes"].T) @ turn
        assert torch.allclose(root, there, atol=1e-8)
        x = plain["mean"] + plain["step"] * y @ root
        z = turned["mean"] + turned["step"] * (y @ there) @ turn.T
        values = ((x - 1) * scales).square().sum(-1)
        plain, turned = strategy.tell(plain, x, values), strategy.tell(turned, z, values)
        assert torch.allclose(plain["mean"] @ turn.T, turned["mean"], atol=1e-8)
        assert plain["step"] == pytest.approx(turned["step"].item(), rel=1e-8)


def test_a_shifted_start_shifts_everything() -> None:
    shift, strategy = torch.full((3,), 5.0, dtype=torch.float64), CMAES(3)
    first = minimise(strategy, lambda x: x.square().sum(-1), 15)
    second = minimise(strategy, lambda x: (x - shift).square().sum(-1), 15, strategy.start(shift))
    assert torch.allclose(first["mean"] + shift, second["mean"], atol=1e-6)
    assert torch.allclose(first["covariance"], second["covariance"], atol=1e-6)


def test_a_generation_is_that_of_the_tutorial() -> None:
    strategy, n = CMAES(3, 6), 3
    state = minimise(strategy, lambda x: (x * torch.tensor([1.0, 2.0, 5.0])).square().sum(-1), 3)
    candidates = strategy.ask(state)
    values = candidates.square().sum(-1)
    new = strategy.tell(state, candidates, values)
    C, sigma, m = state["axes"] * state["spreads"].square() @ state["axes"].T, state["step"], state["mean"]
    inverse = torch.linalg.inv(state["axes"] * state["spreads"] @ state["axes"].T)
    y = [(candidates[k] - m) / sigma for k in values.argsort()]
    w, c1, cmu, cc, cs = (
        strategy.weights,
        strategy.rate_one,
        strategy.rate_mu,
        strategy.rate_path,
        strategy.rate_step,
    )
    move = sum(w[k] * y[k] for k in range(3))
    ps = (1 - cs) * state["step_path"] + math.sqrt(cs * (2 - cs) * strategy.mass) * inverse @ move
    length = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
    h = ps.norm() / math.sqrt(1 - (1 - cs) ** 8) < (1.4 + 2 / (n + 1)) * length
    pc = (1 - cc) * state["path"] + float(h) * math.sqrt(cc * (2 - cc) * strategy.mass) * move
    signed = [w[k] if w[k] >= 0 else w[k] * n / (inverse @ y[k]).norm() ** 2 for k in range(6)]
    old = 1 + c1 * (1 - float(h)) * cc * (2 - cc) - c1 - cmu * sum(w)
    expected = old * C + c1 * torch.outer(pc, pc) + cmu * sum(signed[k] * torch.outer(y[k], y[k]) for k in range(6))
    assert strategy.every == 1  # so that the decomposition is of this generation's matrix
    assert torch.allclose(new["mean"], m + sigma * move)
    assert torch.allclose(new["covariance"], expected)
    assert torch.allclose(new["step"], sigma * torch.exp(cs / strategy.damping * (ps.norm() / length - 1)))
    assert torch.allclose(new["path"], pc)


def test_the_covariance_stays_positive_definite_on_random_values() -> None:
    state = minimise(CMAES(6), lambda x: torch.rand(len(x), dtype=torch.float64), 200)
    assert torch.linalg.eigvalsh(state["covariance"]).min() > 0


def test_a_candidate_from_elsewhere_moves_the_mean_no_farther_than_a_far_draw() -> None:
    strategy = CMAES(4)
    state = strategy.start()
    candidates = torch.cat([strategy.ask(state), torch.full((1, 4), 1e6, dtype=torch.float64)])
    values = torch.arange(len(candidates), 0, -1.0)  # the last one is the best
    limit = math.sqrt(4) + 8 / 6
    moved = strategy.tell(state, candidates, values, injected=1)["mean"]
    assert moved.norm() < 2 * limit
    assert strategy.tell(state, candidates, values)["mean"].norm() > 1e5


def test_telling_leaves_the_old_state_as_it_was() -> None:
    strategy = CMAES(3)
    state = strategy.start()
    before = {name: tensor.clone() for name, tensor in state.items()}
    candidates = strategy.ask(state)
    strategy.tell(state, candidates, candidates.sum(-1))
    assert all(torch.equal(state[name], before[name]) for name in before)


def test_a_population_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 4, but got 3"):
        CMAES(5, 3)

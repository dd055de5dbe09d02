from __future__ import annotations

import pytest
import torch

from vcotta import Runtime
from vcotta.methods import CMF, ROID, CMFConfig, ROIDConfig, configure


def trained(adapter) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in adapter.networks["model"].named_parameters() if p.requires_grad}


def hidden(adapter) -> dict[str, torch.Tensor]:
    values, parts = trained(adapter), adapter.memory["hidden"].split([p.numel() for p in trained(adapter).values()])
    return {name: part.view_as(value) for part, (name, value) in zip(parts, values.items(), strict=True)}


# q is noise / 1200 for the 32 parameters of the tiny network's normalisation; the first gain is 1 - q within its bounds
@pytest.mark.parametrize(("noise", "first"), [(0.09, 1.0), (20.0, 59 / 60), (400.0, 0.89)])
@pytest.mark.parametrize("alpha", [0.7, 1.0])
def test_the_filter_follows_the_official_recursion_from_step_to_step(noise, first, alpha, tiny, images) -> None:
    gamma, runtime = 0.6, Runtime(precision="fp64")
    adapter = CMF(tiny(), CMFConfig(lr=0.1, noise=noise, alpha=alpha, source_momentum=gamma), runtime=runtime)
    free = ROID(tiny(), ROIDConfig(lr=0.1, source_momentum=1.0), runtime=runtime)  # the same step without any pull
    sources, variance, q, gains = trained(free), 0.0, noise * 32 / 38_400, []
    refined = dict(sources)
    for batch in (images(), images(seed=1), images(1).expand(3, -1, -1, -1), images(seed=2)):  # the third: no step
        free.networks["model"].load_state_dict(adapter.networks["model"].state_dict())
        adapter(batch)
        free(batch)
        variance = alpha**2 * variance + q
        beta = max((1 - q) / (variance + 1 - q), 0.89)
        beta = 1.0 if beta >= 0.9999 else beta
        variance *= beta
        for name, observed in trained(free).items():
            refined[name] = beta * (alpha * refined[name] + (1 - alpha) * sources[name]) + (1 - beta) * observed
            torch.testing.assert_close(hidden(adapter)[name], refined[name], rtol=0, atol=1e-12)
            mixed = gamma * observed + (1 - gamma) * refined[name]
            torch.testing.assert_close(trained(adapter)[name], mixed, rtol=0, atol=1e-12)
        assert adapter.memory["variance"].item() == pytest.approx(variance, rel=1e-5)
        assert adapter.last["beta"] == pytest.approx(beta, abs=1e-12)
        gains.append(beta)
    assert gains[0] == pytest.approx(first, abs=1e-12)


def test_without_noise_the_hidden_model_stays_at_the_source_and_cmf_is_roid(tiny, images) -> None:
    adapter, roid = CMF(tiny(), CMFConfig(lr=0.01, noise=0.0)), ROID(tiny(), ROIDConfig(lr=0.01))
    for seed in range(3):
        assert torch.allclose(adapter(images(seed=seed)), roid(images(seed=seed)), atol=1e-5)
    assert adapter.last["beta"] == 1
    for name, value in hidden(adapter).items():
        assert torch.equal(value, adapter.start.get_parameter(name))


def test_gamma_of_one_disables_the_ensemble_step(tiny, images) -> None:
    adapter = CMF(tiny(), CMFConfig(lr=0.01, source_momentum=1.0))
    free = ROID(tiny(), ROIDConfig(lr=0.01, source_momentum=1.0))
    for seed in range(3):
        assert torch.equal(adapter(images(seed=seed)), free(images(seed=seed)))
    assert all(torch.equal(trained(adapter)[name], value) for name, value in trained(free).items())


def test_without_a_step_all_three_models_are_the_source(tiny, images) -> None:
    adapter = CMF(tiny(), CMFConfig(lr=0.0, noise=20.0))
    for seed in range(3):
        adapter(images(seed=seed))
    for name, value in trained(adapter).items():
        assert torch.allclose(value, adapter.start.get_parameter(name), atol=1e-6)
        assert torch.allclose(hidden(adapter)[name], adapter.start.get_parameter(name), atol=1e-6)


def test_reset_clears_variance_and_hidden_model(tiny, images) -> None:
    adapter = CMF(tiny(), CMFConfig(lr=0.01))
    adapter(images())
    assert adapter.memory["variance"] > 0
    adapter.reset()
    assert adapter.memory["variance"] == 0
    assert all(torch.equal(value, adapter.start.get_parameter(name)) for name, value in hidden(adapter).items())
    assert "average_prediction" not in adapter.memory


def test_a_state_whose_memory_has_other_names_is_refused_before_anything_changes(tiny, images) -> None:
    adapter = CMF(tiny(), CMFConfig(lr=0.01))
    adapter(images())
    state, before = adapter.state_dict(), trained(adapter)
    state["memory"]["hidden.norm1.weight"] = state["memory"].pop("hidden")
    other = CMF(tiny(), CMFConfig(lr=0.01))
    other(images(seed=1))
    kept = trained(other)
    with pytest.raises(ValueError, match="Expected hidden in the state's memory"):
        other.load_state_dict(state)
    assert all(torch.equal(kept[name], value) for name, value in trained(other).items())
    assert any(not torch.equal(before[name], value) for name, value in kept.items())


def test_settings_by_data_set_and_wrong_ones() -> None:
    assert configure("cmf", dataset="imagenet") == CMFConfig(lr=2.5e-4, optimizer="sgd")
    for wrong in ({"alpha": 1.5}, {"noise": -1.0}, {"source_momentum": 2.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            CMFConfig(**wrong)

from __future__ import annotations

import pytest
import torch

from vcotta.methods import CMF, ROID, CMFConfig, ROIDConfig, configure


def trained(adapter) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in adapter.networks["model"].named_parameters() if p.requires_grad}


def hidden(adapter) -> dict[str, torch.Tensor]:
    values, parts = trained(adapter), adapter.memory["hidden"].split([p.numel() for p in trained(adapter).values()])
    return {name: part.view_as(value) for part, (name, value) in zip(parts, values.items(), strict=True)}


def test_the_filter_follows_the_recursion_of_the_official_code(tiny, images) -> None:
    noise = 20.0  # q is about 0.017 for the 32 parameters of the tiny network's normalisation
    adapter = CMF(tiny(), CMFConfig(lr=0.01, noise=noise, alpha=0.9, source_momentum=0.7))
    free = ROID(tiny(), ROIDConfig(lr=0.01, source_momentum=1.0))  # the same step without any pull
    adapter(images())
    free(images())
    q = noise * 32 / 38_400
    variance = q
    beta = (1 - q) / (variance + 1 - q)
    assert 0.89 < beta < 0.9999
    assert adapter.last["beta"] == pytest.approx(beta, rel=1e-5)
    assert adapter.memory["variance"].item() == pytest.approx(beta * variance, rel=1e-5)
    for name, observed in trained(free).items():
        source = adapter.start.get_parameter(name)
        refined = beta * source + (1 - beta) * observed
        assert torch.allclose(hidden(adapter)[name], refined, atol=1e-6)
        assert torch.allclose(trained(adapter)[name], 0.7 * observed + 0.3 * refined, atol=1e-6)


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


def test_alpha_of_one_removes_the_pull_to_the_source_in_the_hidden_model(tiny, images) -> None:
    adapter = CMF(tiny(), CMFConfig(lr=0.01, noise=20.0, alpha=1.0))
    adapter(images())
    before, same = hidden(adapter), images(1).expand(3, -1, -1, -1)
    adapter(same)  # takes no step, the filter goes on
    beta = adapter.last["beta"]
    for name, value in trained(adapter).items():
        # what was observed is undone from theta = g theta + (1 - g) hidden
        observed = (value - 0.01 * hidden(adapter)[name]) / 0.99
        assert torch.allclose(hidden(adapter)[name], beta * before[name] + (1 - beta) * observed, atol=1e-5)


@pytest.mark.parametrize("noise", [0.005, 5.0, 50.0, 1000.0])
def test_gain_and_variance_stay_in_their_bounds(noise, tiny, images) -> None:
    adapter = CMF(tiny(), CMFConfig(noise=noise))
    q = noise * 32 / 38_400
    for seed in range(6):
        adapter(images(seed=seed))
        assert 0.89 - 1e-6 <= adapter.last["beta"] <= 1
        assert 0 < adapter.memory["variance"].item() <= q / (1 - 0.99**2) + 1e-6


def test_without_a_step_all_three_models_are_the_source(tiny, images) -> None:
    adapter = CMF(tiny(), CMFConfig(lr=0.0, noise=20.0))
    for seed in range(3):
        adapter(images(seed=seed))
    for name, value in trained(adapter).items():
        assert torch.allclose(value, adapter.start.get_parameter(name), atol=1e-6)
        assert torch.allclose(hidden(adapter)[name], adapter.start.get_parameter(name), atol=1e-6)


def test_reset_forgets_variance_and_hidden_model(tiny, images) -> None:
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

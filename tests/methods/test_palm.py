from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from vcotta.methods import BN, PALM, PALMConfig, configure, palm
from vcotta.methods.palm import uniform_loss


@pytest.fixture(autouse=True)
def plain_views(monkeypatch) -> None:
    """Views are the images themselves."""
    monkeypatch.setattr(palm, "random_view", lambda images, flip: images)


def trained(adapter) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in adapter.networks["model"].named_parameters() if p.requires_grad}


def official_adam_step(adapter: PALM, x: torch.Tensor, rates: dict[str, float], weight_decay: float = 0.0):
    """Parameters after a step of a new torch Adam with one group a tensor, on the official loss."""
    reference = PALM(adapter.start)
    reference.load_state_dict({**adapter.state_dict(), "config": vars(reference.config)})
    model = reference.networks["model"]
    z, za = reference_logits(reference, x), reference_logits(reference, x)
    entropies = -(z.softmax(1) * z.log_softmax(1)).sum(1)
    loss = 0.01 * z.shape[1] * -(z.softmax(1) * za.log_softmax(1)).sum(1).mean()
    if (entropies < 0.4).any():
        loss = loss + entropies[entropies < 0.4].mean()
    groups = [{"params": [model.get_parameter(name)], "lr": rate} for name, rate in rates.items()]
    optimizer = torch.optim.Adam(groups, weight_decay=weight_decay)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {name: model.get_parameter(name).detach() for name in rates}


def reference_logits(adapter: PALM, x: torch.Tensor) -> torch.Tensor:
    adapter._notes = {"forwards": 0}
    return adapter.logits(adapter.networks["model"], x)


def test_the_uniform_loss_ignores_constants_and_is_lowest_for_uniform_logits() -> None:
    z = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    assert uniform_loss(z, 2.0).item() == pytest.approx(uniform_loss(z + 7, 2.0).item(), abs=1e-5)
    flat = torch.zeros(3, 5, requires_grad=True)
    uniform_loss(flat, 2.0).backward()
    assert flat.grad.abs().max() < 1e-6
    assert uniform_loss(flat, 2.0).item() == pytest.approx(5 * math.log(5), abs=1e-5)


@pytest.mark.parametrize("decay", [0.5, 0.1])
def test_the_first_ratio_of_a_tensor_is_decay_over_its_complement(decay, tiny, images) -> None:
    adapter = PALM(tiny("group"), PALMConfig(decay=decay, threshold=1e9, temperature=1.0))
    adapter(images())
    ratios = dict(zip(trained(adapter), adapter.memory["ratios"].tolist(), strict=True))
    gradients_are_clear_of_zero = ["conv1.weight", "norm1.weight", "norm2.weight"]
    for name in gradients_are_clear_of_zero:
        assert ratios[name] == pytest.approx(decay / (1 - decay), rel=1e-2)
    assert all(0 <= ratio <= max(1, decay / (1 - decay)) + 1e-6 for ratio in ratios.values())


def test_the_step_is_that_of_a_new_adam_with_a_rate_for_each_tensor(tiny, images) -> None:
    adapter = PALM(tiny(), PALMConfig(lr=1e-3, weight_decay=0.01))
    adapter(images())  # now some state would be left in an Adam that remembers
    x = images(seed=1)
    clone = PALM(tiny(), PALMConfig(lr=1e-3, weight_decay=0.01))
    clone.load_state_dict(adapter.state_dict())
    clone(x)
    rates = {name: 1e-3 * ratio for name, ratio in zip(trained(clone), clone.memory["ratios"].tolist(), strict=True)}
    expected = official_adam_step(adapter, x, rates, weight_decay=0.01)
    for name, value in trained(clone).items():
        assert torch.allclose(value, expected[name], atol=1e-6)


def test_sensitivities_follow_the_moving_average(tiny, images) -> None:
    adapter = PALM(tiny(), PALMConfig(lr=0.0, decay=0.3, threshold=1e9))
    average: dict[str, torch.Tensor] = {}
    for seed in range(2):
        z = reference_logits(adapter, images(seed=seed))
        model = adapter.networks["model"]
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(uniform_loss(z, 50.0), list(parameters.values()))
        adapter(images(seed=seed))
        ratios = []
        for (name, p), g in zip(parameters.items(), gradients, strict=True):
            s = (p.detach() * g).abs()
            average[name] = 0.3 * average.get(name, 0.0) + 0.7 * s
            ratios.append((((s - average[name]).abs() + 1e-8) / (average[name] + 1e-8)).mean().item())
            assert torch.allclose(adapter.memory[f"sensitivity.{name}"], average[name], atol=1e-7)
        assert adapter.memory["ratios"].tolist() == pytest.approx(ratios, rel=1e-2)


def test_the_same_batch_again_and_again_lets_the_ratios_fade(tiny, images) -> None:
    adapter = PALM(tiny(), PALMConfig(lr=0.0, threshold=1e9, temperature=1.0))
    ratios = []
    for _ in range(12):
        adapter(images())
        ratios.append(adapter.memory["ratios"][0].item())
    assert all(later < earlier for earlier, later in itertools.pairwise(ratios))
    assert ratios[-1] < 0.01


def test_tensors_never_chosen_do_not_move(tiny, images) -> None:
    adapter = PALM(tiny("group"), PALMConfig(lr=0.1, threshold=0.0))
    before = trained(adapter)
    for seed in range(2):
        adapter(images(seed=seed))
    assert adapter.last["selected"] == 0
    assert adapter.memory["ratios"].abs().sum() == 0
    assert all(torch.equal(value, before[name]) for name, value in trained(adapter).items())
    everything = PALM(tiny("group"), PALMConfig(lr=0.1, threshold=1e9))
    everything(images())
    assert everything.last["selected"] == 1


@pytest.mark.parametrize("freeze", [False, True])
def test_a_tensor_not_chosen_now_goes_on_unless_frozen(freeze, tiny, images) -> None:
    adapter = PALM(tiny(), PALMConfig(lr=0.01, threshold=1e9, freeze_unselected=freeze))
    adapter(images())
    strict = PALM(tiny(), PALMConfig(lr=0.01, threshold=0.0, freeze_unselected=freeze))
    state = adapter.state_dict()
    strict.load_state_dict({**state, "config": vars(strict.config)})
    before, ratios = trained(strict), strict.memory["ratios"].clone()
    strict(images(seed=1))
    assert torch.equal(strict.memory["ratios"], ratios)  # the last ones stay
    moved = any(not torch.equal(value, before[name]) for name, value in trained(strict).items())
    assert moved != freeze


def test_the_classifier_stays_and_the_prediction_is_from_before_the_step(tiny, images) -> None:
    adapter = PALM(tiny(), PALMConfig(lr=0.1))
    assert torch.equal(adapter(images()), BN(tiny())(images()))
    assert torch.equal(adapter.networks["model"].fc.weight, adapter.start.fc.weight)
    assert not torch.equal(adapter.networks["model"].conv1.weight, adapter.start.conv1.weight)


def test_with_no_image_below_the_margin_consistency_alone_is_learned(tiny, images) -> None:
    adapter = PALM(tiny(), PALMConfig(margin=0.0))
    log_probs = adapter(images())
    consistency = -(log_probs.exp() * log_probs).sum(-1).mean().item()  # the view is the image
    assert adapter.last["loss"] == pytest.approx(0.04 * consistency, rel=1e-4)
    assert adapter.last["skipped"] is False


def test_a_network_with_nothing_to_train_predicts_with_a_warning(images) -> None:
    with pytest.warns(UserWarning, match="PALM trains nothing else"):
        adapter = PALM(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)))
    assert adapter(images()).shape == (6, 4)
    assert adapter.last["backwards"] == 0


def test_settings_by_data_set_and_wrong_ones() -> None:
    assert configure("palm", dataset="cifar100") == PALMConfig(
        weight_decay=5e-4, decay=0.1, temperature=100.0, threshold=0.5
    )
    for wrong in ({"lr": -1.0}, {"decay": 1.5}, {"temperature": 0.0}, {"threshold": -1.0}, {"margin": -0.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            PALMConfig(**wrong)

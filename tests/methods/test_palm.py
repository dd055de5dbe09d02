from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch import nn

from vcotta import Runtime
from vcotta.methods import BN, PALM, PALMConfig, configure, palm
from vcotta.methods.palm import uniform_loss


@pytest.fixture(autouse=True)
def fixed_views(monkeypatch) -> None:
    monkeypatch.setattr(palm, "random_view", lambda images, flip: view_of(images))


def view_of(images: torch.Tensor) -> torch.Tensor:
    return 1 - images.flip(-1)


def trained(adapter) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in adapter.networks["model"].named_parameters() if p.requires_grad}


def sharpened(net: nn.Module, factor: float) -> nn.Module:
    """The network with larger logits."""
    net.fc.weight.data.mul_(factor)
    return net


class Official:
    """The official step in plain torch, with an Adam that is made anew for each batch."""

    def __init__(self, net: nn.Module, config: PALMConfig) -> None:
        self.net, self.config = copy.deepcopy(net).double().train(), config
        self.trained = {name: p for name, p in self.net.named_parameters() if not name.startswith("fc.")}
        self.m, self.ratios = {}, dict.fromkeys(self.trained, 0.0)

    def step(self, x: torch.Tensor) -> tuple[torch.Tensor, float, set[str]]:
        """Log-probabilities, loss and the names of the tensors chosen."""
        config, z, z_view = self.config, self.net(x), self.net(view_of(x))
        uniform = -(z / config.temperature).log_softmax(1).sum(1).mean()
        gradients = torch.autograd.grad(uniform, list(self.trained.values()), retain_graph=True)
        chosen = {name: g for name, g in zip(self.trained, gradients, strict=True) if g.abs().sum() <= config.threshold}
        for name, g in chosen.items():
            s = (self.trained[name].detach() * g).abs()
            m = self.m[name] = config.decay * self.m.get(name, 0) + (1 - config.decay) * s
            self.ratios[name] = (((s - m).abs() + 1e-8) / (m + 1e-8)).mean().item()
        groups = [{"params": [p], "lr": config.lr * self.ratios[name]} for name, p in self.trained.items()]
        adam = torch.optim.Adam(groups, weight_decay=config.weight_decay)
        log_p = z.log_softmax(1)
        entropies = -(log_p.exp() * log_p).sum(1)
        loss = config.consistency * z.shape[1] * -(log_p.exp() * z_view.log_softmax(1)).sum(1).mean()
        if (sure := entropies < config.margin).any():
            loss = loss + entropies[sure].mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        return log_p.detach(), loss.item(), set(chosen)


def test_the_uniform_loss_ignores_constants_and_is_lowest_for_uniform_logits() -> None:
    z = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    assert uniform_loss(z, 2.0).item() == pytest.approx(uniform_loss(z + 7, 2.0).item(), abs=1e-5)
    flat = torch.zeros(3, 5, requires_grad=True)
    uniform_loss(flat, 2.0).backward()
    assert flat.grad.abs().max() < 1e-6
    assert uniform_loss(flat, 2.0).item() == pytest.approx(5 * math.log(5), abs=1e-5)


@pytest.mark.parametrize("decay", [0.5, 0.1])
def test_the_first_ratio_of_a_tensor_is_decay_over_its_complement(decay, tiny, images) -> None:
    net = sharpened(tiny("group"), 1e3)  # its sensitivities are far above the epsilon
    adapter = PALM(net, PALMConfig(decay=decay, threshold=1e9, temperature=1.0), runtime=Runtime(precision="fp64"))
    adapter(images())
    for name, ratio in zip(trained(adapter), adapter.memory["ratios"].tolist(), strict=True):
        nothing = name in ("norm1.bias", "norm2.bias")  # which are zeros: epsilon over epsilon is left
        assert ratio == pytest.approx(1 if nothing else decay / (1 - decay), rel=1e-4), name


@pytest.mark.parametrize("margin", [0.4, 0.0])
def test_steps_are_the_official_ones_also_with_no_image_below_the_margin(margin, tiny, images) -> None:
    settings = {"lr": 0.01, "weight_decay": 0.01, "decay": 0.3, "temperature": 5.0, "threshold": 8.5}
    net, config = sharpened(tiny(), 20.0), PALMConfig(**settings, consistency=0.1, margin=margin)
    adapter, official = PALM(net, config, runtime=Runtime(precision="fp64")), Official(net, config)
    for seed in (1, 2, 0):
        x = images(12, seed).double()
        log_probs, loss, chosen = official.step(x)
        entropies = -(log_probs.exp() * log_probs).sum(1)
        assert (entropies < 0.4).any()
        assert ((entropies > 0.4) & (entropies < 0.4 * math.log(4))).any()
        assert torch.allclose(adapter(x), log_probs, atol=1e-9)
        assert adapter.last["loss"] == pytest.approx(loss, abs=1e-9)
        assert adapter.last["selected"] == pytest.approx(len(chosen) / 7)
        assert adapter.memory["ratios"].tolist() == pytest.approx(list(official.ratios.values()), rel=1e-6)
        for name, value in trained(adapter).items():
            assert torch.allclose(value, official.trained[name], atol=1e-8), name
    assert chosen < set(official.m) < set(official.trained)  # one goes on with its last ratio, another never began
    assert adapter.skipped == 0


def test_repeating_a_batch_lowers_the_ratios(tiny, images) -> None:
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
def test_a_tensor_no_longer_chosen_keeps_moving_unless_frozen(freeze, tiny, images) -> None:
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


def test_a_network_with_nothing_to_train_predicts_with_a_warning(images) -> None:
    with pytest.warns(UserWarning, match="PALM trains nothing else"):
        adapter = PALM(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)))
    assert adapter(images()).shape == (6, 4)
    assert adapter.last["backwards"] == 0


def test_settings_by_data_set_and_wrong_ones() -> None:
    cifar10 = {"lr": 5e-4, "weight_decay": 0.0, "decay": 0.5, "temperature": 50.0, "threshold": 1.0}
    assert PALMConfig() == PALMConfig(**cifar10, consistency=0.01, margin=0.4, freeze_unselected=False)
    assert configure("palm", dataset="cifar100") == PALMConfig(
        weight_decay=5e-4, decay=0.1, temperature=100.0, threshold=0.5
    )
    for wrong in ({"lr": -1.0}, {"decay": 1.5}, {"temperature": 0.0}, {"threshold": -1.0}, {"margin": -0.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            PALMConfig(**wrong)

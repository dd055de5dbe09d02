from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from vcotta import Runtime
from vcotta.methods import BN, SURGEON, SURGEONConfig, configure, surgeon
from vcotta.methods.surgeon import kept_shares, largest, teach_pruning
from vcotta.nn.batch_norm import freeze_statistics, use_batch_statistics

from .bottleneck import network


def view_of(images: torch.Tensor) -> torch.Tensor:
    return 1 - images.flip(-1)


@pytest.fixture
def seen(monkeypatch) -> list[torch.Tensor]:
    """What networks are shown from here on; views are not random."""
    batches, forward = [], Runtime.forward
    monkeypatch.setattr(Runtime, "forward", lambda self, net, x, **kw: batches.append(x) or forward(self, net, x, **kw))
    monkeypatch.setattr(surgeon, "random_view", lambda images, flip: view_of(images))
    return batches


class Reference:
    """The published step in plain torch; hooks tell the layers' inputs and the gradients of their outputs."""

    def __init__(self, net: nn.Module, config: SURGEONConfig) -> None:
        self.net, self.config, self.calls = copy.deepcopy(net).double().train(), config, []
        layers = [module for module in self.net.modules() if hasattr(module, "weight")]
        chosen = nn.Module if config.layers == "all" else (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)
        self.trained = [layer for layer in layers if isinstance(layer, chosen)]
        self.adam = torch.optim.Adam([layer.weight for layer in self.trained], lr=config.lr)
        for layer in layers:
            layer.register_forward_hook(self.watch)

    def watch(self, layer, inputs, output) -> None:
        output.register_hook(lambda gradient: self.calls.append((layer, inputs[0].detach(), gradient)))

    def shares(self, probe: torch.Tensor) -> list[float]:
        """Importance of the trained layers over that of the most important one."""
        self.calls.clear()
        self.adam.zero_grad()
        z = self.net(probe)
        (-(z.softmax(1) * z.log_softmax(1)).sum(1).mean()).backward()
        sizes = {layer: given.numel() for layer, given, _ in self.calls}
        importance = [
            layer.weight.grad.square().mean().sqrt().item() * math.log(sum(sizes.values()) / sizes[layer])
            for layer in self.trained
        ]
        return [value / max(importance) for value in importance]

    def step(self, x: torch.Tensor, shares: list[float]) -> tuple[torch.Tensor, float]:
        """Entropies and loss."""
        self.calls.clear()
        z, z_view = self.net(x), self.net(view_of(x))
        h, classes = -(z.softmax(1) * z.log_softmax(1)).sum(1), z.shape[1]
        margin = self.config.margin * math.log(classes)
        loss = self.config.consistency * classes * -(z.softmax(1) * z_view.log_softmax(1)).sum(1).mean()
        if (sure := h < margin).any():
            loss = loss + (h * torch.exp(margin - h).detach())[sure].mean()
        loss.backward()
        self.adam.zero_grad(set_to_none=False)
        for layer, given, gradient in self.calls:
            if layer in self.trained:
                count = int(given.numel() * shares[self.trained.index(layer)])
                places = given.abs().flatten().topk(count).indices
                filled = torch.zeros_like(given).flatten().index_copy(0, places, given.flatten()[places])
                output = layer.forward(filled.view_as(given))
                layer.weight.grad += torch.autograd.grad(output, layer.weight, gradient)[0]
        self.adam.step()
        return h.detach(), loss.item()


def test_shares_ignore_the_scale_of_the_gradient_and_are_one_if_nothing_is_important() -> None:
    gradients = tuple(torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (4, 9, 30))
    sizes, total = [100, 40, 7], 200
    shares = kept_shares(gradients, sizes, total)
    assert kept_shares(tuple(1e3 * g for g in gradients), sizes, total) == pytest.approx(shares, rel=1e-5)
    assert kept_shares((torch.zeros(3), torch.ones(3)), [5, 5], 20) == [0.0, 1.0]
    assert kept_shares((torch.zeros(3), torch.zeros(3)), [5, 5], 20) == [1.0, 1.0]
    assert kept_shares((torch.ones(3),), [5], 5) == [1.0]


@pytest.mark.parametrize("layers", ["normalisation", "all"])
@pytest.mark.parametrize("margin", [0.4, 0.0])
def test_steps_are_the_published_ones_also_with_no_image_below_the_margin(layers, margin, seen, images) -> None:
    net, config = network(), SURGEONConfig(lr=0.01, layers=layers, probe=6, margin=margin, consistency=0.1)
    net.fc.weight.data.mul_(8.0)  # so that some images are below the margin
    adapter, reference = SURGEON(net, config, runtime=Runtime(precision="fp64")), Reference(net, config)
    entropies = []
    for seed in range(3):
        x = images(20, seed, size=(9, 9)).double()
        log_probs = adapter(x)
        shares = reference.shares(probe=seen[-3])
        h, loss = reference.step(x, shares)
        entropies += h.tolist()
        assert [layer.share for layer in adapter.trained] == pytest.approx(shares, rel=1e-9)
        sizes = [layer.size for layer in adapter.trained]
        kept = sum(int(size * share) for size, share in zip(sizes, shares, strict=True))
        assert adapter.last["kept"] == pytest.approx(kept / sum(sizes))
        assert torch.allclose(-(log_probs.exp() * log_probs).sum(1), h, atol=1e-9)
        assert adapter.last["loss"] == pytest.approx(loss, abs=1e-9)
        for ours, theirs in zip(adapter.networks["model"].parameters(), reference.net.parameters(), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-8)
    assert min(entropies) < 0.4
    assert any(0.4 < h < 0.4 * math.log(4) for h in entropies)
    assert adapter.skipped == 0


def test_importance_is_measured_on_other_images_of_the_batch_each_time(seen, tiny, images) -> None:
    adapter, x, drawn = SURGEON(tiny(), SURGEONConfig(probe=4)), images(9), []
    for _ in range(20):
        adapter(x)
        drawn.append((seen[-3][:, None] == x).flatten(2).all(-1).nonzero()[:, 1].tolist())
    assert all(len(places) == len(set(places)) == 4 for places in drawn)
    assert set().union(*drawn) == set(range(9))
    SURGEON(tiny())(x)
    assert [len(batch) for batch in seen[-6:]] == [4, 9, 9, 9, 9, 9]  # ten of nine images are all of them


@pytest.mark.parametrize("layers", ["normalisation", "all"])
def test_no_bias_is_trained(layers, tiny, images) -> None:
    adapter = SURGEON(tiny(), SURGEONConfig(lr=0.01, layers=layers))
    for seed in range(2):
        adapter(images(seed=seed))
    changed = {
        name
        for name, value in adapter.networks["model"].state_dict().items()
        if not torch.equal(value, adapter.start.state_dict()[name])
    }
    scales = {"norm1.weight", "norm2.weight"}
    assert changed == (scales if layers == "normalisation" else scales | {"conv1.weight", "conv2.weight", "fc.weight"})


def test_the_prediction_is_from_before_the_step(tiny, images) -> None:
    assert torch.equal(SURGEON(tiny(), SURGEONConfig(lr=0.5))(images()), BN(tiny())(images()))


@pytest.mark.filterwarnings("ignore:`channels_last` is left off")
def test_half_precision_works_in_all_layers(images) -> None:
    adapter = SURGEON(network(), SURGEONConfig(layers="all"), runtime=Runtime(precision="bf16", channels_last=True))
    for seed in range(2):
        assert adapter(images(5, seed, size=(9, 9))).isfinite().all()
    assert adapter.skipped == 0


def test_layers_of_the_callers_model_and_subclasses_stay_what_they_are() -> None:
    class Own(nn.Conv2d):
        pass

    model = nn.Sequential(Own(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    adapter = SURGEON(model)
    assert type(model[1]) is nn.BatchNorm2d
    assert type(adapter.networks["model"][0]) is Own


def test_settings_by_data_set_and_wrong_ones() -> None:
    cifar10 = {"lr": 1e-3, "layers": "normalisation", "probe": 10, "margin": 0.4, "consistency": 0.01}
    assert SURGEONConfig() == SURGEONConfig(**cifar10)
    assert configure("surgeon", dataset="cifar100") == SURGEONConfig(lr=3e-4)
    for wrong in ({"lr": -1.0}, {"probe": 0}, {"margin": -0.1}, {"layers": "bn"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SURGEONConfig(**wrong)


def run(net: nn.Module, share: float | None, x: torch.Tensor, batch: bool = True):
    """Output, gradient of the images and gradients of all weights, with one share for all layers."""
    net = copy.deepcopy(net).requires_grad_(False)
    layers = teach_pruning(net)
    for layer in layers:
        layer.share = share
        layer.weight.requires_grad_(True)
    use_batch_statistics(net, batch)
    x = x.clone().requires_grad_()
    output = net(x)
    output.square().sum().backward()
    return output.detach(), x.grad, [layer.weight.grad for layer in layers], layers


@pytest.mark.parametrize("batch", [True, False])
def test_layers_that_prune_nothing_have_the_gradients_of_autograd(batch, images) -> None:
    x, net = images(5, size=(9, 9)), network()
    use_batch_statistics(net, batch)
    plain = copy.deepcopy(net)
    reference = x.clone().requires_grad_()
    output = plain(reference)
    output.square().sum().backward()
    weights = [module.weight.grad for module in plain.modules() if hasattr(module, "weight")]
    ours, input_gradient, gradients, _ = run(net, 1.0, x, batch)
    assert torch.allclose(ours, output, atol=1e-6)
    assert torch.allclose(input_gradient, reference.grad, atol=1e-5)
    assert len(weights) == len(gradients) == 8
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(gradients, weights, strict=True))


@pytest.mark.parametrize("share", [0.0, 0.37])
def test_pruning_changes_weight_gradients_alone(share, images) -> None:
    x, net = images(5, size=(9, 9)), network()
    whole, pruned = run(net, 1.0, x), run(net, share, x)
    assert torch.equal(whole[0], pruned[0])
    assert torch.allclose(whole[1], pruned[1], atol=1e-6)
    assert not any(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole[2], pruned[2], strict=True))


def test_keeping_nothing_gives_no_gradient_at_all(images) -> None:
    *_, gradients, layers = run(network(), 0.0, images(5, size=(9, 9)))
    for gradient, layer in zip(gradients, layers, strict=True):
        assert gradient.abs().max() == 0, type(layer)


def test_exactly_the_largest_entries_are_kept(images) -> None:
    *_, layers = run(network(), 0.37, images(5, size=(9, 9)))
    assert [layer.kept for layer in layers] == [int(layer.size * 0.37) for layer in layers]
    x = torch.tensor([[0.0, -3.0, 1.0], [0.0, 0.0, 2.0]])
    assert torch.equal(largest(x, 2), torch.tensor([[False, True, False], [False, False, True]]))
    assert largest(x, 4).sum() == 4  # also among ties
    assert largest(x, 6).all()


def test_a_pruned_linear_layer_sees_zeros_for_what_was_dropped() -> None:
    layer = nn.Linear(3, 2, bias=False)
    (prunable,) = teach_pruning(layer)
    prunable.share = 0.5
    x = torch.tensor([[0.1, -3.0, 1.0], [0.2, 0.3, 2.0]])
    output_gradient = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    layer(x).backward(output_gradient)
    zero_filled = torch.tensor([[0.0, -3.0, 1.0], [0.0, 0.0, 2.0]])
    assert torch.allclose(layer.weight.grad, output_gradient.T @ zero_filled)


def test_a_pruned_batch_norm_normalises_the_zero_filled_input_by_its_own_statistics() -> None:
    layer = nn.BatchNorm2d(2)
    freeze_statistics(layer)
    (prunable,) = teach_pruning(layer)
    use_batch_statistics(layer, True)
    prunable.share = 0.5
    x = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    gradient = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(1))
    layer(x).backward(gradient)
    filled = torch.where(x.abs() >= x.abs().flatten().sort(descending=True).values[35], x, 0)
    centred = filled - filled.mean((0, 2, 3), keepdim=True)
    normal = centred / (centred.square().mean((0, 2, 3), keepdim=True) + layer.eps).sqrt()
    assert torch.allclose(layer.weight.grad, (gradient * normal).sum((0, 2, 3)), atol=1e-4)

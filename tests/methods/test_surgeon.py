from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from vcotta import Runtime
from vcotta.batch_norm import freeze_statistics, use_batch_statistics
from vcotta.methods import BN, SURGEON, SURGEONConfig, configure, surgeon
from vcotta.methods.surgeon import certain_entropy, kept_shares, teach_pruning


class Bottleneck(nn.Module):
    """Layers of all kinds that can be pruned, with activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding="same", padding_mode="reflect")
        self.norm1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 3, stride=2, groups=2)
        self.norm2 = nn.GroupNorm(3, 6)
        self.hidden = nn.Linear(6, 8)
        self.norm3 = nn.LayerNorm(8)
        self.norm4 = nn.BatchNorm1d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = nn.functional.relu(self.norm1(self.conv1(x)), inplace=True)
        x = nn.functional.relu(self.norm2(self.conv2(x)), inplace=True)
        return self.fc(self.norm4(self.norm3(self.hidden(x.mean((2, 3))))))


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Bottleneck()
        net.train()(torch.rand(16, 3, 9, 9))
    freeze_statistics(net)
    return net


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
    assert torch.equal(surgeon._largest(x, 2), torch.tensor([[False, True, False], [False, False, True]]))
    assert surgeon._largest(x, 4).sum() == 4  # also among ties
    assert surgeon._largest(x, 6).all()


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


def test_shares_follow_gradient_and_memory_and_ignore_the_scale_of_the_gradient() -> None:
    gradients = tuple(torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (4, 9, 30))
    sizes, total = [100, 40, 7], 200
    importance = [
        g.norm().item() / math.sqrt(len(g)) * math.log(total / m) for g, m in zip(gradients, sizes, strict=True)
    ]
    shares = kept_shares(gradients, sizes, total)
    assert shares == pytest.approx([value / max(importance) for value in importance], rel=1e-5)
    assert max(shares) == 1
    assert kept_shares(tuple(1e3 * g for g in gradients), sizes, total) == pytest.approx(shares, rel=1e-5)
    assert kept_shares((torch.zeros(3), torch.ones(3)), [5, 5], 20) == [0.0, 1.0]
    assert kept_shares((torch.zeros(3), torch.zeros(3)), [5, 5], 20) == [1.0, 1.0]
    assert kept_shares((torch.ones(3),), [5], 5) == [1.0]


def test_the_entropy_is_filtered_and_weighted_without_gradient_of_the_weights() -> None:
    z = torch.tensor([[5.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    margin = 0.8
    h = -(z.softmax(1) * z.log_softmax(1)).sum(1)
    assert (h < margin).tolist() == [True, True, False]
    expected = (h[:2] * torch.exp(margin - h[:2].detach())).mean()
    loss = certain_entropy(z.log_softmax(-1), margin)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    (ours,), (theirs,) = torch.autograd.grad(loss, z), torch.autograd.grad(expected, z)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_the_most_important_layer_keeps_everything(tiny, images) -> None:
    for layers, count in (("normalisation", 2), ("all", 5)):
        adapter = SURGEON(tiny(), SURGEONConfig(layers=layers))
        adapter(images())
        shares = [layer.share for layer in adapter.trained]
        assert len(shares) == count
        assert max(shares) == 1
        assert all(0 <= share <= 1 for share in shares)
        assert 0 < adapter.last["kept"] <= 1


def test_importance_is_measured_on_as_many_images_as_asked(tiny, images, monkeypatch) -> None:
    seen = []
    forward = Runtime.forward
    monkeypatch.setattr(Runtime, "forward", lambda self, net, x, **kw: seen.append(len(x)) or forward(self, net, x))
    SURGEON(tiny(), SURGEONConfig(probe=4))(images(9))
    SURGEON(tiny(), SURGEONConfig())(images(9))
    assert seen == [4, 9, 9, 9, 9, 9]


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


def test_without_pruning_a_step_is_that_of_autograd(tiny, images, monkeypatch) -> None:
    monkeypatch.setattr(surgeon, "random_view", lambda images, flip: images)
    monkeypatch.setattr(SURGEON, "_shares", lambda self, images: [1.0] * len(self.trained))
    adapter = SURGEON(tiny(), SURGEONConfig(lr=0.01, layers="all"))
    net = tiny()
    freeze_statistics(net)
    use_batch_statistics(net, True)
    z = net(images())
    h = -(z.softmax(1) * z.log_softmax(1)).sum(1)
    assert h.min() > 0.4 * math.log(4)  # the consistency is all there is
    weights = [net.conv1.weight, net.norm1.weight, net.conv2.weight, net.norm2.weight, net.fc.weight]
    optimizer = torch.optim.Adam(weights, lr=0.01)
    (0.04 * h.mean()).backward()  # the view is the image, so that its cross-entropy is an entropy
    optimizer.step()
    assert torch.equal(adapter(images()), BN(tiny())(images()))
    for ours, theirs in zip((layer.weight for layer in adapter.trained), weights, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


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
    assert configure("surgeon", dataset="cifar100") == SURGEONConfig(lr=3e-4)
    for wrong in ({"lr": -1.0}, {"probe": 0}, {"margin": -0.1}, {"layers": "bn"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SURGEONConfig(**wrong)

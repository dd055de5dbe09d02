from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.methods.run_memory import bytes_of_largest_part, stored_bytes
from vcotta import Runtime, build_adapter
from vcotta.methods import BN, ECoTTA, ECoTTAConfig, ecotta
from vcotta.models import WideResNet


def prepared(model: nn.Module, **options: Any) -> ECoTTA:
    draws = torch.Generator().manual_seed(0)
    source = [(torch.rand(24, 3, 8, 8, generator=draws), torch.arange(24) % 4) for _ in range(2)]
    precision = options.pop("precision", "fp32")
    options = {"warm_up_epochs": 1} | options
    return build_adapter("ecotta", model, source=source, runtime=Runtime(precision=precision), **options)


def normalised(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt() * weight.view(1, -1, 1, 1) + bias.view(1, -1, 1, 1)


class Reference:
    """The card's step on the tests' network, whose two convolutions are the parts."""

    def __init__(self, net: nn.Module, metas: list[dict[str, Tensor]], config: ECoTTAConfig) -> None:
        self.net, self.config = copy.deepcopy(net).double(), config
        self.metas = [{k: v.double().clone().requires_grad_() for k, v in m.items()} for m in metas]
        self.velocity = [{k: torch.zeros_like(v) for k, v in m.items()} for m in self.metas]

    @staticmethod
    def meta(one: dict[str, Tensor], x: Tensor, output: Tensor, stride: int) -> Tensor:
        side = F.conv2d(x, one["conv.weight"], stride=stride, padding=1)
        side = normalised(side, one["side_norm.weight"], one["side_norm.bias"]).relu()
        return normalised(output, one["norm.weight"], one["norm.bias"]) + side

    def step(self, x: Tensor) -> Tensor:
        net, distances = self.net, []

        def part(place: int, layer: nn.Module, x: Tensor, stride: int) -> Tensor:
            output, one = layer(x), self.metas[place]
            distances.append((self.meta(one, x.detach(), output.detach(), stride) - output.detach()).abs().mean())
            return self.meta(one, x, output, stride)

        h = normalised(part(0, net.conv1, x.double(), 2), net.norm1.weight, net.norm1.bias).relu()
        h = normalised(part(1, net.conv2, h, 1), net.norm2.weight, net.norm2.bias).relu()
        log_probs = net.fc(h.mean((2, 3))).log_softmax(-1)
        entropies = -(log_probs.exp() * log_probs).sum(-1)
        kept = entropies.detach() < self.config.margin * torch.tensor(4.0).log()
        loss = entropies[kept].sum() / max(1, int(kept.sum())) + self.config.regularisation * sum(distances)
        loss.backward()
        for one, speeds in zip(self.metas, self.velocity, strict=True):
            for key, value in one.items():
                speeds[key] = 0.9 * speeds[key] + value.grad
                value.data -= self.config.lr * speeds[key]
                value.grad = None
        return log_probs.detach()


def metas_of(adapter: ECoTTA) -> list[dict[str, Tensor]]:
    return [{k: v.detach().clone() for k, v in part.attached.named_parameters()} for part in adapter.parts]


@pytest.mark.parametrize("margin", [0.9, 1.1])
def test_steps_are_those_of_an_independent_computation(margin, tiny, images) -> None:
    adapter = prepared(tiny(), lr=0.1, margin=margin, precision="fp64")
    reference = Reference(tiny(), metas_of(adapter), adapter.config)
    for seed in range(3):
        assert torch.allclose(adapter(images(12, seed)), reference.step(images(12, seed)), atol=1e-9)
    for ours, theirs in zip(metas_of(adapter), reference.metas, strict=True):
        assert all(torch.allclose(ours[key], theirs[key], atol=1e-9) for key in theirs)


def test_only_the_meta_networks_are_trained_and_the_source_network_is_held_once(tiny, images) -> None:
    adapter = prepared(tiny(), lr=0.1)
    adapter(images())
    trained = [p for group in adapter.optimizer.param_groups for p in group["params"]]
    assert len(trained) == 5 * len(adapter.parts) == 10
    kept = {id(tensor) for tensor in (*adapter.start.parameters(), *adapter.start.buffers())}
    others = [t for t in adapter.networks["model"].parameters() if not t.requires_grad]
    assert {id(tensor) for tensor in others} <= kept
    assert all(torch.equal(a, b) for a, b in zip(adapter.start.parameters(), tiny().parameters(), strict=True))
    assert not adapter.state_dict()["networks"]["start"]


def test_meta_networks_that_reproduce_their_parts_leave_the_network_as_it_is(tiny, images) -> None:
    adapter, outputs = prepared(tiny()), []
    with torch.no_grad():
        for part in adapter.parts:
            part.attached.conv.weight.zero_()
            part.attached.side_norm.bias.zero_()
            part.blocks.register_forward_hook(lambda module, inputs, output: outputs.append(output))
        for part in adapter.parts:  # scale and shift that undo the normalisation, one part after another
            adapter.logits(adapter.networks["model"], images())
            output, outputs[:] = outputs[adapter.parts.index(part)], []
            part.attached.norm.weight.copy_((output.var((0, 2, 3), correction=0) + 1e-5).sqrt())
            part.attached.norm.bias.copy_(output.mean((0, 2, 3)))
    assert torch.allclose(adapter(images()), BN(tiny())(images()), atol=1e-5)
    assert adapter.last["distance"] == pytest.approx(0, abs=1e-5)


def test_without_regularisation_and_a_sure_image_nothing_changes(tiny, images) -> None:
    adapter = prepared(tiny(), lr=0.1, margin=0.0, regularisation=0.0)
    before = metas_of(adapter)
    adapter(images())
    assert adapter.last["kept"] == 0
    assert all(torch.equal(a[k], b[k]) for a, b in zip(before, metas_of(adapter), strict=True) for k in a)


def test_a_distance_has_a_gradient_for_its_own_meta_network_alone(tiny, images) -> None:
    adapter = prepared(tiny())
    adapter.logits(adapter.networks["model"], images())
    for part in adapter.parts:
        for other in adapter.parts:
            weight = other.attached.norm.weight
            (found,) = torch.autograd.grad(part.distance, weight, retain_graph=True, materialize_grads=True)
            assert bool(found.any()) == (part is other)


def test_gradients_are_those_of_the_whole_graph(images) -> None:
    adapter = prepared(WideResNet(16, 1, classes=4))
    found = []
    for adapts in (True, False):  # with and without running parts again
        for part in adapter.parts:
            part.adapts = adapts
        loss = adapter.logits(adapter.networks["model"], images()).square().mean()
        found.append(torch.autograd.grad(loss, [p for part in adapter.parts for p in part.attached.parameters()]))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*found, strict=True))


def test_it_stores_a_fraction_of_the_activations_that_tent_and_cotta_store(images) -> None:
    def network() -> nn.Module:
        return WideResNet(16, 2, classes=4).eval()

    batch = images(8, size=(16, 16))
    adapters = {
        "tent": build_adapter("tent", network()),
        "cotta": build_adapter("cotta", network(), threshold=0.0),
        "ecotta": prepared(network()),
    }
    stored = {name: stored_bytes(one, lambda one=one: one(batch)) for name, one in adapters.items()}
    again = bytes_of_largest_part(adapters["ecotta"], batch)
    assert 0 < 3 * stored["ecotta"] < stored["tent"] <= stored["cotta"]
    assert stored["ecotta"] + again < stored["tent"]  # also while the largest part is run again


def test_the_step_size_of_the_warm_up_is_the_published_one_by_epoch() -> None:
    steps = ecotta._rates(ECoTTAConfig())
    assert steps == pytest.approx([0.025, 0.05, 0.05, 0.01, 0.01, 0.01, 0.002, 0.002, 0.0004, 0.0004])
    cosine = ecotta._rates(ECoTTAConfig(warm_up_epochs=3, schedule="cosine"))
    assert cosine == pytest.approx([0.025, 0.0375, 0.0125])


def test_the_warm_up_teaches_the_meta_networks_the_source_labels(tiny) -> None:
    draws, labels = torch.Generator().manual_seed(0), torch.arange(32) % 4
    patterns = torch.rand(4, 3, 8, 8, generator=draws)
    images = 0.8 * patterns[labels] + 0.2 * torch.rand(32, 3, 8, 8, generator=draws)
    losses = []
    for rate in (0.0, 0.05):
        adapter = ECoTTA(tiny(), ECoTTAConfig(warm_up_epochs=10, warm_up_lr=rate))
        adapter.prepare([(images, labels)] * 4)
        losses.append(F.nll_loss(adapter(images), labels).item())
    assert losses[1] < 0.9 * losses[0]


def test_running_statistics_of_the_meta_networks_are_learned_from_source_data_only(tiny, images) -> None:
    adapter = prepared(tiny())
    before = [part.attached.norm.running_mean.clone() for part in adapter.parts]
    assert all(mean.any() for mean in before)
    adapter(images())
    assert all(torch.equal(a, part.attached.norm.running_mean) for a, part in zip(before, adapter.parts, strict=True))


def test_parts_of_other_sizes_than_a_multiple_still_fit(images) -> None:
    pooled = nn.Sequential(Halved(3, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))
    adapter = prepared(pooled.eval())
    assert adapter(images(size=(11, 7))).shape == (6, 4)


class Halved(nn.Module):
    """A block that rounds odd sides down, which a convolution of stride 2 does not."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(self.conv(x), 2)


def test_a_network_without_convolutions_is_refused() -> None:
    with pytest.raises(ValueError, match="a network with convolutions to attach to"):
        prepared(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)))


def test_a_loss_that_is_never_finite_is_reported_in_the_warm_up(tiny) -> None:
    net = tiny()
    net.fc.weight.data.fill_(3e38)
    with pytest.raises(FloatingPointError, match=r"never finite in epoch 1.*`warm_up_lr`"):
        prepared(net)


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"lr": -1.0}, {"parts": 0}, {"margin": "x"}, {"schedule": "none"}, {"warm_up_epochs": 0}):
        with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
            ECoTTAConfig(**wrong)

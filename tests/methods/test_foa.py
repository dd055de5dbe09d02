from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from vcotta import Runtime, build_adapter
from vcotta.methods import BN, FOA
from vcotta.methods.parts.cma_es import CMAES

from .promises import tiny_vit

SOURCE = [(torch.rand(9, 3, 8, 8, generator=torch.Generator().manual_seed(s)), torch.zeros(9)) for s in (50, 51)]
PRECISE = Runtime(precision="fp64")


def prepared(net: nn.Module | None = None, **options) -> FOA:
    adapter = build_adapter("foa", net or tiny_vit(), source=SOURCE, **options)
    assert isinstance(adapter, FOA)
    return adapter


def class_tokens(net: nn.Module, x: torch.Tensor, prompts: torch.Tensor | None = None) -> torch.Tensor:
    """The class token that each next norm makes, block after block."""
    tokens = net.tokens(net.patches(x))
    if prompts is not None:
        tokens = torch.cat([tokens[:, :1], prompts.expand(len(x), -1, -1), tokens[:, 1:]], 1)
    first = net.blocks[0](tokens)
    return torch.cat([net.blocks[1].norm1(first)[:, 0], net.norm(net.blocks[1](first))[:, 0]], -1)


def test_source_statistics_are_mean_and_deviation_of_the_class_tokens_of_all_blocks() -> None:
    adapter = prepared(runtime=PRECISE)
    rows = class_tokens(tiny_vit().double(), torch.cat([images for images, _ in SOURCE]).double())
    assert torch.allclose(adapter.prepared["mean"], rows.mean(0))
    assert torch.allclose(adapter.prepared["deviation"], (rows - rows.mean(0)).square().sum(0).div(17).sqrt())
    few = prepared(source_images=12, runtime=PRECISE)
    assert torch.allclose(few.prepared["mean"], rows[:12].mean(0))


@torch.no_grad()
def test_a_step_is_that_of_the_card(images) -> None:
    adapter = prepared(prompts=2, population=6, discrepancy=0.3, runtime=PRECISE)
    net = tiny_vit().double()
    mean, deviation = adapter.prepared["mean"], adapter.prepared["deviation"]
    moving = None
    for seed in range(4):
        x, before = images(10, seed).double(), {name: value.clone() for name, value in adapter.memory.items()}
        drawn: list[torch.Tensor] = []
        ask = adapter._strategy.ask
        adapter._strategy.ask = lambda state, ask=ask, drawn=drawn: drawn.append(ask(state)) or drawn[-1]
        output = adapter(x.float())
        adapter._strategy.ask = ask
        candidates = torch.cat([drawn[0], before["best"][None]])
        assert candidates.shape == (7, 16)
        fitness, outputs, features = [], [], []
        for prompts in candidates.view(7, 2, 8):
            tokens = class_tokens(net, x, prompts)
            last = tokens[:, 8:]
            p = net.head(last).softmax(-1)
            apart = ((tokens.std(0) - deviation) ** 2).sum() + ((tokens.mean(0) - mean) ** 2).sum()
            fitness.append(-(p * p.log()).sum() + 0.3 * apart * 10 / 64)
            moved = last if moving is None else last + mean[8:] - moving
            outputs.append(net.head(moved).log_softmax(-1))
            features.append(last.mean(0))
        values, new = torch.stack(fitness), torch.stack(features).mean(0)
        best = int(values.argmin())
        assert torch.allclose(output.double(), outputs[best], atol=1e-5)
        assert adapter.last["loss"] == pytest.approx(values[best].item(), rel=1e-6)
        moving = new if moving is None else 0.9 * moving + 0.1 * new
        assert torch.allclose(adapter.memory["features"], moving)
        assert torch.equal(adapter.memory["best"], candidates[best])
        told = CMAES(16, 6).tell(before, candidates, values, injected=1)
        assert all(torch.allclose(adapter.memory[name].double(), value.double()) for name, value in told.items())
    assert adapter.memory["generation"] == 4


def test_no_weight_changes_and_nothing_is_backpropagated(images) -> None:
    adapter = prepared(population=4)
    for seed in range(3):
        adapter(images(seed=seed))
        assert adapter.last["backwards"] == 0
        assert adapter.last["forwards"] == 5
    model = adapter.networks["model"]
    assert all(
        torch.equal(ours, theirs) for ours, theirs in zip(model.parameters(), adapter.start.parameters(), strict=True)
    )
    assert model.head.weight is adapter.start.head.weight  # and so they are held once


def test_repeating_a_batch_finds_fitter_prompts(images) -> None:
    adapter = prepared(prompts=1, population=8)
    found = []
    for _ in range(12):
        adapter(images(20))
        found.append(adapter.last["loss"])
    assert all(later <= earlier for earlier, later in pairwise(found))  # the best one stays
    assert found[-1] < found[0]


def test_the_usual_population_follows_the_size_of_the_prompts() -> None:
    assert prepared()._strategy.population == CMAES(3 * 8).population
    assert prepared(prompts=2, population=9)._strategy.population == 9


def test_a_network_without_tokens_has_its_features_shifted_to_the_sources_mean(tiny, images) -> None:
    adapter, net = prepared(tiny(), prompts=0, runtime=PRECISE), tiny().double().train()

    @torch.no_grad()
    def features(x: torch.Tensor) -> torch.Tensor:
        x = net.norm1(net.conv1(x)).relu()
        return net.norm2(net.conv2(x)).relu().mean((2, 3))

    mean = torch.cat([features(x.double()) for x, _ in SOURCE]).mean(0)
    assert torch.allclose(adapter.prepared["mean"], mean)
    first, second = images(10, 1).double(), images(10, 2).double()
    assert torch.allclose(adapter(first.float()), BN(tiny())(first.float()).double(), atol=1e-5)
    expected = net.fc(features(second) + mean - features(first).mean(0)).log_softmax(-1)
    assert torch.allclose(adapter(second.float()).double(), expected, atol=1e-5)
    moving = 0.9 * features(first).mean(0) + 0.1 * features(second).mean(0)
    assert torch.allclose(adapter.memory["features"], moving)
    assert adapter.last["forwards"] == 1


def test_a_single_image_has_no_deviation_and_a_finite_fitness(images) -> None:
    adapter = prepared(population=4)
    assert adapter(images(1)).isfinite().all()
    assert adapter.last["skipped"] is False


@pytest.mark.parametrize("prompts", [0, 1])
def test_a_batch_whose_fitness_is_not_finite_changes_nothing(prompts, images) -> None:
    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = tiny_vit()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = self.body.run_blocks(self.body.tokens(self.body.patches(x)))
            return self.body.classify(torch.where(x.amax() > 0.9999, torch.nan, 1.0) * tokens)

    adapter, good = prepared(Fragile(), prompts=prompts), images() * 0.5
    bad = good.clone()
    bad[0, 0, 0, 0] = 1.0
    untouched = prepared(Fragile(), prompts=prompts)
    for batch in (bad, good, bad):
        before = {name: value.clone() for name, value in adapter.memory.items()}
        adapter(batch)
        assert adapter.last["skipped"] is (batch is bad)
        assert (batch is not bad) or all(torch.equal(before[name], adapter.memory[name]) for name in before)
    untouched(good)
    untouched._rng.load_state_dict(adapter._rng.state_dict())
    if not prompts:
        assert torch.equal(untouched(good), adapter(good))


def test_a_network_whose_last_linear_layer_does_not_give_the_logits_is_refused() -> None:
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4), nn.Softplus(threshold=1))
    with pytest.raises(ValueError, match="output of the last linear layer"):
        prepared(net, prompts=0)


def test_statistics_of_less_than_two_images_are_refused() -> None:
    with pytest.raises(ValueError, match="two source images or more"):
        build_adapter("foa", tiny_vit(), source=[(torch.rand(1, 3, 8, 8), torch.zeros(1))])


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"prompts": -1}, {"population": 3}, {"discrepancy": -1.0}, {"memory": 2.0}, {"step": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            build_adapter("foa", tiny_vit(), **wrong)

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vcotta import Runtime, build_adapter
from vcotta.methods import ViDA, ViDAConfig, vida
from vcotta.methods.parts.branches import branch_parameters
from vcotta.models import ViT

SOURCE = [(torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(9)), torch.arange(8) % 4)]


def transformer() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = ViT(8, 4, depth=2, width=8, heads=2, classes=4)
        for parameter in net.parameters():
            nn.init.normal_(parameter.data, std=0.4)
    return net.eval()


def views_of(images: torch.Tensor, count: int, flip: bool) -> torch.Tensor:
    return torch.stack([images ** (1 + view) for view in range(count)])


class Adapted(nn.Module):
    """A linear layer with two branches, as a sum of products."""

    def __init__(self, layer: nn.Linear, branches: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.weight, self.bias, self.scales = layer.weight, layer.bias, (1.0, 1.0)
        self.vida = nn.ParameterDict({name: nn.Parameter(tensor.clone()) for name, tensor in branches.items()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low, high = (self.vida[f"{rank}_up"] @ self.vida[f"{rank}_down"] for rank in ("low", "high"))
        return F.linear(x, self.weight + self.scales[0] * low + self.scales[1] * high, self.bias)


class Reference:
    """The step as its card describes it, with the branches of a prepared adapter."""

    def __init__(self, net: nn.Module, prepared: dict[str, torch.Tensor], config: ViDAConfig) -> None:
        self.config, self.student = config, copy.deepcopy(net).double()
        for index, block in enumerate(self.student.blocks):
            for name in ("qkv", "proj"):
                place = f"blocks.{index}.attn.{name}.vida."
                own = {key[len(place) : -7]: tensor for key, tensor in prepared.items() if key.startswith(place)}
                setattr(block.attn, name, Adapted(getattr(block.attn, name), own))
        self.teacher = copy.deepcopy(self.student)
        named = dict(self.student.named_parameters())
        groups = [
            {"params": [p for name, p in named.items() if (".vida." in name) is own], "lr": lr}
            for own, lr in ((False, config.lr), (True, config.lr * config.adapter_lr))
        ]
        self.optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)

    def step(self, x: torch.Tensor) -> tuple[torch.Tensor, float, float]:
        """Log-probabilities, uncertainty and loss."""
        config = self.config
        with torch.no_grad():
            logits = torch.stack([self.teacher(view) for view in views_of(x, config.views, True)])
            u = 0.1 * ((logits - logits.mean(0)).square().sum(0) / (config.views - 1)).mean().item()
        low, high = (1 - u, 1 + u) if u >= config.threshold else (1 + u, 1 - u)
        for net in (self.student, self.teacher):
            for module in net.modules():
                if isinstance(module, Adapted):
                    module.scales = (low, high if config.allotment == "both" else 1.0)
        prediction = self.teacher(x).softmax(1).detach()
        target = prediction if config.target == "image" else logits.mean(0).softmax(1)
        p = self.student(x).softmax(1)
        losses = -(target * p.log()).sum(1)
        if config.loss == "sce":
            losses = 0.5 * losses - 0.5 * (p * target.log()).sum(1)
        self.optimizer.zero_grad()
        losses.mean().backward()
        self.optimizer.step()
        with torch.no_grad():
            for (name, old), new in zip(self.teacher.named_parameters(), self.student.parameters(), strict=True):
                m = config.adapter_beta if ".vida." in name else config.beta
                old.copy_(m * old + (1 - m) * new)
        return prediction.log(), u, losses.mean().item()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"threshold": 1e-6, "loss": "sce", "target": "image"},
        {"threshold": 1e-6, "allotment": "low", "adapter_beta": 0.5},
    ],
    ids=str,
)
def test_its_steps_are_those_of_the_card(options, images, monkeypatch) -> None:
    monkeypatch.setattr(vida, "random_views", views_of)
    chosen = {"lr": 0.1, "adapter_lr": 0.3, "optimizer": "sgd", "high_rank": 3, "views": 3, "beta": 0.9}
    config = ViDAConfig(**{"adapter_beta": 0.7, "restore": 0.0, "threshold": 0.9, "warm_up_lr": 0.1} | chosen | options)
    adapter = ViDA(transformer(), config, runtime=Runtime(precision="fp64"))
    adapter.prepare(SOURCE)
    reference = Reference(transformer(), adapter.prepared, config)
    for seed in range(4):
        x = images(seed=seed)
        expected, uncertainty, loss = reference.step(x.double())
        assert torch.allclose(adapter(x), expected, atol=1e-10)
        assert adapter.last["uncertainty"] == pytest.approx(uncertainty, rel=1e-9)
        assert adapter.last["loss"] == pytest.approx(loss, rel=1e-9)
    assert 0 < uncertainty < 0.9
    for role in ("student", "teacher"):
        theirs = {name.replace(".vida.", "."): p for name, p in getattr(reference, role).named_parameters()}
        for name, ours in adapter.networks[role].named_parameters():
            name = name.replace(".vida.", ".").replace("down.weight", "down").replace("up.weight", "up")
            assert torch.allclose(ours, theirs[name], atol=1e-10), name


def test_with_the_official_target_the_first_step_learns_nothing(tiny, images) -> None:
    moved = {}
    for target in ("image", "views"):
        options = {"target": target, "lr": 1.0, "optimizer": "sgd", "views": 2, "restore": 0.0}
        adapter = build_adapter("vida", tiny(), source=SOURCE, **options)
        before = adapter.networks["student"].fc.weight.clone()
        adapter(images())
        moved[target] = (adapter.networks["student"].fc.weight - before).abs().max().item()
    assert moved["image"] < 1e-6 < 1e-3 < moved["views"]


def test_the_branches_alone_are_trained_on_source_data(tiny) -> None:
    model = tiny()
    adapters = [
        build_adapter("vida", model, source=SOURCE * 20, warm_up_images=count, warm_up_lr=0.01) for count in (0, 160)
    ]
    first, trained = (dict(adapter.networks["student"].named_parameters()) for adapter in adapters)
    branches = set(branch_parameters(adapters[1].networks["student"]))
    assert branches == adapters[1].prepared.keys()
    assert all(torch.equal(first[name], trained[name]) == (name not in branches) for name in first)
    losses = []
    for adapter in adapters:
        net = adapter.networks["student"]
        losses.append(sum(F.cross_entropy(net(x), labels).item() for x, labels in SOURCE))
    assert losses[1] < losses[0]


def test_the_training_on_source_data_ends_with_its_number_of_images(tiny) -> None:
    seen = []

    def source():
        for images, labels in SOURCE * 5:
            seen.append(len(images))
            yield images, labels

    build_adapter("vida", tiny(), source=source(), warm_up_images=12)
    assert seen == [8, 8]


def test_restoring_everything_keeps_the_student_where_it_began(tiny, images) -> None:
    adapter = build_adapter("vida", tiny(), source=SOURCE, restore=1.0, lr=0.1, views=2)
    before = {name: p.detach().clone() for name, p in adapter.networks["student"].named_parameters()}
    adapter(images())
    assert all(torch.equal(before[name], p) for name, p in adapter.networks["student"].named_parameters())
    assert not torch.equal(adapter.networks["teacher"].fc.weight, before["fc.weight"])


def test_views_that_agree_are_no_uncertainty_and_weigh_both_branches_alike(tiny, images, monkeypatch) -> None:
    monkeypatch.setattr(vida, "random_views", lambda images, count, flip: images.expand(count, *images.shape))
    adapter = build_adapter("vida", tiny(), source=SOURCE, views=3)
    adapter(images())
    assert adapter.last["uncertainty"] == 0
    assert adapter.memory["scales"].tolist() == [1, 1]
    for views in (0, 1):
        single = build_adapter("vida", tiny(), source=SOURCE, views=views)
        single(images())
        assert (single.last["uncertainty"], single.last["forwards"]) == (0, 2)


def test_scales_sum_to_two_and_never_change_sign(tiny, images) -> None:
    net = tiny()
    net.fc.weight.data.mul_(1e3)
    adapter = build_adapter("vida", net, source=SOURCE, views=2)
    adapter(images())
    assert adapter.last["uncertainty"] == 1
    assert adapter.memory["scales"].tolist() == [0, 2]


def test_an_unprepared_adapter_is_refused(tiny, images) -> None:
    with pytest.raises(ValueError, match="to be prepared on source data"):
        build_adapter("vida", tiny())(images())


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"low_rank": 0}, {"high_rank": 0}, {"allotment": "none"}, {"restore": 2.0}, {"loss": "mse"}):
        with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
            ViDAConfig(**wrong)

"""A guarded adapter on streams that are none, with a small network that is trained on the digits in a second or two."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta import Adapter, Guard, WarmUpConfig, build_adapter, run_stream, warm_up
from vcotta.data import batches, load_digits
from vcotta.streams import ProtocolStream, make_stream


@pytest.fixture(scope="module")
def warmed() -> nn.Module:
    train, _ = load_digits()
    loader = batches(train.images, train.labels, 50, shuffle_seed=0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.AvgPool2d(2),
            *(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(512, 10)),
        )
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        for _ in range(5):
            for images, labels in loader:
                optimizer.zero_grad()
                F.cross_entropy(net(images), labels).backward()
                optimizer.step()
    return warm_up(net.eval(), loader, WarmUpConfig(flip=False), progress=False)


def stream(*corruptions: str, limit: int = 520) -> ProtocolStream:
    return make_stream("continual", load_digits()[1], corruptions, 3, 40, limit)


def adapter_of(warmed: nn.Module, guard: Guard | bool) -> Adapter:
    return build_adapter("vcotta", warmed, dataset="digits", views=1, guard=guard)


def error(adapter: Adapter) -> float:
    return run_stream(adapter, stream("motion_blur", limit=320)).summary()["mean"]["error"]


@pytest.fixture(scope="module")
def seasoned(warmed) -> Adapter:
    adapter = adapter_of(warmed, Guard(patience=8))
    run_stream(adapter, stream("gaussian_noise"))
    return adapter


def attack(name: str) -> Tensor:
    digits = next(iter(stream("none").batches()))
    return {
        "noise": torch.rand(20, 3, 32, 32, generator=torch.Generator().manual_seed(0)),
        "constant": torch.full((20, 3, 32, 32), 0.5),
        "one class": digits.images[digits.labels == digits.labels[0]].repeat(10, 1, 1, 1)[:20],
    }[name]


@pytest.mark.parametrize("name", ["noise", "constant", "one class"])
def test_after_an_attack_a_guarded_adapter_is_no_worse_than_bn_by_a_point(name, warmed, seasoned) -> None:
    adapter, images = adapter_of(warmed, seasoned.guard), attack(name)
    adapter.load_state_dict(seasoned.state_dict())
    actions = []
    for _ in range(40):
        adapter(images)
        actions.append(adapter.last.get("guard", {}).get("action"))
    assert actions[-1] == "pause"
    assert error(adapter) <= error(build_adapter("bn", warmed)) + 0.01


def test_on_an_ordinary_stream_the_records_with_and_without_a_guard_are_the_same(warmed) -> None:
    ordinary = stream("gaussian_noise", "fog", "contrast", limit=240)
    free, guarded = (run_stream(adapter_of(warmed, guard), ordinary) for guard in (False, True))
    assert guarded.records == free.records
    assert free.manifest["guard"] is None
    assert Guard(**guarded.manifest["guard"]) == Guard()


def test_every_intervention_is_in_the_records(warmed) -> None:
    run = run_stream(adapter_of(warmed, Guard(window=40, collapse=0.01)), stream("gaussian_noise", limit=120))
    events = [record["last"].get("guard") for record in run.records]
    assert events == [None, {"causes": ["collapse"], "action": "pull"}, {"causes": ["collapse"], "action": "pull"}]
    assert json.loads(json.dumps(run.records)) == run.records

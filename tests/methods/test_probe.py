"""A guard's probe: an adapter that forgets is pulled back, and one that does not is left alone."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from torch import Tensor

import vcotta
from vcotta import Adapter, Guard, build_adapter, to_variational
from vcotta.methods import probe as probes
from vcotta.methods.probe import BOUND, COST, GROWTH, IMAGES, LABELS

NO_OTHER = Guard(unsure=None, contradiction=None, collapse=None, overconfidence=None, drift=None)


@pytest.fixture
def net(tiny):
    made = tiny()
    with torch.no_grad():
        made.fc.weight.mul_(20)  # calls some noise one thing and some another
    return made


@pytest.fixture
def probe(net, images) -> tuple[Tensor, Tensor]:
    """Two conditions of sixty images with the labels that the network gives the first."""
    pixels = torch.stack([(images(60, seed=seed) * 255).to(torch.uint8) for seed in (40, 41)])
    return pixels, build_adapter("bn", net)(pixels[0].float() / 255).argmax(1)


def watched(net, probe, **options) -> Adapter:
    options = {"views": 1, "guard": NO_OTHER, "probe": probe} | options
    return build_adapter("vcotta", to_variational(net), **options)


@torch.no_grad()
def ruin(adapter: Adapter, size: float = 1.0) -> None:
    """Move the networks away from the source."""
    draws = torch.Generator().manual_seed(3)
    for role in ("student", "teacher"):
        for p in adapter.networks[role].fc.parameters():
            p.add_(size * p.abs().mean() * torch.randn(p.shape, generator=draws))


def events(adapter: Adapter, images, seeds) -> list[dict | None]:
    found = []
    for seed in seeds:
        adapter(images(seed=seed))
        found.append(adapter.last.get("guard"))
    return found


def loss(adapter: Adapter) -> float:
    return adapter._watch.probe._loss(adapter)


def test_an_adapter_that_keeps_what_it_knew_gives_the_same_bytes_as_without_a_probe(net, probe, images) -> None:
    free, seen = watched(net, None, lr=1e-4), watched(net, probe, lr=1e-4)
    for seed in range(9):
        assert torch.equal(free(images(seed=seed)), seen(images(seed=seed)))
        assert free.last == seen.last
        assert ("probe" in seen.signals) == (seed in (1, 3, 7))  # after 2, 4 and 8 steps
        assert seen.signals.get("probe", 0) <= BOUND
        assert "probe" not in free.signals


@pytest.mark.parametrize("size", [1.0, 3.0])
def test_an_adapter_that_forgets_is_pulled_back_until_it_knows_again_or_starts_again(net, probe, images, size) -> None:
    adapter = watched(net, probe, lr=1e-5)
    assert events(adapter, images, range(3)) == [None] * 3
    ruin(adapter, size)
    assert loss(adapter) > BOUND
    adapter(images(seed=3))  # the fourth step, with a look
    event = adapter.last["guard"]
    assert event["causes"] == ["probe"]
    assert event["action"] in ("pull", "restart")
    assert adapter.signals["probe"] > BOUND
    assert loss(adapter) <= BOUND


def test_an_adapter_that_is_worse_in_one_condition_alone_is_pulled_back_though_it_is_better_in_another(
    net, probe, images, monkeypatch
) -> None:
    adapter = watched(net, probe, lr=1e-6)
    events(adapter, images, range(3))
    wrong = {"source": torch.zeros(2, 60).bool(), "adapted": torch.zeros(2, 60).bool()}
    wrong["source"][0, :9] = True
    monkeypatch.setattr(probes, "_wrong", lambda _, net: wrong["source" if net is adapter.start else "adapted"])
    adapter._watch.probe._source_wrong = None
    assert events(adapter, images, [3]) == [None]  # better in the first
    assert adapter.signals["probe"] == 0  # and as good in the second
    wrong["adapted"][1, 0] = True
    assert events(adapter, images, range(4, 8))[-1]["causes"] == ["probe"]
    assert adapter.signals["probe"] == pytest.approx(1 / 60)


def test_a_method_whose_networks_cannot_be_pulled_starts_again(net, probe, images) -> None:
    source = [(images(24), torch.arange(24) % 4)]
    adapter = build_adapter("rmt", net, source=source, guard=NO_OTHER, probe=probe, lr=1e-6)
    events(adapter, images, range(3))
    ruin(adapter, 5.0)
    assert events(adapter, images, [3]) == [{"causes": ["probe"], "action": "restart"}]
    assert adapter.parameter_distance() == 0


def test_after_a_pull_the_adapter_stays_on_a_leash_that_grows_at_each_good_look(net, probe, images) -> None:
    adapter = watched(net, probe, lr=1e-5)
    events(adapter, images, range(3))
    ruin(adapter)
    adapter(images(seed=3))
    leash = adapter._watch.probe.leash
    assert leash is not None
    ruin(adapter, 0.5)  # beyond the leash
    assert adapter.parameter_distance() > leash
    adapter(images(seed=4))
    assert adapter.last.get("guard") is None
    assert adapter.parameter_distance() <= leash * 1.01
    assert events(adapter, images, range(5, 7)) == [None] * 2
    adapter(images(seed=7))  # the eighth step, with a look
    assert adapter._watch.probe.leash == pytest.approx(GROWTH * leash)


def test_a_stream_resumed_after_a_pull_equals_the_whole(net, probe, images, tmp_path) -> None:
    whole = watched(net, probe, lr=1e-3)
    events(whole, images, range(3))
    ruin(whole)
    assert events(whole, images, [3])[0] is not None
    vcotta.save(whole, tmp_path / "a")
    resumed = vcotta.load(tmp_path / "a", net)
    for seed in range(4, 17):
        assert torch.equal(whole(images(seed=seed)), resumed(images(seed=seed)))
        assert whole.last == resumed.last
        assert whole.signals == resumed.signals
    resumed.reset()
    fresh = watched(net, probe, lr=1e-3)
    assert events(resumed, images, range(9)) == events(fresh, images, range(9))
    assert torch.equal(resumed(images()), fresh(images()))


def test_two_adapters_with_probes_in_two_threads_give_what_each_gives_alone(net, probe, images) -> None:
    def stream(adapter: Adapter) -> Tensor:
        return torch.stack([adapter(images(seed=seed)) for seed in range(9)])

    expected = [stream(watched(net, probe, seed=seed)) for seed in (0, 1)]
    found: dict[int, Tensor] = {}
    adapters = [watched(net, probe, seed=seed) for seed in (0, 1)]
    threads = [threading.Thread(target=lambda k=k: found.update({k: stream(adapters[k])})) for k in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[k], expected[k]) for k in (0, 1))


def test_looks_cost_no_more_than_their_share_of_the_passes(net, probe, images, monkeypatch) -> None:
    adapter, looks = watched(net, probe, lr=0.0), []
    monkeypatch.setattr(probes, "_wrong", lambda *_: looks.append(adapter.steps) or torch.zeros(2, 60).bool())
    adapter._watch.act, act = lambda *_: None, adapter._watch.act
    adapter(images())
    a_step = len(images()) * (adapter.last["forwards"] + 2 * adapter.last["backwards"])
    between = math.ceil(120 / (COST * a_step))
    for adapter.steps in range(1, 3000):
        act(adapter, {})
    assert looks[1:6] == [2, 4, 8, 16, 32]  # the first is of the source
    assert looks[-1] - looks[-2] == between > 32
    assert len(looks) * 120 / (3000 * a_step) < 1.3 * COST  # of which the beginning is a fourth


def test_a_probe_that_nothing_could_look_at_is_refused(net, probe, images) -> None:
    pixels, labels = probe
    with pytest.raises(ValueError, match="with a guard"):
        build_adapter("tent", net, probe=probe)
    for wrong in (
        (pixels.float(), labels),
        (pixels[0], labels),
        (pixels, labels[:5]),
        (pixels, labels.float()),
        (pixels, labels - 1),
        (pixels, labels + 9),
        (pixels[:, :0], labels[:0]),
    ):
        with pytest.raises(ValueError, match=r"probe|at least one image"):
            build_adapter("tent", net, guard=True, probe=wrong)
    with pytest.raises(ValueError, match="prepared on source data"):
        build_adapter("eata", net, guard=True, probe=probe)


def test_a_damaged_probe_in_a_state_is_refused_and_changes_nothing(net, probe, images) -> None:
    adapter = watched(net, probe)
    state = adapter.state_dict()
    state["prepared"][LABELS] = state["prepared"][LABELS][:3]
    with pytest.raises(ValueError, match="a label for each image"):
        watched(net, probe).load_state_dict(state)
    fresh = watched(net, None)
    with pytest.raises(ValueError, match="a label for each image"):
        fresh.load_state_dict(state)
    assert fresh.prepared == {}


def test_preparing_anew_keeps_the_probe_and_a_method_that_adapts_nothing_ignores_it(net, probe, images) -> None:
    adapter = watched(net, probe)
    adapter.prepare([(images(24), torch.arange(24) % 4)])
    assert adapter.prepared.keys() == {IMAGES, LABELS}
    still = build_adapter("source", net, guard=True, probe=probe)
    assert events(still, images, range(4)) == [None] * 4

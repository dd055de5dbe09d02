from __future__ import annotations

import itertools
import math

import pytest
import torch

import vcotta
from vcotta import Guard, build_adapter, to_variational
from vcotta.bayes import variational_parameters
from vcotta.methods import VCoTTA, VCoTTAConfig
from vcotta.methods.guard import Watch
from vcotta.methods.parts.losses import entropy


def says(labels, sureness: float = 8.0, classes: int = 4) -> torch.Tensor:
    """Log-probabilities of a network that names these labels, more or less surely."""
    return (sureness * torch.nn.functional.one_hot(torch.as_tensor(labels), classes).float()).log_softmax(-1)


MIXED = torch.arange(20) % 4


def used(guard: Guard, batches: int = 5) -> Watch:
    """A watch that has seen ordinary batches for longer than its window."""
    watch = Watch(guard, "cpu")
    for _ in range(batches):
        look(watch, says(MIXED), says(MIXED))
    return watch


def look(watch: Watch, source: torch.Tensor, adapted: torch.Tensor, drift: float | None = None) -> list[str]:
    watch.judge(source, adapted, None if drift is None else torch.tensor(drift))
    read = {key: value.item() for key, value in watch.signals().items()}
    causes = watch.verdict(read)
    assert watch.calm.item() == (not causes)
    return causes


def until(watch: Watch, source: torch.Tensor, adapted: torch.Tensor) -> tuple[int, list[str]]:
    """How many batches pass until the guard says something, and what it says."""
    for count in range(1, 50):
        if causes := look(watch, source, adapted):
            return count, causes
    return 50, []


STRANGE = {
    "unsure": (says(MIXED, 0.5), says(MIXED, 0.5)),
    "contradiction": (says(MIXED), says((MIXED + 1) % 4)),
    "collapse": (says(torch.full((20,), 2)), says(torch.full((20,), 2))),
    "overconfidence": (says(MIXED, 4.0), says(MIXED, 14.0)),
}


@pytest.mark.parametrize("cause", STRANGE)
def test_each_protection_sees_its_own_trouble_and_no_other(cause) -> None:
    count, causes = until(used(Guard(window=100)), *STRANGE[cause])
    assert causes == [cause]
    assert count < 8
    assert until(used(Guard(window=100, **{cause: None})), *STRANGE[cause]) == (50, [])


@pytest.mark.parametrize("cause", STRANGE)
def test_a_stream_that_recovers_is_left_alone_again(cause) -> None:
    watch = used(Guard(window=100))
    until(watch, *STRANGE[cause])
    for _ in range(20):
        causes = look(watch, says(MIXED), says(MIXED))
    assert not causes
    assert watch.alarms == 0


def test_what_is_usual_does_not_move_while_the_guard_holds() -> None:
    watch = used(Guard(window=100))
    until(watch, *STRANGE["unsure"])
    before = watch.state_dict()["memory"]
    for _ in range(100):
        assert look(watch, *STRANGE["unsure"]) == ["unsure"]
    after = watch.state_dict()["memory"]
    assert all(torch.equal(before[key], after[key]) for key in ("past_entropy", "past_classes"))


def test_a_source_that_was_always_unsure_is_no_reason_to_stop() -> None:
    watch = Watch(Guard(window=100), "cpu")
    assert all(not look(watch, says(MIXED, 0.5), says(MIXED, 0.5)) for _ in range(50))


def test_a_network_that_is_sure_because_its_source_is_has_lost_nothing() -> None:
    watch = used(Guard(window=100))
    assert all(not look(watch, says(MIXED, 10.0), says(MIXED, 30.0)) for _ in range(50))


def spread(nats: float, classes: int, batch: int = 50) -> torch.Tensor:
    """Log-probabilities of this entropy, each image with the next class on top."""
    low, high = 0.0, 40.0
    for _ in range(50):  # the entropy falls as the network gets surer
        middle = (low + high) / 2
        surer = entropy(says([0], middle, classes)).item() > nats
        low, high = (middle, high) if surer else (low, middle)
    return says(torch.arange(batch) % classes, low, classes)


def lived(levels: list[tuple[float, int]], classes: int, guard: Guard | None = None) -> list[list[str]]:
    """What a guard says at each batch of a stream whose source entropy is at these levels for so many batches."""
    watch = Watch(guard or Guard(), "cpu")
    batches = [(spread(nats, classes), count) for nats, count in levels]
    return [look(watch, batch, batch) for batch, count in batches for _ in range(count)]


def test_with_many_classes_a_source_of_ordinary_entropy_is_calm_and_a_uniform_one_is_not() -> None:
    corruptions = [(nats, 50) for nats in (0.3, 2.5, 0.3, 1.6, 0.35, 2.5)]
    said = lived([*corruptions, (math.log(100), 40)], 100)
    assert not any(said[:300])
    assert said[-1] == ["unsure"]


def test_chance_is_beyond_the_bound_however_unsure_the_past_was() -> None:
    for classes, usual in ((4, 1.1), (10, 2.0), (100, 4.0), (1000, 6.0)):
        said = lived([(usual, 100), (math.log(classes), 40)], classes)
        assert not any(said[:100])
        assert said[-1] == ["unsure"]


def test_a_return_to_a_level_that_was_usual_once_is_no_alarm() -> None:
    assert not any(lived([(1.0, 20), (0.1, 200), (1.0, 50)], 10))  # the easy stretch is twenty windows long
    assert lived([(0.1, 220), (1.0, 50)], 10)[-1] == ["unsure"]


def test_a_thousand_classes_are_judged_after_two_thousand_images_but_their_histogram_later() -> None:
    watch, ordinary = Watch(Guard(), "cpu"), spread(1.0, 1000)
    for _ in range(41):
        assert not look(watch, ordinary, ordinary, drift=0.1)
    assert set(measured(watch)) == {"unsure", "contradiction", "overconfidence", "drift"}
    for _ in range(20):
        causes = look(watch, spread(6.9, 1000), spread(6.9, 1000), drift=0.1)
    assert causes == ["unsure"]
    watch.seen = 50_000
    look(watch, ordinary, ordinary, drift=0.1)
    assert "collapse" in measured(watch)


def measured(watch: Watch) -> list[str]:
    return [name for name in watch.signals() if not name.endswith("alarm")]


def test_a_bound_of_zero_is_not_an_alarm_for_ever() -> None:
    assert not any(lived([(0.3, 40)], 10, Guard(unsure=0.0)))


def test_nothing_is_judged_before_the_window_has_passed() -> None:
    watch = Watch(Guard(window=100), "cpu")
    for strange in (*STRANGE.values(), *STRANGE.values())[:5]:
        assert not look(watch, *strange)
    assert watch.seen == 100


def test_averages_do_not_depend_on_the_size_of_batches() -> None:
    whole, single = Watch(Guard(window=60), "cpu"), Watch(Guard(window=60), "cpu")
    for seed in range(3):
        draws = torch.Generator().manual_seed(seed)
        source, adapted = torch.randn(2, 20, 4, generator=draws).log_softmax(-1)
        look(whole, source, adapted)
        for row in range(20):
            look(single, source[row : row + 1], adapted[row : row + 1])
    one, other = whole.state_dict()["memory"], single.state_dict()["memory"]
    for key in ("entropy", "classes", "sure", "contradicted"):
        assert torch.allclose(one[key], other[key], atol=0.15), key


def test_drift_is_measured_against_what_it_was_after_the_window() -> None:
    watch = Watch(Guard(window=100, drift=3.0), "cpu")
    causes = [look(watch, says(MIXED), says(MIXED), drift) for drift in (0.1, 0.5, 1.0, 2.0, 2.0, 5.9, 6.1)]
    assert causes == [[]] * 6 + [["drift"]]
    still = Watch(Guard(window=100, drift=3.0), "cpu")
    causes = [look(still, says(MIXED), says(MIXED), drift) for drift in (*[0.1] * 5, 2.9, 3.1)]
    assert causes == [[]] * 6 + [["drift"]]


def test_a_drift_that_is_not_a_number_is_beyond_the_bound_and_never_the_measure() -> None:
    watch = Watch(Guard(window=100), "cpu")
    causes = [look(watch, says(MIXED), says(MIXED), drift) for drift in (*[math.nan] * 5, 0.1, math.nan, 0.1)]
    assert causes == [[]] * 6 + [["drift"], []]


def test_nothing_is_learned_beyond_the_drift_bound(tiny, images) -> None:
    adapter = guarded(tiny, collapse=None, drift=10.0, pull=0.0)
    for seed in range(5):
        adapter(images(seed=seed))
    with torch.no_grad():
        for _, mean, _ in variational_parameters(adapter.networks["student"]):
            mean.mul_(3)
    before = weights(adapter)
    adapter(images(seed=5))
    assert adapter.last["guard"] == {"causes": ["drift"], "action": "pull"}
    assert all(torch.equal(a, b) for a, b in zip(before, weights(adapter), strict=True))


def test_the_guards_drift_is_the_one_that_is_noted(tiny, images) -> None:
    adapter = guarded(tiny, window=6)
    for seed in range(3):
        adapter(images(seed=seed))
    assert adapter.signals["drift"] == adapter.last["drift"] > 0


def test_probabilities_that_are_not_numbers_count_as_unsure_and_do_not_spread() -> None:
    watch = used(Guard(window=100))
    broken = torch.full((20, 4), math.nan)
    assert until(watch, broken, broken)[1] == ["unsure"]
    assert 0 < watch.state_dict()["memory"]["entropy"] <= math.log(4)
    assert all(tensor.isfinite().all() for tensor in watch.state_dict()["memory"].values())


@pytest.mark.parametrize("wrong", [{"unsure": 1.5}, {"pull": -0.1}, {"patience": 0}, {"window": 0}, {"drift": -1.0}])
def test_settings_out_of_range_are_refused_by_name(wrong) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Guard(**wrong)


FRAIL = {"window": 24, "patience": 4, "unsure": None, "contradiction": None, "collapse": 0.3}


def decided(tiny) -> torch.nn.Module:
    """A network that calls some noise one thing and some another."""
    net = tiny()
    with torch.no_grad():
        net.fc.weight.mul_(20)
    return net


def guarded(tiny, **options) -> vcotta.Adapter:
    net = to_variational(decided(tiny))
    return build_adapter("vcotta", net, views=1, lr=0.005, guard=Guard(**(FRAIL | options)))


def strange(images, seed: int) -> torch.Tensor:
    """One image again and again, of the class that is rare otherwise."""
    return images(1, seed=6).expand(6, -1, -1, -1) * (0.5 + 0.001 * seed)


def weights(adapter: vcotta.Adapter) -> list[torch.Tensor]:
    return [p.detach().clone() for net in adapter.networks.values() for p in net.parameters()]


def distance(adapter: vcotta.Adapter) -> float:
    return sum(
        (p - s).square().sum().item()
        for net in adapter.networks.values()
        for p, s in zip(net.parameters(), adapter.start.parameters(), strict=True)
    )


def live(adapter: vcotta.Adapter, images, ordinary: int = 5, odd: int = 30) -> list[dict]:
    events = []
    for seed in range(ordinary + odd):
        adapter(images(seed=seed) if seed < ordinary else strange(images, seed))
        events.append(adapter.last.get("guard", {}))
    return events


def test_the_adapter_is_pulled_back_then_started_again_then_waits(tiny, images) -> None:
    adapter = guarded(tiny)
    events = live(adapter, images)
    actions = [event.get("action") for event in events]
    first = actions.index("pull")
    assert first >= 4
    assert actions[first : first + 5] == ["pull"] * 3 + ["restart", "pause"]
    assert set(actions[first + 4 :]) == {"pause"}
    assert all(event["causes"] for event in events[first:])
    assert distance(adapter) == 0  # at the source, and nothing was learned since
    assert adapter.steps == 35
    assert adapter.skipped == 0


def test_no_step_is_taken_on_a_batch_that_the_guard_refuses(tiny, images) -> None:
    adapter = guarded(tiny, pull=0.0)
    actions = [event.get("action") for event in live(adapter, images, odd=0)]
    while actions[-1] is None:
        before = weights(adapter)
        adapter(strange(images, len(actions)))
        actions.append(adapter.last.get("guard", {}).get("action"))
    assert all(torch.equal(a, b) for a, b in zip(before, weights(adapter), strict=True))


def test_pulls_shorten_the_way_to_the_source(tiny, images) -> None:
    adapter = guarded(tiny, patience=100)
    live(adapter, images, odd=0)
    ways = []
    for seed in range(20):
        adapter(strange(images, seed))
        if adapter.last.get("guard"):
            ways.append(distance(adapter))
    assert len(ways) > 10
    assert all(later < 0.9 * earlier for earlier, later in itertools.pairwise(ways))


def test_a_stream_resumed_in_the_middle_of_an_alarm_equals_the_whole(tiny, images, tmp_path) -> None:
    whole, half = guarded(tiny), guarded(tiny)
    events = live(whole, images)
    start = next(place for place, event in enumerate(events) if event) + 2
    for seed in range(start):
        half(images(seed=seed) if seed < 5 else strange(images, seed))
    vcotta.save(half, tmp_path / "a")
    resumed = vcotta.load(tmp_path / "a", tiny())
    assert resumed.guard == half.guard
    for seed in range(start, 35):
        resumed(strange(images, seed))
        assert resumed.last.get("guard", {}) == events[seed]
    assert torch.equal(whole(images()), resumed(images()))
    resumed.reset()
    assert live(resumed, images) == events


def test_a_quiet_guard_changes_nothing(tiny, images) -> None:
    free, watched = (build_adapter("vcotta", to_variational(tiny()), views=2, guard=guard) for guard in (False, True))
    for seed in range(8):
        assert torch.equal(free(images(seed=seed)), watched(images(seed=seed)))
        assert free.last == watched.last
    assert all(torch.equal(a, b) for a, b in zip(weights(free), weights(watched), strict=True))


def test_a_quiet_guard_changes_nothing_of_a_rival_but_the_passes_counted(tiny, images) -> None:
    free, watched = (build_adapter("tent", tiny(), guard=guard) for guard in (False, True))
    for seed in range(8):
        assert torch.equal(free(images(seed=seed)), watched(images(seed=seed)))
        assert watched.last == free.last | {"forwards": free.last["forwards"] + 1}


class Bursting(torch.nn.Module):
    """A network whose output overflows on a bright first pixel."""

    def __init__(self, body: torch.nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x):
        return torch.where(x[:, :1, 0, 0] > 0.99, float("inf"), 1.0) * self.body(x)


def test_an_update_that_is_not_finite_is_noted_as_an_action_of_the_guard(tiny, images) -> None:
    adapter = build_adapter("vcotta", to_variational(Bursting(tiny())), views=0)
    adapter(images() * 0.5)
    assert "guard" not in adapter.last
    adapter(torch.ones(6, 3, 8, 8))
    assert adapter.last["guard"] == {"causes": ["not finite"], "action": "skip"}


def test_an_update_that_is_not_finite_is_noted_during_an_alarm_too(tiny, images) -> None:
    guard = Guard(window=6, unsure=0.0, collapse=0.0)
    adapter = build_adapter("vcotta", to_variational(Bursting(decided(tiny))), views=0, guard=guard)
    adapter(images() * 0.5)
    adapter(images(seed=6) * 0.5)
    adapter(torch.ones(6, 3, 8, 8))
    assert adapter.last["guard"]["action"] == "pull"
    assert "not finite" in adapter.last["guard"]["causes"]
    assert adapter.last["skipped"] is True  # by which a run knows that the prediction is none


def test_the_guard_is_on_for_the_best_preset_alone_unless_asked_for(tiny) -> None:
    net = to_variational(tiny())
    assert build_adapter("vcotta", net).guard == Guard()
    assert build_adapter("vcotta", net, preset="best").guard == Guard()
    assert build_adapter("vcotta", net, guard=Guard(drift=None)).guard == Guard(drift=None)
    assert build_adapter("tent", tiny(), guard=True).guard == Guard()
    off = [build_adapter("vcotta", net, preset=preset) for preset in ("paper", "authors")]
    off += [build_adapter("vcotta", net, guard=False), build_adapter("tent", tiny()), VCoTTA(net, VCoTTAConfig())]
    assert all(adapter.guard is None for adapter in off)
    with pytest.raises(TypeError, match="Guard"):
        VCoTTA(net, guard=0.5)


@pytest.mark.parametrize("name", ["tent", "cotta", "rmt"])
def test_rivals_can_be_guarded_too(name, tiny, images) -> None:
    source = [(images(24), torch.arange(24) % 4)]
    adapter = build_adapter(name, decided(tiny), source=source, lr=1e-4, guard=Guard(**(FRAIL | {"patience": 2})))
    actions = [event.get("action") for event in live(adapter, images, odd=10)]
    assert "restart" in actions
    assert actions[:4] == [None] * 4


def test_a_method_that_keeps_nothing_has_nothing_to_guard(tiny, images) -> None:
    adapter = build_adapter("bn", decided(tiny), guard=Guard(**FRAIL))
    assert not any(live(adapter, images, odd=10))
    assert adapter.last["forwards"] == 1


def test_a_state_with_another_guard_is_refused(tiny) -> None:
    net = to_variational(tiny())
    free, watched = (build_adapter("vcotta", net, guard=guard) for guard in (False, True))
    with pytest.raises(ValueError, match="same `guard`"):
        free.load_state_dict(watched.state_dict())
    with pytest.raises(ValueError, match="no guard"):
        watched.load_state_dict(free.state_dict())

import json
from collections import Counter

import numpy as np
import pytest
import torch

from vcotta.corruptions import STANDARD
from vcotta.data import ImageData
from vcotta.streams.frames import USELESS
from vcotta.streams.protocols import (
    ORDERS,
    PROTOCOLS,
    Continual,
    Correlated,
    Gradual,
    Loops,
    MixedDomains,
    Orders,
    Practical,
    Recurring,
    ResetEachShift,
    build_protocol,
)
from vcotta.streams.stream import make_stream

THREE = ("gaussian_noise", "fog", "contrast")
VISITS = {"gradual": 9, "loops": 10, "recurring": 20}
CORRUPTING = [name for name in PROTOCOLS if name != "day_night"]


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return ImageData(
        rng.integers(0, 256, (23, 32, 32, 3), dtype=np.uint8), rng.integers(0, 4, 23), tuple("abcd"), "squares"
    )


def plan(protocol, corruptions=THREE, severity=5, labels=23, seed=0):
    labels = np.arange(labels) % 4 if isinstance(labels, int) else labels
    return protocol.plan(corruptions, protocol.severities(severity), labels, seed)


def test_names_are_those_users_know():
    assert list(PROTOCOLS) == [
        "continual",
        "gradual",
        "orders",
        "loops",
        "reset_each_shift",
        "mixed_domains",
        "correlated",
        "practical",
        "recurring",
        "bursts",
        "day_night",
    ]


def made_of(name, data, corruptions=THREE, **more):
    """A stream; that of `day_night` has no corruptions to choose."""
    return make_stream(name, data, corruptions if name in CORRUPTING else None, **more)


@pytest.mark.parametrize("name", CORRUPTING)
def test_every_image_comes_once_in_each_visit_of_a_domain(name):
    visits = VISITS.get(name, 1)
    seen = Counter()
    for segment in plan(build_protocol(name)):
        if segment.useless:
            continue
        which = np.zeros(len(segment.images), int) if segment.which is None else segment.which
        seen.update((segment.domains[kind][0], image) for kind, image in zip(which, segment.images, strict=True))
    assert seen == {(corruption, image): visits for corruption in THREE for image in range(23)}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_started_in_the_middle_equals_the_rest_of_a_whole_pass(data, name):
    def made():
        return made_of(name, data, batch_size=10, limit=15, seed=3)

    whole = list(made())
    assert [batch.index for batch in whole] == list(range(len(made())))
    for start in (0, 1, len(whole) - 2, len(whole)):
        for one, other in zip(made().batches(start), whole[start:], strict=True):
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.labels, other.labels)
            assert (one.index, one.domain, one.severity) == (other.index, other.domain, other.severity)
            assert (one.reset, one.domains, one.severities) == (other.reset, other.domains, other.severities)


@pytest.mark.parametrize("name", CORRUPTING)
@pytest.mark.parametrize("size", [1, 4, 200])
def test_an_image_has_the_same_pixels_in_every_protocol_and_batch_size(data, name, size):
    seen = Counter()
    data = ImageData(data.images[:5], np.arange(5), tuple("abcde"), "five")  # the label tells the image
    right = {
        (batch.domain, batch.severity, batch.labels.item()): batch.images[0]
        for batch in make_stream("continual", data, THREE, (1, 2, 3, 4, 5), batch_size=1, seed=2)
    }
    for batch in make_stream(name, data, THREE, batch_size=size, seed=2):
        if batch.domain in USELESS:
            continue
        names = batch.domains or (batch.domain,) * len(batch.labels)
        for domain, label, image in zip(names, batch.labels.tolist(), batch.images, strict=True):
            assert torch.equal(image, right[domain, batch.severity, label])
            seen[domain, label] += 1
    assert len(seen) == 15


@pytest.mark.parametrize("name", CORRUPTING)
def test_the_last_short_batch_is_kept(data, name):
    batches = [batch for batch in make_stream(name, data, THREE, batch_size=10) if batch.domain not in USELESS]
    sizes = [len(batch.labels) for batch in batches]
    assert sizes[-1] == {"mixed_domains": 9, "bursts": 1}.get(name, 3)
    assert sum(sizes) == 23 * 3 * VISITS.get(name, 1)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_description_survives_json_and_names_the_protocol(data, name):
    told = made_of(name, data, severity=(3, 5)).describe()
    assert json.loads(json.dumps(told)) == told
    assert told["protocol"] == name
    assert sorted(told["order"]) == (sorted(THREE) if name in CORRUPTING else ["clean", "dark"])


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_stream_prints_as_one_sentence(data, name):
    for made in (make_stream(name, data), made_of(name, data, ("none",))):
        text = str(made)
        assert text[0].isupper()
        assert text.endswith(".")
        assert ", ," not in text
        assert ". " not in text.replace("0.1", "")


def test_sentences_say_what_will_come(data):
    told = {name: str(made_of(name, data, batch_size=10)) for name in PROTOCOLS}
    begin = "stream of squares: 3 corruptions at severity 5, 23 images each,"
    assert told == {
        "continual": f"Continual {begin} 9 batches of up to 10, seed 0.",
        "gradual": "Gradual stream of squares: 3 corruptions at severities 1, 2, 3, 4, 5, 4, 3, 2, 1, 23 images each, "
        "81 batches of up to 10, seed 0.",
        "orders": f"Continual {begin} 9 batches of up to 10, in random order 0, seed 0.",
        "loops": f"Continual {begin} 90 batches of up to 10, in 10 rounds, seed 0.",
        "reset_each_shift": f"Continual {begin} 9 batches of up to 10, the adapter reset at each shift, seed 0.",
        "mixed_domains": f"Mixed {begin} 7 batches of up to 10, domains mixed in every batch, seed 0.",
        "correlated": f"Correlated {begin} 9 batches of up to 10, labels correlated by delta 0.1, seed 0.",
        "practical": f"Practical {begin} 9 batches of up to 10, labels correlated by delta 0.1, seed 0.",
        "recurring": f"Recurring {begin} 180 batches of up to 10, 20 visits of each domain, labels correlated by delta "
        "0.1, seed 0.",
        "bursts": f"Continual {begin} 32 batches of up to 10, with bursts of 32 useless frames, seed 0.",
        "day_night": "Day and night stream of squares: clean and dark images at severity 5, 23 images each, 30 batches "
        "of up to 10, in 5 turns.",
    }
    assert Loops(1).remark() == "in 1 round"
    assert Correlated(0).remark() == "images sorted by class"


def test_images_as_they_are_can_follow_a_protocol(data):
    mixed = make_stream("mixed_domains", data, ("none",), batch_size=10, seed=4)
    batches = list(mixed)
    assert {(batch.domain, batch.severity, batch.domains) for batch in batches} == {("clean", 0, None)}
    assert mixed.describe()["seed"] == 4  # it draws the order
    assert make_stream("loops", data, ("none",)).describe()["seed"] is None
    assert sorted(torch.cat([batch.labels for batch in batches]).tolist()) == sorted(data.labels.tolist())


def test_gradual_climbs_and_fades_within_each_corruption():
    up_and_down = [1, 2, 3, 4, 5, 4, 3, 2, 1]
    domains = [segment.domains[0] for segment in plan(Gradual(), STANDARD)]
    assert len(domains) == 9 * 15
    assert domains == [(name, severity) for name in STANDARD for severity in up_and_down]
    assert [segment.domains[0][1] for segment in plan(Gradual(), ("fog",), 2)] == [1, 2, 1]
    assert [segment.domains[0][1] for segment in plan(Gradual(), ("fog",), (3, 5))] == [3, 5, 3]


def test_gradual_manifest_lists_the_severities_up_and_down(data):
    assert make_stream("gradual", data).describe()["severities"] == [1, 2, 3, 4, 5, 4, 3, 2, 1]
    with pytest.raises(ValueError, match="`severity` to be 1 to 5, but got 0"):
        make_stream("gradual", data, severity=0)


def test_ten_orders_are_different_permutations(data):
    orders = [Orders(k).ordered(STANDARD) for k in range(ORDERS)]
    assert len({*orders, STANDARD}) == 11
    assert all(sorted(order) == sorted(STANDARD) for order in orders)
    stream = make_stream("orders", data, order=3, seed=8)
    assert [batch.domain for batch in stream.batches(0)] == list(orders[3])  # whatever the seed
    told = stream.describe()
    assert (told["order"], told["order_number"]) == (list(orders[3]), 3)


def test_few_corruptions_have_few_orders(data):
    assert {Orders(k).ordered(("fog", "snow")) for k in range(2)} == {("fog", "snow"), ("snow", "fog")}
    with pytest.raises(ValueError, match="`order` to be less than 2, the number of orders of 2 corruptions, but got 2"):
        make_stream("orders", data, ("fog", "snow"), order=2)


def test_loops_repeat_all_corruptions_in_the_same_order():
    domains = [segment.domains[0][0] for segment in plan(Loops(3))]
    assert domains == [*THREE] * 3
    assert len(plan(Loops(), STANDARD)) == 150


def test_reset_comes_on_the_first_batch_of_each_domain_but_the_first(data):
    batches = list(make_stream("reset_each_shift", data, THREE, (3, 5), batch_size=10))
    assert [batch.index for batch in batches if batch.reset] == [3, 6, 9, 12, 15]
    assert not any(batch.reset for batch in make_stream("continual", data, THREE, batch_size=10))
    assert not any(segment.reset for protocol in (Continual(), Loops(), MixedDomains()) for segment in plan(protocol))
    assert [segment.reset for segment in plan(ResetEachShift(), ("fog",))] == [False]


def test_mixed_batches_have_all_domains_in_nearly_equal_number(data):
    for batch in list(make_stream("mixed_domains", data, THREE, batch_size=10))[:-1]:
        counts = Counter(batch.domains)
        assert (batch.domain, batch.severity) == ("mixed", 5)
        assert set(counts) == set(THREE)
        assert max(counts.values()) - min(counts.values()) <= 2


def test_mixed_severities_are_domains_of_their_own(data):
    batches = list(make_stream("mixed_domains", data, ("fog", "contrast"), (3, 5), batch_size=10))
    assert {batch.severity for batch in batches} == {0}
    counts = Counter(pair for batch in batches for pair in zip(batch.domains, batch.severities, strict=True))
    assert counts == {("fog", 3): 23, ("fog", 5): 23, ("contrast", 3): 23, ("contrast", 5): 23}


@pytest.mark.parametrize("protocol", [MixedDomains(), Correlated(), Correlated(0), Practical(), Recurring(visits=2)])
def test_order_of_images_is_drawn_from_the_seed(protocol):
    one, same, other = ([segment.images for segment in plan(protocol, seed=seed)] for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    alone = plan(Correlated(), ("fog",), seed=1)[0].images
    assert np.array_equal(alone, plan(Correlated(), seed=1)[1].images)  # whatever comes beside it


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("gradul", {}, "Did you mean 'gradual'"),
        ("mixed", {}, "Did you mean 'mixed_domains'"),
        ("orders", {"order": 10}, r"`order` to lie in \[0, 9\], but got 10"),
        ("orders", {"order": True}, "`order`"),
        ("loops", {"rounds": 0}, "`rounds` to be at least 1, but got 0"),
        ("loops", {"round": 2}, "options of the protocol loops to be rounds, but got 'round'"),
        ("continual", {"rounds": 2}, "options of the protocol continual to be none, but got 'rounds'"),
        ("correlated", {"delta": -0.1}, "`delta` to be at least 0, but got -0.1"),
        ("practical", {"gamma": 0.1}, "options of the protocol practical to be delta, but got 'gamma'"),
        ("recurring", {"visits": 0}, "`visits` to be at least 1, but got 0"),
        ("bursts", {"frames": 0}, "`frames` to be at least 1, but got 0"),
        ("day_night", {"turns": 0}, "`turns` to be at least 1, but got 0"),
        ("correlated", {"delta": float("nan")}, "`delta`"),
        ("correlated", {"delta": float("inf")}, "`delta`"),
        (Loops(2), {"rounds": 3}, "rounds only with the name of a protocol"),
    ],
)
def test_wrong_names_and_numbers_are_refused(data, name, options, text):
    with pytest.raises(ValueError, match=text):
        make_stream(name, data, **options)

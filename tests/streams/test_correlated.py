import numpy as np
import pytest

from vcotta.corruptions import STANDARD
from vcotta.streams.correlated import PRACTICAL_ORDER, Correlated, Practical, Recurring

THREE = ("gaussian_noise", "fog", "contrast")


def plan(protocol, corruptions=THREE, labels=None, seed=0):
    return protocol.plan(corruptions, (5,), np.arange(23) % 4 if labels is None else labels, seed)


def run_length(labels):
    return len(labels) / (1 + np.count_nonzero(labels[1:] != labels[:-1]))


@pytest.mark.parametrize("classes", [2, 10, 150])
def test_large_delta_is_a_random_order(classes):
    labels = np.random.default_rng(0).integers(0, classes, 3000)
    shuffled = run_length(np.random.default_rng(1).permutation(labels))
    segments = plan(Correlated(1e9), labels=labels)
    for segment in segments:
        order = labels[segment.images]
        assert run_length(order) == pytest.approx(shuffled, rel=0.07)
        halves = [np.bincount(half, minlength=classes) for half in np.split(order, 2)]
        assert abs(halves[0] - halves[1]).max() < 6 * np.sqrt(3000 / classes)
    assert not np.array_equal(segments[0].images, segments[1].images)


@pytest.mark.parametrize("classes", [2, 10, 150])
def test_small_delta_sorts_by_class(classes):
    labels = np.random.default_rng(0).integers(0, classes, 3000)
    for segment in plan(Correlated(1e-9), labels=labels):
        order = labels[segment.images]
        assert 1 + np.count_nonzero(order[1:] != order[:-1]) <= 1.02 * classes
        assert not np.array_equal(segment.images, np.sort(segment.images))


def test_correlation_falls_with_delta():
    labels = np.arange(2000) % 10
    lengths = [run_length(labels[plan(Correlated(delta), labels=labels)[0].images]) for delta in (0.01, 0.1, 1, 100)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[1] > 10


def test_images_of_one_class_are_shuffled():
    images = plan(Correlated(), labels=np.zeros(50, np.int64))[0].images
    assert sorted(images) == list(range(50))
    assert images.tolist() != list(range(50))


def classes_of_a_batch(labels, size):
    """Mean number of classes in a batch."""
    return np.mean([len(np.unique(labels[start : start + size])) for start in range(0, len(labels) - size + 1, size)])


@pytest.mark.parametrize("protocol", [Correlated(0), Practical(0)])
def test_delta_zero_is_one_block_a_class_in_a_random_order_of_classes(protocol):
    labels = np.random.default_rng(0).integers(0, 10, 500)
    firsts = set()
    for segment in plan(protocol, labels=labels):
        order = labels[segment.images]
        starts = np.flatnonzero(np.diff(order, prepend=-1))
        assert sorted(order[starts]) == list(range(10))
        block = segment.images[: starts[1]]
        assert not np.array_equal(block, np.sort(block))
        firsts.add(tuple(order[starts]))
    assert len(firsts) == 3
    assert tuple(range(10)) not in firsts


def test_a_practical_batch_has_the_classes_of_rottas_code():
    labels = np.arange(10_000) % 10
    ours, theirs = (
        np.mean([classes_of_a_batch(labels[segment.images], 64) for segment in plan(protocol, THREE * 3, labels, seed)])
        for protocol, seed in ((Correlated(0.1), 1), (Practical(0.1), 1))
    )
    assert ours == pytest.approx(1.8, abs=0.15)
    assert theirs == pytest.approx(1.4, abs=0.15)


def test_a_class_is_one_block_within_each_slot_of_the_practical_stream():
    labels = np.random.default_rng(0).integers(0, 5, 4000)
    (segment,) = plan(Practical(100.0), ("fog",), labels)
    order = labels[segment.images]
    blocks = 1 + np.count_nonzero(np.diff(order))
    assert 15 < blocks <= 25  # five slots of five classes; neighbours of one class join
    for label in range(5):  # each class comes in the order of the data
        assert np.array_equal(segment.images[order == label], np.flatnonzero(labels == label))


def test_the_practical_stream_has_rottas_order_of_the_standard_corruptions():
    assert sorted(PRACTICAL_ORDER) == sorted(STANDARD)
    assert Practical().ordered(STANDARD) == PRACTICAL_ORDER
    assert Recurring().ordered(STANDARD) == PRACTICAL_ORDER
    assert Practical().ordered(("snow", "fog")) == ("snow", "fog")


def test_a_recurring_stream_visits_all_domains_again_in_new_orders_of_images():
    labels = np.arange(200) % 10
    segments = plan(Recurring(visits=4), ("fog", "snow"), labels)
    assert [segment.domains for segment in segments] == [(("fog", 5),), (("snow", 5),)] * 4
    assert all(sorted(segment.images) == list(range(200)) for segment in segments)
    assert len({tuple(segment.images) for segment in segments}) == 8
    assert len(plan(Recurring(), ("fog",), labels)) == 20
    assert max(classes_of_a_batch(labels[segment.images], 20) for segment in segments) < 5  # 8.8 in random order

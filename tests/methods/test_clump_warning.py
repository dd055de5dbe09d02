"""When the warning of correlated labels comes, and by which sign it says so."""

from __future__ import annotations

import warnings

import pytest

from vcotta.methods.class_mix import ClumpWarning
from vcotta.methods.guard import DiversityWarning


def heard(watch: ClumpWarning, *batches: tuple[float, float], images: int = 20) -> list[str]:
    """What is said of batches of (class_diversity, random_order), where statistics are inferred."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DiversityWarning)
        for diversity, mixed in batches:
            watch.see({"class_diversity": diversity, "random_order": mixed}, images, "vcotta", inferred=True)
    return [str(one.message) for one in caught]


LOW, FINE = (0.3, 0.1), (1.0, 0.9)


def test_one_or_two_batches_that_look_like_clumps_are_chance() -> None:
    watch = ClumpWarning()
    assert heard(watch, LOW, LOW, FINE, LOW, LOW, FINE) == []
    assert not watch.low


def test_the_third_in_a_row_is_told_once() -> None:
    watch = ClumpWarning()
    assert heard(watch, LOW, LOW) == []
    assert len(heard(watch, LOW, LOW, LOW)) == 1
    assert watch.low


@pytest.mark.parametrize(
    ("diversity", "sign"),
    [(0.3, "its batches hold 30% of the classes of a stream"), (0.9, "neighbours agree more often than in a stream")],
)
def test_it_says_by_which_sign(diversity, sign) -> None:
    (said,) = heard(ClumpWarning(), *[(diversity, 0.1)] * 3)
    assert sign in said


def test_it_counts_on_after_a_checkpoint() -> None:
    first, resumed, older = ClumpWarning(), ClumpWarning(), ClumpWarning()
    heard(first, LOW, LOW)
    resumed.load_state_dict(first.state_dict())
    assert len(heard(resumed, LOW)) == 1
    older.load_state_dict({name: value for name, value in first.state_dict().items() if name != "lows"})
    assert heard(older, LOW) == []

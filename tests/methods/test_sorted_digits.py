"""The demo's network on clean digits sorted by class: adapting must not do harm where nothing has changed."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from vcotta import Adapter
from vcotta.data import batches, load_digits
from vcotta.experiments.build import adapter_for_spec
from vcotta.runs.spec import RunSpec

BATCH, IMAGES = 16, 400


def errors_and_events(adapter: Adapter) -> tuple[float, list[dict]]:
    """The error on the first test images, sorted by class, in per cent, and what the guard said on the way."""
    data = load_digits()[1]
    order = np.argsort(data.labels[:IMAGES], kind="stable")
    wrong, events = 0, []
    for images, labels in batches(data.images[order], data.labels[order], BATCH):
        wrong += int((adapter(images).argmax(1) != labels).sum())
        events.append(adapter.last.get("guard"))
    return 100 * wrong / len(order), [event for event in events if event]


@pytest.mark.slow
def test_on_clean_digits_sorted_by_class_vcotta_is_at_most_a_point_worse_than_source_and_warns_once(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path))
    plain, _ = errors_and_events(adapter_for_spec(RunSpec("source")))
    adapter = adapter_for_spec(RunSpec("vcotta"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        adapted, events = errors_and_events(adapter)
    assert adapted <= plain + 1
    assert len([one for one in caught if "labels of this stream seem correlated" in str(one.message)]) == 1
    assert events[0] == {"causes": ["diversity"], "action": "note"}

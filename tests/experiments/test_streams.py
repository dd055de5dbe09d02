from __future__ import annotations

from vcotta.experiments.benchmarks import BENCHMARKS
from vcotta.experiments.streams import stream_settings


def test_every_stream_of_a_data_set_has_its_own_name() -> None:
    for dataset in BENCHMARKS:
        names = [stream.name for stream in stream_settings(dataset)]
        assert len(set(names)) == len(names)


def test_the_quick_streams_have_no_single_images_and_few_visits() -> None:
    full, quick = ({one.name: one for one in stream_settings("cifar10", quick)} for quick in (False, True))
    assert full.keys() - quick.keys() == {"continual-1"}
    assert quick["recurring-200"].options == {"visits": 3}


def test_only_streams_with_correlated_labels_have_a_delta() -> None:
    found = {one.protocol: one.delta for one in stream_settings("digits")}
    assert {name for name, delta in found.items() if delta is not None} == {"correlated", "practical", "recurring"}

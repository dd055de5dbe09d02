from __future__ import annotations

from dataclasses import replace

import pytest

from vcotta.experiments import prepared
from vcotta.experiments.benchmark import BENCHMARKS, Benchmark
from vcotta.experiments.prepared import prepare_adapter
from vcotta.experiments.setup import adapter_for
from vcotta.methods import CoTTA


@pytest.fixture
def reads(monkeypatch, tmp_path):
    """How often the training images were read; the cache is a fresh one."""
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path))
    calls = []
    digits = BENCHMARKS["digits"]
    whole = type(digits).source

    def counted(self, seed, *more):
        calls.append(seed)
        return whole(self, seed, *more)

    monkeypatch.setattr(type(digits), "source", counted)
    return calls


def test_source_data_is_read_once_and_a_damaged_file_made_anew(reads, tmp_path) -> None:
    digits = BENCHMARKS["digits"]
    model = digits.build(None)

    def threshold() -> float:
        adapter = CoTTA(model)
        prepare_adapter(adapter, digits)
        return adapter.threshold

    first = threshold()
    assert threshold() == first
    assert reads == [0]
    (path,) = (tmp_path / "prepared").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    assert threshold() == first
    assert reads == [0, 0]


def test_methods_learn_from_source_images_in_batches_of_the_stream(reads, monkeypatch) -> None:
    digits = replace(BENCHMARKS["digits"], training_batch=40, batch_size=100)
    monkeypatch.setattr(Benchmark, "trains_itself", False)  # as the large benchmarks are
    sizes = []
    monkeypatch.setattr(CoTTA, "learn_source", lambda self, source: sizes.extend(len(x) for x, _ in source) or {})
    adapter_for(digits, "cotta", digits.build(None), threshold=None)
    assert sizes == [100] * 10


def test_another_network_and_another_seed_are_prepared_on_their_own(reads) -> None:
    digits = BENCHMARKS["digits"]
    for seed in range(2):
        prepare_adapter(CoTTA(digits.build(None, seed=seed)), digits)
    prepare_adapter(CoTTA(digits.build(None), seed=1), digits)  # preparing may draw random numbers
    assert reads == [0, 0, 0]


@pytest.mark.parametrize(("threshold", "times"), [(None, 1), (0.5, 0)])
def test_an_open_threshold_is_learned_though_the_method_could_do_without(threshold, times, reads, monkeypatch) -> None:
    digits = BENCHMARKS["digits"]
    monkeypatch.setattr(type(digits), "trains_itself", False)  # as the large benchmarks are
    adapter = adapter_for(digits, "cotta", digits.build(None), threshold=threshold)
    assert len(reads) == times
    assert ("threshold" in adapter.prepared) == bool(times)


def test_the_cache_is_keyed_by_all_that_matters() -> None:
    facts = {"method": "cotta", "seed": 0}
    assert prepared.prepared_path(facts) == prepared.prepared_path(dict(facts))
    assert prepared.prepared_path(facts) != prepared.prepared_path(facts | {"seed": 1})

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vcotta.experiments.benchmarks import BENCHMARKS
from vcotta.experiments.build import adapter_for_spec, prepare_adapter
from vcotta.experiments.cache import cached
from vcotta.methods import CoTTA
from vcotta.runs.spec import RunSpec


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
    (path,) = (tmp_path / "prepared").glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:100])
    assert threshold() == first
    assert reads == [0, 0]


def test_methods_learn_from_source_images_in_batches_of_the_stream(reads, monkeypatch) -> None:
    digits = replace(BENCHMARKS["digits"], training_batch=40, batch_size=100)
    monkeypatch.setitem(BENCHMARKS, "digits", digits)
    sizes = []
    monkeypatch.setattr(CoTTA, "learn_source", lambda self, source: sizes.extend(len(x) for x, _ in source) or {})
    adapter_for_spec(RunSpec("cotta", options={"threshold": None}), model=digits.build(None))
    assert sizes == [100] * 10


def test_another_network_and_another_seed_are_prepared_on_their_own(reads) -> None:
    digits = BENCHMARKS["digits"]
    for seed in range(2):
        prepare_adapter(CoTTA(digits.build(None, seed=seed)), digits)
    prepare_adapter(CoTTA(digits.build(None), seed=1), digits)  # preparing may draw random numbers
    assert reads == [0, 0, 0]


@pytest.mark.parametrize(("threshold", "times"), [(None, 1), (0.5, 0)])
def test_an_open_threshold_is_learned_though_the_method_could_do_without(threshold, times, reads) -> None:
    spec = RunSpec("cotta", options={"threshold": threshold})
    adapter = adapter_for_spec(spec, model=BENCHMARKS["digits"].build(None))
    assert len(reads) == times
    assert ("threshold" in adapter.prepared) == bool(times)


def test_the_cache_keeps_by_all_the_facts_and_says_what_made_a_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path))

    def make(path: Path) -> str:
        path.write_text("made")
        return "made"

    facts = {"method": "cotta", "seed": 0}
    assert cached("prepared", facts, make, Path.read_text) == ("made", False)
    assert cached("prepared", dict(facts), make, Path.read_text) == ("made", True)
    assert cached("prepared", facts | {"seed": 1}, make, Path.read_text) == ("made", False)
    assert cached("warmed", facts, make, Path.read_text) == ("made", False)
    notes = [json.loads(path.read_text()) for path in tmp_path.glob("prepared/*.json")]
    (noted,) = (note for note in notes if note["seed"] == 0)
    assert noted.items() >= facts.items()
    assert {"sha256", "licence", "vcotta"} <= noted.keys()

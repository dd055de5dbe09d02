"""Signs that a stream does worse than the source network."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vcotta import corrupt
from vcotta.data import load_digits, to_tensor
from vcotta.experiments.build import adapter_for_spec
from vcotta.runs.spec import RunSpec
from vcotta.serve import Preprocess, make_bundle
from vcotta.serve.comparison import EVERY, Comparison
from vcotta.serve.service import Service

SURE = torch.eye(4).repeat(25, 1) * 0.96 + 0.01
UNSURE = torch.eye(4).repeat(25, 1) * 0.4 + 0.15


def seen(source, stream, normalised=None) -> Comparison:
    comparison = Comparison()
    for _ in range(3):
        comparison.see(source, stream, normalised)
    return comparison


def test_a_stream_that_agrees_with_the_source_is_not_flagged() -> None:
    same = seen(SURE, SURE, SURE)
    assert (same.contradiction, same.classes, same.flags()) == (0.0, 1.0, [])


def test_a_stream_that_contradicts_a_sure_source_is_flagged() -> None:
    wrong = torch.cat([SURE[:80], SURE[80:].roll(1, 0)])
    found = seen(SURE, wrong)
    assert abs(found.contradiction - 0.2) < 1e-9
    assert found.flags() == ["contradiction"]


def test_disagreement_where_the_source_is_unsure_or_contradicts_itself_says_nothing() -> None:
    assert seen(UNSURE, UNSURE.roll(1, 0)).contradiction is None
    assert seen(SURE, SURE.roll(1, 0), SURE.roll(2, 0)).contradiction is None


def test_a_stream_that_is_less_sure_than_the_source_is_flagged() -> None:
    assert seen(SURE, UNSURE).flags() == ["entropy"]
    assert seen(UNSURE, SURE).flags() == []


def test_a_stream_that_predicts_fewer_classes_than_the_source_is_flagged() -> None:
    one = torch.eye(4)[[0]].repeat(100, 1)
    assert seen(UNSURE, one).flags() == ["collapse"]
    assert seen(one, one).flags() == []  # the source sees but one class, too


def test_nothing_is_said_of_a_few_images_and_old_ones_are_forgotten() -> None:
    comparison = Comparison()
    comparison.see(SURE[:40], SURE[:40].roll(1, 0))
    assert comparison.flags() == []
    comparison.see(SURE[:40], SURE[:40].roll(1, 0))
    assert comparison.flags() == ["contradiction"]
    for _ in range(10):
        comparison.see(SURE, SURE)
    assert comparison.flags() == []


def test_every_fourth_batch_of_a_stream_is_compared_and_a_reset_forgets(bundle, images) -> None:
    with Service(bundle, wait=0.0) as service:
        for seed in range(2 * EVERY):
            service.predict(images(6, seed), stream="a").result(60)
        comparison = service.find("a").comparison
        assert 11 < comparison.images <= 12
        service.reset("a").result(60)
        assert service.find("a").comparison.images == 0


def test_a_stream_that_begins_to_look_worse_is_one_line_in_the_log(bundle, images, caplog) -> None:
    with Service(bundle, wait=0.0) as service:
        service.make("a")[0].result(60)
        comparison = service.find("a").comparison
        comparison.flags = lambda: ["entropy"] if comparison.images else []
        with caplog.at_level("INFO", logger="vcotta.serve"):
            for seed in range(2 * EVERY):
                service.predict(images(6, seed), stream="a").result(60)
    assert [record.message for record in caplog.records] == ["worse stream=a signs=entropy"]


@pytest.mark.slow
def test_on_digits_streams_that_adapt_well_are_not_flagged_and_ruined_ones_are(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path))
    adapter = adapter_for_spec(RunSpec("vcotta", options={"views": 2}))
    honest = make_bundle(adapter, "wrn-10-1", [str(n) for n in range(10)], Preprocess(32), base=8, stem_stride=2)
    ruined = replace(honest, guard=None, settings=honest.settings | {"lr": 5.0})
    digits = load_digits()[1]
    weathers = {"clean": digits.images, "noise": corrupt(digits.images, "gaussian_noise", 5, seed=0)}
    signs: dict[tuple[str, bool], list[str]] = {}
    for bundle in (honest, ruined):
        with Service(bundle, wait=0.0) as service:
            for name, weather in (weathers | {"fog": corrupt(digits.images, "fog", 5, seed=0)}).items():
                for images in to_tensor(weather)[: 16 * 25].split(16):
                    service.predict(images, stream=name).result(60)
                signs[name, bundle is honest] = service.find(name).signs
    assert [signs[name, True] for name in ("clean", "noise", "fog")] == [[], [], []]  # of fog the source knows little
    assert all(signs[name, False] for name in weathers)

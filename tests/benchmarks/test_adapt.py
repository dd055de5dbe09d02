"""The benchmark of adaptation counts what it says it counts; how long things take is not tested."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vcotta import Runtime
from vcotta.models import build_network


@pytest.fixture
def adapt(script):
    return script


@pytest.fixture
def work(adapt):
    network = build_network("wrn-10-1")
    batches = [torch.rand(4, 3, 16, 16) for _ in range(2)]
    return adapt.Work(network, batches, adapt.forward_flops(network, 16), adapt.ceiling("cpu", 64, 2), images=8)


@pytest.mark.parametrize("name", ["source", "bn", "tent", "cotta", "vcotta-0"])
def test_the_passes_of_a_batch_are_the_flops_torch_counts(name, adapt, work) -> None:
    adapter = adapt.make_adapter(name, work.network, Runtime())
    adapter(work.batches[0])  # the first batch is also tried on two images
    with FlopCounterMode(display=False) as counter:
        adapter(work.batches[1])
    expected = adapt.passes(adapter.name, adapter.last) * 4 * work.flops_an_image
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.05)


def test_a_row_has_the_cost_of_every_way_side_by_side(adapt, work) -> None:
    ways = adapt.ways_to_compute("cpu", warm=1, steps=1)
    rows = [adapt.measure("vcotta-0", way, work) for way in ways]
    assert [row.way for row in rows] == ["plain", "ch_last", "bf16"]
    for row in rows:
        assert (row.forwards, row.backwards, row.passes) == (5, 1, 9)
        assert row.seconds == pytest.approx(2 * row.step_seconds)
        assert row.peak_gib is None
    above, below = adapt.header(ways, work.images).split("\n")
    assert len(above) == len(below) == len(adapt.line(rows))


def test_the_warm_up_is_timed_over_the_steps_asked_for(adapt, work) -> None:
    row = adapt.measure_warm_up(adapt.ways_to_compute("cpu")[0], work, batch=4, steps=3)
    assert row["steps"] == 3
    assert row["epoch_seconds"] == pytest.approx(12_500 * row["step_seconds"])


def test_the_script_writes_what_it_prints(adapt, monkeypatch, tmp_path, capsys) -> None:
    file = tmp_path / "adapt.json"
    asked = "--device cpu --network wrn-10-1 --image-size 8 --batch-size 2 --steps 1 --methods bn --json"
    monkeypatch.setattr(sys, "argv", ["adapt.py", *asked.split(), str(file)])
    adapt.main()
    written = json.loads(file.read_text())
    assert [row["way"] for row in written["rows"]] == list(written["setting"]["ways"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"hardware: {written['setting']['hardware']}\ntorch: {torch.__version__}\n")
    assert f"ceiling: {written['ceiling']['tflops']:.3g} TFLOP/s" in printed

"""The study of streams: its rows, its tables of a partial file, and that it continues where it was stopped."""

from __future__ import annotations

import json

import pytest
import torch

import studies.streams.run as study
from studies.streams import long
from studies.streams.picture import draw_streams
from studies.streams.table import ablation_text, long_text, other_networks_text, streams_text, summary_text
from vcotta.nn.class_statistics import ClassStatistics, Look


def row(method: str, error: float, **more) -> dict:
    facts = {"network": "digits", "stream": "correlated", "batch_size": 16, "delta": 0.0, "start": "warmed"}
    facts |= {"images": 100, "views": None, "seed": 0, "nll": 1.0, "ece": 0.1, "torch": "2", "device": "cpu"}
    return facts | {"method": method, "error": error} | more


@pytest.fixture
def partial(tmp_path):
    rows = [row("source", 20.0), row("bn", 60.0), row("vcotta", 10.0), row("vcotta", 12.0, seed=1)]
    rows += [row("source", 15.0, stream="continual", delta=None), row("vcotta, not learning", 14.0)]
    rows += [row("bn", 30.0, network="wrn-28-10")]
    (tmp_path / "streams.json").write_text(json.dumps(rows))
    return tmp_path


def test_a_partial_file_gives_tables_with_gaps_and_the_lowest_in_bold(partial) -> None:
    text = streams_text(folder=partial)
    assert "| correlated, sorted | 16 | 100 | 20.0 | 60.0 | **11.0** |" in text
    assert "| continual | 16 | 100 | **15.0** | - | - |" in text
    assert "mean over 1 to 2 seeds" in text
    assert "### wrn-28-10" in other_networks_text(partial)
    assert "| correlated, sorted | 16 | 100 | **11.0** | 14.0 |" in ablation_text(partial)


def test_the_summary_names_the_streams_on_which_vcotta_is_not_among_the_best(partial) -> None:
    rows = json.loads((partial / "streams.json").read_text())
    rows += [row("vcotta", 17.0, stream="continual", delta=None)]
    (partial / "streams.json").write_text(json.dumps(rows))
    text = summary_text(partial)
    assert "is within 0.3 points of it, on 1 of 2 streams, but not on continual-16 (17.0 %, source 15.0 %)" in text
    assert "It is 2.0 points above Source on its worst stream." in text
    assert "wrn-28-10" not in text  # VCoTTA was not run there


def test_every_network_of_the_file_has_a_heat_map(partial) -> None:
    draw_streams(partial)
    assert sorted(path.name for path in partial.glob("*.png")) == ["streams-digits.png", "streams-wrn-28-10.png"]


def test_without_a_file_the_tables_name_the_command(tmp_path) -> None:
    for text in (summary_text, streams_text, other_networks_text, ablation_text, long_text):
        assert "python -m studies.streams." in text(folder=tmp_path)


def test_streams_are_chosen_by_name_or_protocol() -> None:
    names = [stream.name for stream in study.chosen_streams("digits", ["practical", "sorted-16"])]
    assert names == ["sorted-16", "practical-64"]
    with pytest.raises(ValueError, match="Did you mean 'sorted-16'"):
        study.chosen_streams("digits", ["sortd-16"])


def test_without_memory_no_batch_is_remembered(monkeypatch) -> None:
    one = torch.ones(2)
    monkeypatch.setattr(ClassStatistics, "infer", lambda self: Look(one, one, one, one, one, [], one))
    with study.no_memory():
        assert not ClassStatistics().infer().memory.any()
    assert ClassStatistics().infer().memory.all()


def test_the_largest_difference_on_clean_images_is_told(tmp_path) -> None:
    probe = [{"batch": 100, "error": 2.0, "source": 1.0, "stream": "sorted"}]
    probe += [{"batch": 200, "error": 1.5, "source": 1.0, "stream": "bursts"}]
    facts = {"batch_size": 16, "streams": ["sorted", "bursts"], "probe_images": 300, "seed": 0, "torch": "2"}
    (tmp_path / "long.json").write_text(json.dumps(facts | {"probe": probe}))
    assert "at worst +1.00 points from Source's: 2.00 % and 1.00 %, after batch 100, in sorted" in long_text(tmp_path)


def test_the_clean_images_are_mixed_in_class_in_every_batch() -> None:
    assert all(len(labels.unique()) >= 8 for _, labels in long.clean_digits(300))


@pytest.mark.slow
def test_rows_are_made_once_and_kept(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "streams.json"
    words = ["--images", "20", "--streams", "sorted-16", "--methods", "source", "--out", str(out)]
    study.main(words)
    (found,) = json.loads(out.read_text())
    assert found.keys() == row("source", 0.0).keys()
    assert (found["network"], found["stream"], found["delta"]) == ("digits", "correlated", 0.0)
    capsys.readouterr()
    study.main(words)
    assert capsys.readouterr().out == ""

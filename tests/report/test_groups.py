import json
import math

import pytest

from vcotta.report.curves import along_stream, noted, reliability_bins, risk_coverage, spans
from vcotta.report.domains import check_same_stream
from vcotta.report.find import find_runs
from vcotta.report.groups import Score, group_runs
from vcotta.report.tables import by_corruption, comparison, csv_text
from vcotta.report.words import ranking, remarks

FOG, SNOW = ("fog", 5), ("snow", 5)


@pytest.fixture
def seeded(make_run):
    def make(method, wrong, seed, **manifest):
        run = make_run(method, {FOG: wrong, SNOW: 4})
        run.manifest.update(seed=seed, **manifest)
        return run

    return make


def save(run, folder):
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(run.manifest))
    for name, lines in (("records", run.records), ("timing", run.timing)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_seeds_of_a_method_become_a_mean_with_its_range(seeded):
    groups = group_runs([seeded("bn", 2, 0), seeded("tent", 6, 0), seeded("bn", 4, 1)])
    assert [(group.label, len(group.runs)) for group in groups] == [("bn", 2), ("tent", 1)]
    assert groups[0].score("error") == Score(pytest.approx(17.5), pytest.approx(15), pytest.approx(20))
    assert groups[0].domain_score(0).text(".0f") == "15 (10–20)"
    grid = comparison([seeded("bn", 2, 0), seeded("bn", 4, 1), seeded("tent", 6, 0)])
    assert [row[1] for row in grid.cells] == ["17.5 (15.0–20.0)", "25.0"]
    assert (0, 1) in grid.best


def test_other_settings_of_a_method_stay_apart_and_say_so(seeded):
    runs = [seeded("bn", 2, 0, config={"lr": lr, "views": 2}) for lr in (0.1, 0.2)]
    assert [group.label for group in group_runs(runs)] == ["bn lr=0.1", "bn lr=0.2"]


def test_other_weights_stay_apart_though_the_seed_is_the_same(seeded):
    runs = [seeded("bn", 2, seed, weights_sha256=weights) for weights in ("aaaaaaaa", "bbbbbbbb") for seed in (0, 1)]
    assert [(g.label, g.seeds) for g in group_runs(runs)] == [
        ("bn weights aaaaaa", [0, 1]),
        ("bn weights bbbbbb", [0, 1]),
    ]


def test_a_label_names_the_weights_where_settings_do_not_tell_and_hangs_on_no_order(seeded):
    made = [("a" * 8, 0.1), ("b" * 8, 0.1), ("a" * 8, 0.2)]
    runs = [seeded("tent", 2, 0, config={"lr": lr}, weights_sha256=weights) for weights, lr in made]
    expected = ["tent lr=0.1 weights aaaaaa", "tent lr=0.1 weights bbbbbb", "tent lr=0.2"]
    assert [group.label for group in group_runs(runs)] == expected
    assert [group.label for group in group_runs(runs[::-1])] == expected[::-1]


def test_labels_stay_apart_beyond_the_settings_they_name(seeded):
    runs = [seeded("tent", 2, 0, config={"a": n, "b": n, "c": n, "d": d}) for n, d in ((1, 1), (1, 2), (2, 1))]
    labels = [group.label for group in group_runs(runs)]
    assert len(set(labels)) == 3
    assert labels == [group.label for group in group_runs(runs[::-1])][::-1]


def test_weights_that_differ_with_the_seed_are_one_group(seeded):
    assert len(group_runs([seeded("bn", 2, seed, weights_sha256=f"{seed}") for seed in (0, 1)])) == 1


def test_the_csv_has_a_line_a_run_and_loses_no_column(seeded, make_run):
    lines = csv_text({"a": seeded("bn", 2, 0), "b": seeded("bn", 4, 1)}).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("run,method,label,seed,error,nll")
    assert lines[0].endswith("error fog,error snow")
    assert lines[2].startswith("b,bn,bn,1,0.2,")
    run = make_run("bn", {FOG: 1, SNOW: 2})
    run.records.extend(dict(record, batch=4 + k) for k, record in enumerate(run.records[:2]))
    run.timing.extend(dict(line, batch=4 + k) for k, line in enumerate(run.timing[:2]))
    assert csv_text({"a": run}).splitlines()[0].endswith("error fog,error snow,error fog (2)")


def test_markdown_shows_odd_names_as_they_are(seeded):
    assert r"| a\|b\* &lt;i> |" in comparison([seeded("a|b* <i>", 1, 0)]).markdown()
    assert "\N{REPLACEMENT CHARACTER}" in by_corruption([seeded("a\x1b[2Jb\n", 1, 0)]).header[1]


def test_words_tell_the_ranking_the_overlap_and_unequal_seeds(seeded):
    groups = group_runs([seeded("bn", 2, 0), seeded("bn", 6, 1), seeded("tent", 4, 0), seeded("source", 10, 0)])
    said, warned = " ".join(ranking(groups)).replace("\N{NO-BREAK SPACE}", " "), " ".join(remarks(groups))
    assert said.startswith("Lowest mean error: bn 20.0 (15.0–25.0) %, then tent 20.0 % and source 35.0 %.")
    assert "The ranges of bn and tent overlap" in said
    assert "takes away 43 % of it" in said
    assert "not run with the same seeds: bn 0 and 1, tent 0 and source 0" in warned


def test_words_tell_of_other_start_networks_but_not_of_those_that_differ_by_seed(seeded):
    runs = [seeded(name, 2, seed, weights_sha256=f"plain{seed}") for name in ("bn", "tent") for seed in (0, 1)]
    assert not any("same network" in line for line in remarks(group_runs(runs)))
    runs += [seeded("vcotta", 1, seed, weights_sha256=f"warm{seed}") for seed in (0, 1)]
    warned = " ".join(remarks(group_runs(runs)))
    assert "the same network: bn and tent from one, vcotta from another." in warned
    warned = " ".join(remarks(group_runs([run for run in runs if run.manifest["seed"] == 0 or run.method == "bn"])))
    assert "the same network: bn and tent from one, vcotta from another." in warned  # bn's other seed is no news


def test_words_tell_of_other_machines_lost_predictions_and_one_seed(seeded):
    one, two = seeded("bn", 2, 0, hardware="A"), seeded("tent", 2, 0, hardware="B")
    two.records[0]["predictions"][0] = -1
    two.records[0]["last"]["skipped"] = True
    warned = " ".join(remarks(group_runs([one, two])))
    assert "different machines (A and B)" in warned
    assert "tent dropped 1 of 4 updates" in warned
    assert "no prediction for 1 images" in warned
    assert "One run a method" in warned


def test_curves_follow_the_stream_and_leave_gaps_where_nothing_was_noted(make_run):
    group = group_runs([make_run("vcotta", {FOG: 10, SNOW: 4}, alphas=[0.5, None, 0.25, 0.75])])[0]
    assert [(span.label, span.start, span.end) for span in spans(group)] == [("fog", 0, 2), ("snow", 2, 4)]
    assert noted([group]) == ["alpha"]
    assert along_stream(group).mean.tolist() == [50, 50, 20, 20]
    alpha = along_stream(group, "alpha")
    assert alpha.mean[0] == 0.5
    assert math.isnan(alpha.mean[1])
    short = along_stream(group, "alpha", most=2)
    assert short.mean.tolist() == [0.5, 0.5]
    assert short.batches.tolist() == [0.5, 2.5]


def test_curves_agree_with_the_metrics(make_run):
    run = make_run("bn", {FOG: 10, SNOW: 4})
    ((confidence, accuracy, count),) = reliability_bins([run])
    assert (confidence, accuracy, count) == (pytest.approx(0.9), pytest.approx(0.65), 80)
    coverage, risk = risk_coverage([run])
    assert coverage[-1] == 1
    assert risk.tolist() == pytest.approx([0.35] * len(risk))


def test_runs_are_found_below_a_folder_once_and_broken_ones_are_left_out_with_a_note(seeded, tmp_path):
    for name in ("a", "b"):
        save(seeded("bn", 2, 0), tmp_path / "runs" / name)
    (tmp_path / "runs" / "b" / "timing.jsonl").write_text("")
    with pytest.warns(UserWarning, match="b is left out"):
        found = find_runs([tmp_path / "runs", tmp_path / "runs" / "a"])
    assert list(found) == [str(tmp_path / "runs" / "a")]
    with pytest.raises(ValueError, match="stopped before its end"):
        find_runs([tmp_path / "runs" / "b"])


def test_folders_without_runs_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(FileNotFoundError, match="no whole one"):
        find_runs([tmp_path])


def test_runs_of_different_streams_are_refused_with_the_reason(seeded, make_run):
    def streams(**other):
        same = {"protocol": "continual", "batch_size": 20, "seed": 0}
        return {"a": seeded("bn", 1, 0, stream=same), "b": seeded("bn", 1, 1, stream=same | other)}

    check_same_stream(streams(seed=1))
    with pytest.raises(ValueError, match="a and b differ in their batch size: 20 and 64"):
        check_same_stream(streams(batch_size=64))
    with pytest.raises(ValueError, match=r'their corruptions: \["fog", "snow"\] and \["fog"\]'):
        check_same_stream({"a": seeded("bn", 1, 0), "b": make_run("bn", {FOG: 1})})

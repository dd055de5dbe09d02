import json

import pytest

from vcotta.report.groups import check_same_stream, find_runs, group_runs
from vcotta.report.narrative import remarks
from vcotta.report.tables import comparison

FOG = ("fog", 5)


def save(run, folder):
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(run.manifest))
    for name, lines in (("records", run.records), ("timing", run.timing)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_seeds_of_a_method_become_a_mean_with_its_interval(seeded):
    runs = [seeded("bn", 2, 0), seeded("tent", 6, 0), seeded("bn", 4, 1), seeded("bn", 3, 2)]
    groups = group_runs(runs)
    assert [(group.label, len(group.runs)) for group in groups] == [("bn", 3), ("tent", 1)]
    assert groups[0].error.mean == pytest.approx(17.5)
    assert groups[0].error.width == pytest.approx(4.3027 * 2.5 / 3**0.5, rel=1e-4)  # errors 15, 17.5 and 20
    assert groups[0].domain_errors()[0].text(".0f") == "15 ± 12"
    grid = comparison(runs)
    assert [row[1] for row in grid.cells] == ["17.5 ± 6.2", "25.0"]
    assert (0, 1) in grid.best


def test_settings_of_a_method_are_separate_groups_with_the_difference_in_their_labels(seeded):
    runs = [seeded("bn", 2, 0, config={"lr": lr, "views": 2}) for lr in (0.1, 0.2)]
    assert [group.label for group in group_runs(runs)] == ["bn lr=0.1", "bn lr=0.2"]


def test_guarded_runs_are_a_group_of_their_own(seeded):
    runs = [seeded("vcotta", 2, 0, guard=guard) for guard in (None, {"window": 4})]
    assert [group.label for group in group_runs(runs)] == ["vcotta guard=False", "vcotta guard=True"]


def test_runs_of_one_seed_from_different_weights_are_separate_groups(seeded):
    runs = [seeded("bn", 2, seed, weights_sha256=weights) for weights in ("aaaaaaaa", "bbbbbbbb") for seed in (0, 1)]
    assert [(g.label, g.seeds) for g in group_runs(runs)] == [
        ("bn weights aaaaaa", ["0", "1"]),
        ("bn weights bbbbbb", ["0", "1"]),
    ]


def test_a_label_names_the_weights_where_settings_are_equal_whatever_the_order(seeded):
    made = [("a" * 8, 0.1), ("b" * 8, 0.1), ("a" * 8, 0.2)]
    runs = [seeded("tent", 2, 0, config={"lr": lr}, weights_sha256=weights) for weights, lr in made]
    expected = ["tent lr=0.1 weights aaaaaa", "tent lr=0.1 weights bbbbbb", "tent lr=0.2"]
    assert [group.label for group in group_runs(runs)] == expected
    assert [group.label for group in group_runs(runs[::-1])] == expected[::-1]


def test_labels_are_distinct_even_if_the_named_settings_are_equal(seeded):
    runs = [seeded("tent", 2, 0, config={"a": n, "b": n, "c": n, "d": d}) for n, d in ((1, 1), (1, 2), (2, 1))]
    labels = [group.label for group in group_runs(runs)]
    assert len(set(labels)) == 3
    assert labels == [group.label for group in group_runs(runs[::-1])][::-1]


def test_weights_that_differ_with_the_seed_are_one_group(seeded):
    assert len(group_runs([seeded("bn", 2, seed, weights_sha256=f"{seed}") for seed in (0, 1)])) == 1


def test_bn_on_the_networks_that_vcotta_started_from_is_a_group_of_its_own_over_all_seeds(seeded):
    runs = [seeded("vcotta", 2, seed, weights_sha256=f"warm{seed}") for seed in (0, 1)]
    runs += [seeded("bn", 2, seed, weights_sha256=f"{kind}{seed}") for kind in ("plain", "warm") for seed in (0, 1)]
    assert [(g.label, g.seeds) for g in group_runs(runs)] == [
        ("vcotta", ["0", "1"]),
        ("bn", ["0", "1"]),
        ("bn (warmed)", ["0", "1"]),
    ]
    (line,) = [line for line in remarks(group_runs(runs)) if "same network" in line]
    assert "bn (warmed) shows how much" in line


def test_runs_below_a_folder_are_found_once_and_incomplete_ones_are_left_out_with_a_warning(seeded, tmp_path):
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
    with pytest.raises(FileNotFoundError, match="no complete one"):
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


def test_frost_textures_are_compared_whether_the_manifest_or_its_stream_has_them(seeded):
    order = {"order": ["fog", "frost"]}
    old = seeded("bn", 1, 0, stream=order, frost="photographs")
    new = seeded("bn", 1, 1, stream=order | {"frost": "photographs"})
    check_same_stream({"old": old, "new": new})
    other = seeded("bn", 1, 1, stream=order | {"frost": "procedural"})
    with pytest.raises(ValueError, match="differ in their frost textures: photographs and procedural"):
        check_same_stream({"old": old, "other": other})

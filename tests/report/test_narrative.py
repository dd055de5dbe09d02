from vcotta.report.groups import group_runs
from vcotta.report.narrative import ranking, remarks


def test_the_narrative_has_the_ranking_the_overlap_and_unequal_seeds(seeded):
    groups = group_runs([seeded("bn", 2, 0), seeded("bn", 6, 1), seeded("tent", 4, 0), seeded("source", 10, 0)])
    said, warned = " ".join(ranking(groups)).replace("\N{NO-BREAK SPACE}", " "), " ".join(remarks(groups))
    assert said.startswith("Lowest mean error: bn 20.0 ± 63.5 %, then tent 20.0 % and source 35.0 %.")
    assert "The 95 % intervals of bn and tent overlap" in said
    assert "bn removes 43 % of it" in said
    assert "not run with the same seeds: bn 0 and 1, tent 0 and source 0" in warned


def test_the_narrative_names_different_start_networks_but_not_those_of_different_seeds(seeded):
    runs = [seeded(name, 2, seed, weights_sha256=f"plain{seed}") for name in ("bn", "tent") for seed in (0, 1)]
    assert not any("same network" in line for line in remarks(group_runs(runs)))
    runs += [seeded("vcotta", 1, seed, weights_sha256=f"warm{seed}") for seed in (0, 1)]
    warned = " ".join(remarks(group_runs(runs)))
    assert "the same network: bn and tent from one, vcotta from another." in warned
    warned = " ".join(remarks(group_runs([run for run in runs if run.manifest["seed"] == 0 or run.method == "bn"])))
    assert "the same network: bn and tent from one, vcotta from another." in warned  # bn's other seed is no news


def test_the_narrative_warns_of_different_machines_missing_predictions_and_a_single_seed(seeded):
    one, two = seeded("bn", 2, 0, hardware="A"), seeded("tent", 2, 0, hardware="B")
    two.records[0]["predictions"][0] = -1
    two.records[0]["last"]["skipped"] = True
    warned = " ".join(remarks(group_runs([one, two])))
    assert "different machines (A and B)" in warned
    assert "tent dropped 1 of 4 updates" in warned
    assert "no prediction for 1 image," in warned
    assert "Each method was run once" in warned

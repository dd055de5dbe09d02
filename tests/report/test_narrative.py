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


def with_notes(run, diversity, **more):
    for record in run.records:
        record["last"] |= {"class_diversity": diversity, "effective_classes": 1 + 9 * diversity, **more}
    return run


def test_the_narrative_says_that_labels_look_correlated_and_whom_that_misleads(seeded):
    vcotta, tent = with_notes(seeded("vcotta", 2, 0), 0.2, batch_share=0.1), seeded("tent", 8, 0)
    tent.records[3]["last"] |= {"class_diversity": 0.4, "effective_classes": 4.6}  # it looks at few batches
    inferring = seeded("bn", 3, 0, config={"statistics": "inferred"})
    warned = " ".join(remarks(group_runs([vcotta, tent, inferring, seeded("rotta", 3, 0), seeded("source", 9, 0)])))
    assert "a batch seems to hold 3.2 classes on average, 24 % of the variety of a random order" in warned
    assert "(inferred by vcotta and tent). That misleads methods that use the batch's statistics alone: tent." in warned
    alone = " ".join(remarks(group_runs([with_notes(seeded("vcotta", 2, 0), 0.2, batch_share=0.1)])))
    assert "(inferred by vcotta)." in alone
    assert "misleads" not in alone


def test_the_narrative_is_silent_about_labels_that_are_mixed_or_unknown(seeded):
    mixed = with_notes(seeded("vcotta", 2, 0), 0.5, batch_share=0.9)
    earlier = seeded("bn", 2, 0)
    for record in earlier.records:
        record["last"] |= {"class_diversity": 0.1, "share": 0.1}  # of a version that noted less
    assert "correlated" not in " ".join(remarks(group_runs([mixed, earlier, seeded("tent", 8, 0)])))


def test_the_narrative_says_for_whom_batches_are_too_small(seeded):
    def said(images):
        vcotta = seeded("vcotta", 2, 0, config={"statistics": "inferred"})
        prior = seeded("bn", 3, 0, config={"statistics": "prior"})
        inferring = with_notes(seeded("cotta", 3, 0), 0.9, batch_share=0.5)
        others = [seeded(name, 3, 0) for name in ("tent", "eata", "rotta", "source", "somebodys_own")]
        runs = [vcotta, prior, inferring, *others]
        for run in runs:
            for record in run.records:
                record["n"] = images
        return [line for line in remarks(group_runs(runs)) if "too few" in line]

    assert said(15) == [
        "The batches hold at most 15 images, too few for methods that use the batch's statistics alone where the "
        "network has BatchNorm: tent and eata."
    ]
    assert said(16) == []

from __future__ import annotations

import json
import math

import pytest
import torch

from vcotta.runs import metrics
from vcotta.runs.run import Run, check_folder, read_manifest

NESTED = "[" * 100_000 + "]" * 100_000
SCORES = ("error", "nll", "brier", "ece", "aurc")


def predictions(n: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(n, 3, generator=generator, dtype=torch.float64).log_softmax(1)
    return log_probs, torch.randint(0, 3, (n,), generator=generator)


def record(index: int, domain: str, severity: int, log_probs, labels, **more):
    top = log_probs.exp().max(1)
    return {
        "batch": index,
        "domain": domain,
        "severity": severity,
        "n": len(labels),
        "errors": int((top.indices != labels).sum()),
        "nll": metrics.nll(log_probs, labels),
        "brier": metrics.brier(log_probs, labels),
        "labels": labels.tolist(),
        "predictions": top.indices.tolist(),
        "confidences": top.values.tolist(),
        "last": {"forwards": 3, "backwards": 1, "skipped": index == 0},
        **more,
    }


def make(*domains: tuple[str, int]) -> Run:
    """A run of six images a batch, a batch each of the domains."""
    records = [record(k, name, severity, *predictions(6, k)) for k, (name, severity) in enumerate(domains)]
    timing = [{"batch": k, "seconds": 0.5 + k, "peak_memory": 100 + k} for k in range(len(domains))]
    return Run({"method": "guess", "batches": len(domains)}, records, timing)


def write(folder, run: Run | None = None) -> Run:
    run = run or make(("fog", 5), ("fog", 5), ("snow", 5), ("snow", 5))
    (folder / "manifest.json").write_text(json.dumps(run.manifest))
    for name, lines in (("records.jsonl", run.records), ("timing.jsonl", run.timing)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_costs_are_summed_over_the_run() -> None:
    summary = make(("fog", 5), ("fog", 5), ("snow", 5)).summary()
    assert (summary["forwards"], summary["backwards"], summary["skipped"]) == (9, 3, 1)
    assert [part["seconds"] for part in summary["domains"]] == [2.0, 2.5]
    assert summary["seconds"] == 4.5
    assert summary["peak_memory"] == 102


def test_severities_and_returning_corruptions_are_domains_of_their_own() -> None:
    domains = make(("fog", 3), ("fog", 5), ("fog", 5), ("snow", 5), ("fog", 3)).summary()["domains"]
    assert [(part["domain"], part["severity"], part["n"]) for part in domains] == [
        ("fog", 3, 6),
        ("fog", 5, 12),
        ("snow", 5, 6),
        ("fog", 3, 6),
    ]


def test_images_of_mixed_batches_are_scored_with_those_of_their_domain() -> None:
    names = (["snow", "fog", "fog", "snow", "fog", "fog"], ["fog", "fog", "snow", "fog", "rain", "rain"])
    records, images = [], []
    for index, domains in enumerate(names):
        log_probs, labels = predictions(6, index)
        images += zip(domains, log_probs, labels, strict=True)
        parts = []
        for name in dict.fromkeys(domains):
            own = torch.tensor([other == name for other in domains])
            scores = {score: getattr(metrics, score)(log_probs[own], labels[own]) for score in ("nll", "brier")}
            parts.append({"domain": name, "severity": 5, **scores})
        mixture = {"domains": domains, "severities": [5] * 6, "parts": parts}
        records.append(record(index, "mixed", 5, log_probs, labels, **mixture))
    timing = [{"batch": k, "seconds": 3.0, "peak_memory": 1} for k in range(2)]
    summary = Run({"method": "guess", "stream": {"order": ["fog", "rain", "snow"]}}, records, timing).summary()
    assert [(part["domain"], part["severity"], part["n"]) for part in summary["domains"]] == [
        ("fog", 5, 7),
        ("rain", 5, 2),
        ("snow", 5, 3),
    ]
    for part in summary["domains"]:
        own = [(log_probs, label) for domain, log_probs, label in images if domain == part["domain"]]
        log_probs, labels = (torch.stack(values) for values in zip(*own, strict=True))
        for score in SCORES:
            assert part[score] == pytest.approx(getattr(metrics, score)(log_probs, labels)), score
    assert sum(part["seconds"] for part in summary["domains"]) == pytest.approx(summary["seconds"]) == 6.0


def test_a_written_run_is_read_back(tmp_path) -> None:
    run = write(tmp_path)
    assert Run.load(tmp_path) == run
    assert read_manifest(tmp_path) == run.manifest


def test_a_folder_with_a_run_is_refused_and_the_error_says_whether_it_is_finished(tmp_path) -> None:
    check_folder(tmp_path)
    write(tmp_path)
    with pytest.raises(FileExistsError, match=r"stopped before its end.*resume it .--resume. or overwrite it"):
        check_folder(tmp_path)
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(FileExistsError, match="a finished run"):
        check_folder(tmp_path)
    check_folder(tmp_path, overwrite=True)


def test_a_line_that_is_cut_off_is_reported(tmp_path) -> None:
    write(tmp_path)
    path = tmp_path / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="line 4 is cut off"):
        Run.load(tmp_path)


def test_bytes_that_are_no_text_are_reported_with_the_line(tmp_path) -> None:
    write(tmp_path)
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\xff" + path.read_bytes())
    with pytest.raises(ValueError, match=r"line 1 of .*records.jsonl"):
        Run.load(tmp_path)


def test_a_run_that_was_stopped_is_reported(tmp_path) -> None:
    run = write(tmp_path)
    write(tmp_path, Run(run.manifest, run.records[:2], run.timing[:2]))
    with pytest.raises(ValueError, match=r"Expected 4 batches .* stopped before its end"):
        Run.load(tmp_path)


@pytest.mark.parametrize(
    "line", ["[]\n", "{}\n", "not json\n", '{"batch": 7}\n', f'{{"batch": 0, "seconds": {NESTED}}}\n']
)
def test_a_damaged_line_is_reported(tmp_path, line) -> None:
    write(tmp_path)
    path = tmp_path / "timing.jsonl"
    path.write_text(line + "".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(ValueError, match=r"line 1 .* damaged"):
        Run.load(tmp_path)


@pytest.mark.parametrize("key", ["labels", "domains", "severities"])
def test_a_record_with_missing_samples_is_reported(tmp_path, key) -> None:
    run = make(("fog", 5))
    run.records[0] |= {"domains": ["fog"] * 6, "severities": [5] * 6}
    run.records[0][key].pop()
    write(tmp_path, run)
    with pytest.raises(ValueError, match=rf"line 1 of .*records.jsonl .*`{key}` are not 6"):
        Run.load(tmp_path)


BAD_VALUES = {
    "nll": [math.nan, math.inf, "low"],
    "brier": [math.nan, -math.inf, None, True],
    "confidences": [[math.nan] * 6, [1.5] * 6, [None] * 6],
    "labels": [[10**30] * 6, [-1] * 6, [1.0] * 6, [3] * 6, [True] * 6, 6],
    "predictions": [[10**30] * 6, [-2] * 6, [0.5] * 6],
    "n": [0, -6, 6.0],
    "errors": [7, -1],
    "last": [None, []],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD_VALUES.items() for value in values])
def test_a_value_that_no_run_can_have_is_refused_with_its_file_and_line(tmp_path, key, value) -> None:
    run = make(("fog", 5), ("fog", 5))
    run.manifest["stream"] = {"data": {"classes": 3}}
    write(tmp_path, run)
    Run.load(tmp_path)
    run.records[1][key] = value
    write(tmp_path, run)
    with pytest.raises(ValueError, match=r"line 2 of .*records\.jsonl .* damaged"):
        Run.load(tmp_path)


@pytest.mark.parametrize(("key", "value"), [("seconds", math.nan), ("seconds", -1.0), ("peak_memory", math.inf)])
def test_a_cost_that_is_not_finite_is_refused_with_its_file_and_line(tmp_path, key, value) -> None:
    run = make(("fog", 5))
    run.timing[0][key] = value
    write(tmp_path, run)
    with pytest.raises(ValueError, match=r"line 1 of .*timing\.jsonl"):
        Run.load(tmp_path)


BAD_STREAMS = ['"continual"', "[]", "null", '{"order": 3}']


@pytest.mark.parametrize(
    "text",
    ["{}", "[]", "not json", NESTED, *(f'{{"batches": 4, "method": "bn", "stream": {bad}}}' for bad in BAD_STREAMS)],
)
def test_a_damaged_manifest_is_reported(tmp_path, text) -> None:
    write(tmp_path)
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json to be (JSON|the manifest of a run), but it is"):
        Run.load(tmp_path)


def test_an_empty_folder_is_reported(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no manifest\.json"):
        Run.load(tmp_path)

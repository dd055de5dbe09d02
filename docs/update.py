"""Draw every table of README.md and the pages of docs from result files.

    python docs/update.py                          # update all from docs/results
    python docs/update.py --record                 # run the demo for seeds 0, 1 and 2 first (about 6 minutes)
    python docs/update.py --take NAME RUN...       # keep manifest and summary of runs as docs/results/NAME/METHOD
    python docs/update.py --reproduced FOLDER...   # keep outcomes of `vcotta reproduce`, with their pictures

The files: ``docs/results/demo/seed-S.json`` (the demo's rows, and BN on the warmed network beside them), the figures of
seed 0, ``docs/results/corruptions-benchmark.json``, ``guards.json``, ``offtheshelf.json``, ``open-choices.json``,
``request-sizes.json``, ``small-batches.json`` and ``warmups-*.json`` (from benchmarks/), ``gpu-times.json`` (by the
clock), for each benchmark the manifest and summary of one run a method, and for each experiment its outcome as
``docs/results/reproduce/DATASET/NAME.json`` with its picture in ``docs/pictures/reproduce/DATASET``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from benchmark_tables import BENCHMARK_TABLES
from cifar100_tables import CIFAR100
from headline_tables import HEADLINE
from open_choices_table import OPEN_CHOICES
from presets_table import PRESETS_TABLE
from published_picture import draw_published
from reproduce_tables import REPRODUCE, keep_reproduced
from step_size_tables import STEP_SIZES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
NAMES = ("benchmarks", "guards", "headline", "methods", "operations", "reproduce", "step-sizes")
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in NAMES))
SEEDS = (0, 1, 2)
COLUMNS = {"error": ("Error %", ".1f"), "nll": ("NLL", ".3f"), "brier": ("Brier", ".3f"), "ece": ("ECE", ".3f")}


def record() -> None:
    """Run the demo for every seed and keep its rows and, of the first seed, its figures."""
    import torch

    from vcotta.corruptions import frost_source
    from vcotta.evaluate import run_stream
    from vcotta.experiments.benchmark import BENCHMARKS
    from vcotta.experiments.demo import run_demo
    from vcotta.experiments.setup import adapter_for, stream_for, train_network, warm_network
    from vcotta.files import write_json
    from vcotta.report.progress import display
    from vcotta.report.tables import rows

    torch.set_num_threads(1)
    digits = BENCHMARKS["digits"]
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder, display() as task:
            runs = run_demo(Path(folder), seed, task)
            warmed = warm_network(digits, train_network(digits, seed=seed), seed=seed)
            beside = run_stream(adapter_for(digits, "bn", warmed, seed=seed), stream_for(digits, seed=seed))
            facts = {
                "seed": seed,
                "versions": runs[0].manifest["versions"],
                "frost": frost_source(),
                "rows": rows(runs),
                "bn_on_warmed_network": rows([beside])[0],
            }
            write_json(RESULTS / "demo" / f"seed-{seed}.json", facts)
            if seed == SEEDS[0]:
                for name in ("error.png", "priors.png"):
                    shutil.copy(Path(folder) / name, RESULTS / "demo" / name)


def demo_text() -> str:
    """The demo's table of the first seed, the ranking over all seeds, and the figures."""
    found = [json.loads((RESULTS / "demo" / f"seed-{seed}.json").read_text()) for seed in SEEDS]
    rows: list[dict[str, Any]] = found[0]["rows"]
    lines = [
        f"| Method | {' | '.join(heading for heading, _ in COLUMNS.values())} | Seconds | Three seeds: error %, NLL |",
        "|:--" + "|--:" * (len(COLUMNS) + 2) + "|",
    ]
    best = {key: min(row[key] for row in rows) for key in COLUMNS}
    for place, row in enumerate(rows):
        cells = [_bold(format(row[key], form), row[key] == best[key]) for key, (_, form) in COLUMNS.items()]
        error, nll = (statistics.mean(one["rows"][place][key] for one in found) for key in ("error", "nll"))
        lines.append(f"| {row['method']} | {' | '.join(cells)} | {row['seconds']:.1f} | {error:.2f}, {nll:.3f} |")
    warmed = [one["bn_on_warmed_network"] for one in found]
    error, nll = (statistics.mean(row[key] for row in warmed) for key in ("error", "nll"))
    lines += [
        "",
        f"`vcotta demo`, seed 0, one CPU thread, torch {found[0]['versions']['torch']}, {found[0]['frost']} frost "
        f"textures. The last column is the mean over seeds 0, 1 and 2. {_ranking(found)} Part of VCoTTA's gain is the "
        f"warm-up's alone: BN on the warmed network reaches {error:.2f} % and an NLL of {nll:.3f} over three seeds.",
        "",
        "![Error of each method on each corruption](docs/results/demo/error.png)",
        "",
        "![How unsure the source and the teacher of VCoTTA are along the stream](docs/results/demo/priors.png)",
    ]
    return "\n".join(lines)


def _ranking(found: list[dict[str, Any]]) -> str:
    """Say who comes first on average over the seeds, and who at each seed."""
    methods = [row["method"] for row in found[0]["rows"]]
    sentences = []
    for key, what in (("error", "error"), ("nll", "NLL")):
        means = [statistics.mean(one["rows"][place][key] for one in found) for place in range(len(methods))]
        winners = [min(one["rows"], key=lambda row: row[key])["method"] for one in found]
        each = ", ".join(f"{winner} at seed {one['seed']}" for winner, one in zip(winners, found, strict=True))
        first = methods[means.index(min(means))]
        where = "and at every seed" if set(winners) == {first} else f"({each})"
        sentences.append(f"In {what} {first} is first on average {where}.")
    return " ".join(sentences)


def corruptions_text() -> str:
    """One sentence on speed, from the benchmark's file."""
    result = json.loads((RESULTS / "corruptions-benchmark.json").read_text())
    setting = result["setting"]
    ours, same_work, rival = (result["sum"][key] for key in ("ours", "ours_224", "rival"))
    return (
        f"All fifteen together take {ours:.2f} ms an image of {setting['image_size']} px on one CPU thread "
        f"({setting['cpu']}); with the constants of ImageNet-C {same_work:.2f} ms, where the package "
        f"imagecorruptions-imaug takes {rival:.2f} ms in the same run ({rival / same_work:.1f} times as long). "
        f"15 x 10 000 images take {result['whole_set']['seconds']:.0f} s with two processes "
        "(`benchmarks/corruptions.py`)."
    )


def take(name: str, folders: list[str]) -> None:
    """Keep manifest and summary of finished runs, without the folders of the machine they were made on.

    A run in a folder METHOD-FORM is kept by that name, beside the method's usual one.
    """
    for folder in map(Path, folders):
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["command"] = [Path(word).name if "/" in word else word for word in manifest["command"]]
        manifest.pop("platform")
        method = manifest["method"]
        kept = RESULTS / name / (folder.name if folder.name.startswith(f"{method}-") else method)
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
        shutil.copy(folder / "summary.json", kept / "summary.json")


def load_text() -> str:
    """What a server under load did."""
    run = json.loads((RESULTS / "load.json").read_text())
    refused = {status: count for status, count in run["by_status"].items() if status[0] == "4"}
    told = ", ".join(f"{count} times {status}" for status, count in refused.items())
    memory = run["resident_mib"]
    return (
        f"Under load (`benchmarks/load.py`, {run['minutes']:.0f} minutes, {run['clients']} clients, the digits' "
        f"bundle, {run['machine']}): {run['requests']} requests, {run['by_status']['200']} answered, "
        f"{sum(refused.values())} refused as they should be ({told}), "
        f"{run['by_status'].get('hung up', 0)} hung up in the middle; {run['wrong_answers']} wrong answers, "
        f"{run['server_errors']} server errors. Valid requests, of 1 to 50 images, took {run['seconds_p50']:.2f} s in "
        f"the median and {run['seconds_p99']:.2f} s at the 99th percentile, with {run['images_a_second']:.0f} images a "
        f"second in all; {run['accuracy']:.1%} of the digits were named rightly. The server's memory was "
        f"{memory['start']} MiB at the start and {memory['max']} MiB at most ({memory['max_by_minute'][1]} MiB in the "
        f"second minute)."
    )


def small_batches_text() -> str:
    """Table of how many images the source's statistics should be worth, by network and size of the batches."""
    found = json.loads((RESULTS / "small-batches.json").read_text())
    rows, networks = found["rows"], dict.fromkeys(row["network"] for row in found["rows"])
    sizes, priors = (list(dict.fromkeys(row[key] for row in rows)) for key in ("size", "prior"))
    lines = [f"| Network | N | {' | '.join(map(str, sizes))} |", "|:--|:--" + "|--:" * len(sizes) + "|"]
    for network in networks:
        for prior in priors:
            same = {row["size"]: row for row in rows if (row["network"], row["prior"]) == (network, prior)}
            cells = " | ".join(f"{same[size]['clean']:.1f}, {same[size]['corrupted']:.1f}" for size in sizes)
            lines.append(f"| {network} | {'none' if prior is None else prior} | {cells} |")
    told = (
        f"Error in per cent by images in a batch: clean, and mean over the held-out corruptions; "
        f"{found['setting']['images']} images of each, BN, torch {found['setting']['torch']} "
        "(`benchmarks/small_batches.py`)."
    )
    return "\n".join([*lines, "", told])


def request_sizes_text() -> str:
    """Table of the error by the number of images in a request."""
    found = json.loads((RESULTS / "request-sizes.json").read_text())
    rows, setting = found["rows"], found["setting"]
    sizes = dict.fromkeys(row["size"] for row in rows)
    lines = [f"| Images in a batch | {' | '.join(map(str, sizes))} |", "|:--" + "|--:" * len(sizes) + "|"]
    for corruption in dict.fromkeys(row["corruption"] for row in rows):
        for key, how in (("error", "adapting"), ("error_without_adapting", "`adapt=false`")):
            same = [[row[key] for row in rows if (row["corruption"], row["size"]) == (corruption, n)] for n in sizes]
            cells = " | ".join(f"{statistics.mean(errors):.1f}" for errors in same)
            lines.append(f"| {'clean' if corruption == 'none' else corruption}, {how} | {cells} |")
    seeds = ", ".join(map(str, setting["seeds"]))
    told = f"Error in per cent on {setting['images']} digits, mean over seeds {seeds}, VCoTTA, each from its start"
    return "\n".join([*lines, "", f"{told}; torch {setting['torch']} (`benchmarks/request_sizes.py`)."])


def guards_text() -> str:
    """Table of what attacks leave of an adapter, with and without its guard."""
    found = json.loads((RESULTS / "guards.json").read_text())
    rows, setting = found["rows"], found["setting"]
    lines = [
        "| 200 batches of | then | BN | without guard | with guard | worst seed over BN: without, with | first alarm |",
        "|:--|:--" + "|--:" * 5 + "|",
    ]
    for attack, corruption in dict.fromkeys((row["attack"], row["corruption"]) for row in rows):
        same = [row for row in rows if (row["attack"], row["corruption"]) == (attack, corruption)]
        free, kept = ([row for row in same if row["guard"] == guard] for guard in (False, True))
        errors = [statistics.mean(row["error"] for row in part) for part in (free, kept)]
        over = [max(row["error"] - row["bn"] for row in part) for part in (free, kept)]
        bn = statistics.mean(row["bn"] for row in kept)
        alarms = [str(row["first_action"] + 1) for row in kept if row.get("first_action") is not None]
        lines.append(
            f"| {attack or 'nothing'} | {corruption.replace('_', ' ')} | {bn:.2f} | {errors[0]:.2f} | {errors[1]:.2f} "
            f"| {over[0]:+.2f}, {over[1]:+.2f} | {', '.join(alarms)} |"
        )
    seeds = ", ".join(map(str, setting["seeds"]))
    before = " and ".join(setting["before"]).replace("_", " ")
    same_records = "are the same" if all(one["same_records"] for one in found["ordinary"]) else "differ"
    compared = ", ".join(str(one["seed"]) for one in found["ordinary"])
    text = (
        f"Error in per cent, mean over seeds {seeds}, batches of {setting['batch_size']} "
        f"({setting['attack_batch_size']} in the attack), after {before}; the first alarm is the attack's batch, by "
        f"seed. On the fifteen corruptions the records with and without the guard {same_records} (seeds {compared}). "
        f"torch {setting['torch']}, one CPU thread, {setting['frost']} frost (`benchmarks/guards.py`)."
    )
    return "\n".join([*lines, "", text])


def methods_text() -> str:
    """Table of the methods, from their own facts."""
    from vcotta.methods import METHODS

    lines = [
        "| Method | Venue | What it does | Trains | Needs of the source | Cost of a batch | Written from "
        "| Distributed |",
        "|:--" * 8 + "|",
    ]
    for name, method in METHODS.items():
        facts = method.facts
        shared = "yes" if facts.distributed else "no"
        cells = (f"`{name}`", facts.venue, method.summary, facts.trains, facts.source, facts.passes, facts.provenance)
        cells += (shared,)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", "N is the number of views."])


def _bold(text: str, best: bool) -> str:
    return f"**{text}**" if best else text


def updated(page: str) -> str:
    """A page with the text between its markers drawn anew."""
    for name, text in DRAWN.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if begin in page:
            before, rest = page.split(begin)
            page = before + begin + "\n" + text() + "\n" + end + rest.split(end)[1]
    return page


DRAWN: dict[str, Callable[[], str]] = {
    "demo": demo_text,
    "corruptions": corruptions_text,
    "load": load_text,
    "request-sizes": request_sizes_text,
    "small-batches": small_batches_text,
    "methods": methods_text,
    "guards": guards_text,
    **BENCHMARK_TABLES,
    **STEP_SIZES,
    **OPEN_CHOICES,
    **HEADLINE,
    **CIFAR100,
    **PRESETS_TABLE,
    **REPRODUCE,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="run the demo first")
    parser.add_argument("--take", nargs="+", metavar=("NAME", "RUN"), help="keep the results of finished runs")
    parser.add_argument("--reproduced", nargs="+", metavar="FOLDER", help="keep the outcomes of experiments")
    arguments = parser.parse_args()
    if arguments.record:
        record()
    if arguments.take:
        take(arguments.take[0], arguments.take[1:])
    if arguments.reproduced:
        keep_reproduced(arguments.reproduced)
    draw_published()
    for path in PAGES:
        path.write_text(updated(path.read_text()))

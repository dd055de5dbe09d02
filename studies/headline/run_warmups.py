"""Compare warm-ups by the errors of BN and VCoTTA on the held-out corruptions.

What: error and NLL on the four extra corruptions at severities 3 to 5, of BN and of VCoTTA with its default settings
and 8 views, from a network as it is (``none``: variational, but not trained) and from the same network after warm-ups
that differ in options of `WarmUpConfig` from the data set's own (``default``).
How: each warm-up is made on the data set's training images with the same seed, unless the cache folder has it; all are
scored on the same pixels. Rows are added to the file; warm-ups that it has already are not repeated. Seconds are of the
warm-up, by the clock.

    python -m studies.headline.run_warmups --dataset cifar100 --weights next.safetensors --limit 2000 \
        --out studies/headline/results/warmups-cifar100.json \
        none epochs=2,augmix=false epochs=2,augmix=false,sigma_ratio=0.15 epochs=2 epochs=5 epochs=10
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vcotta._util.files import write_json
from vcotta.corruptions import EXTRA
from vcotta.experiments.build import network_facts, start_network, stream_for
from vcotta.experiments.grid import run_spec
from vcotta.runs.spec import RunSpec

OPTIONS: dict[str, dict[str, Any]] = {"bn": {}, "vcotta": {"views": 8}}


def with_warm_up(spec: RunSpec, way: str) -> RunSpec:
    """Return a spec that starts from the warm-up which a word of the command line stands for.

    Raises:
        ValueError: The word is none of those, or an option or its value is wrong.
    """
    if way == "none":
        return replace(spec, start="unwarmed")
    try:
        options = {} if way == "default" else dict(part.split("=", 1) for part in way.split(","))
        return replace(spec, start="warmed", warm_up={name: json.loads(value) for name, value in options.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Expected none, default or OPTION=VALUE[,OPTION=VALUE] with options of WarmUpConfig and values as JSON "
            f"(true, 0.15), but got {way!r}: {error}"
        ) from error


def scores(spec: RunSpec, start: nn.Module) -> dict[str, Any]:
    """Return error, NLL and errors by corruption and severity of each method from one start, and the hardware."""
    found: dict[str, Any] = {}
    for method, options in OPTIONS.items():
        run = run_spec(replace(spec, method=method, options=options), model=start)
        summary = run.summary()
        errors = {f"{part['domain']}-{part['severity']}": 100 * part["error"] for part in summary["domains"]}
        found[method] = {"error": 100 * summary["mean"]["error"], "nll": summary["mean"]["nll"], "errors": errors}
        found |= {fact: run.manifest[fact] for fact in ("weights_sha256", "hardware", "versions")}
    return found


def already_scored(rows: list[dict[str, Any]], facts: dict[str, Any]) -> bool:
    """Return whether a warm-up was scored.

    Raises:
        ValueError: One of that name was scored with other settings; the message names them.
    """
    for row in rows:
        if row["way"] == facts["way"]:
            other = [name for name, value in facts.items() if row.get(name) != value]
            if other:
                raise ValueError(
                    f"Expected {facts['way']} to have the settings it has in the file, but {', '.join(other)} differs. "
                    "Give another --out."
                )
            return True
    return False


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="+", help="none, default, or OPTION=VALUE[,OPTION=VALUE], values as JSON")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--network", help="another network than the data set's, as for `vcotta run --model`")
    parser.add_argument("--weights", type=Path, help="its weights; the digits train their own")
    parser.add_argument("--limit", type=int, help="images of each corruption and severity; by default all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", help="as for `vcotta run`; by default bf16 on a GPU")
    parser.add_argument("--out", type=Path, required=True, help="file for the rows")
    options = parser.parse_args(given)
    common = RunSpec(
        "bn",
        options.dataset,
        options.network,
        options.weights,
        corruptions=EXTRA,
        severity=(3, 4, 5),
        limit=options.limit,
        device=options.device,
        precision=options.precision,
    )
    specs = {way: with_warm_up(common, way) for way in options.ways}  # a mistake is reported before any work
    rows = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else []
    for way, spec in specs.items():
        network = network_facts(spec)
        facts = {
            "way": way,
            "config": network["warm_up"] if spec.start == "warmed" else None,
            "dataset": spec.data,
            "network": network["network"],
            "weights_file_sha256": spec.weights_file_sha256,
            "images": stream_for(spec).describe()["images_per_domain"],
            "runtime": asdict(spec.runtime),
        }
        if already_scored(rows, facts):
            continue
        began = time.perf_counter()
        start = start_network(spec)
        seconds = time.perf_counter() - began
        rows.append(facts | {"seconds": seconds} | scores(spec, start))
        write_json(options.out, rows)
        shown = ", ".join(f"{name} {rows[-1][name]['error']:.2f} % ({rows[-1][name]['nll']:.3f})" for name in OPTIONS)
        print(f"{way}: {seconds:.0f} s, {shown}", flush=True)


if __name__ == "__main__":
    main()

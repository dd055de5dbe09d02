"""ImageNet-C, Tiny-ImageNet-C and PACS: the third benchmark, on photographs.

What: error, NLL, Brier score and ECE, the error on each domain, seconds and memory of each method. imagenetc and
tiny-imagenetc have the fifteen corruptions at severity 5; every method starts from the plain network, and VCoTTA, BN
and the five best others also from the warmed one. pacs goes from photographs to paintings, cartoons, sketches and back
to photographs that the network was not trained on, with labels shuffled and correlated.
How: corrupted images are made once, in the work folder. A row is written as soon as it is there, and rows that are in
the file already are kept; --minutes ends a call before a new row, and the same command continues. Runs can be resumed,
so that a killed call loses two minutes at most.

    python -m studies.imagenet.run imagenetc --model resnet-50-v1 --weights resnet50.safetensors \
        --warmed resnet50-warm.safetensors --source folder:POOL --device cuda
    python -m studies.imagenet.run tiny-imagenetc --weights tiny.safetensors --warmed tiny-warm.safetensors \
        --device cuda
    python -m studies.imagenet.run pacs --root PACS --weights resnet50.safetensors --device cuda

Every row names the machine and the versions; NAME-manifests.json has the manifest of each run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from studies.cells import Cell, Row, fill, scores_of, start_of
from studies.files import results_of
from studies.imagenet.pacs import DOMAINS, fine_tuned, split
from vcotta._util.progress import display
from vcotta.corruptions import STANDARD
from vcotta.data import ImageData, ImageSource
from vcotta.data.corrupted import write_corrupted
from vcotta.data.image_files import ImageFiles
from vcotta.experiments.benchmarks import find_benchmark
from vcotta.methods import find_method
from vcotta.runs.spec import RunSpec

METHODS = (
    "source",
    "bn",
    "tent",
    "cotta",
    "eata",
    "sar",
    "rotta",
    "rmt",
    "santa",
    "roid",
    "deyo",
    "rdumb",
    "tca",
    "petal",
)
PACS_METHODS = ("source", "bn", "tent", "cotta", "roid", "rotta", "vcotta")
STREAMS: dict[str, dict[str, Any]] = {"continual": {}, "correlated": {"delta": 0.1}}
STARTS = ("plain", "warmed")
BEST = 5
"""Number of the other methods that are also run from the warmed network, besides BN; named ones all are."""
KEYS = ("network", "method", "start", "preset", "seed", "protocol", "images", "views")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    path = options.out or results_of("imagenet") / f"{options.part}.json"
    plan = partial(_pacs if options.part == "pacs" else _corruptions, options)
    fill(plan, KEYS, path, options.work, options.minutes, scores_of)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("imagenetc", "tiny-imagenetc", "pacs"), help="what to measure")
    parser.add_argument("--model", help="network; by default the data set's own, for pacs resnet-50-v1")
    parser.add_argument("--weights", type=Path, required=True, help="the plain network, for pacs that of ImageNet")
    parser.add_argument("--warmed", type=Path, help="the same network from `vcotta warmup`; without it no warmed rows")
    parser.add_argument("--source", help="source images, folder:DIR; by default the data set's own training images")
    parser.add_argument("--root", type=Path, help="pacs: folder with the folders of the domains")
    parser.add_argument("--images", type=int, help="only the first images; of pacs, of each domain; by default all")
    parser.add_argument("--corruptions", nargs="+", default=list(STANDARD), help="to try the command: only these")
    parser.add_argument("--methods", nargs="+", help="only these methods; by default all")
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=STARTS, help="networks; not for pacs")
    parser.add_argument("--views", type=int, default=8, help="views of the methods that use them")
    parser.add_argument("--epochs", type=int, help="pacs: epochs of fine-tuning; by default those of `vcotta train`")
    parser.add_argument("--batch-size", type=int, help="by default the data set's own")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="seeds of adapters, and of pacs' networks")
    parser.add_argument("--minutes", type=float, default=25, help="begin no row after this time")
    parser.add_argument("--device", default="cpu", help="where to compute, such as cuda")
    parser.add_argument("--work", type=Path, default=Path("runs/imagenet"), help="folder of corrupted images and runs")
    parser.add_argument("--out", type=Path, help="file to write; by default in the study's results")
    return parser


def best_others(rows: Sequence[Row], network: str, count: int = BEST) -> list[str]:
    """Return the methods with the lowest error from the plain network, without Source, BN and VCoTTA."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["network"] == network and row["start"] == "plain" and row["method"] not in ("source", "bn", "vcotta"):
            found.setdefault(row["method"], []).append(row["error"])
    return sorted(found, key=lambda method: sum(found[method]) / len(found[method]))[:count]


def _corruptions(options: argparse.Namespace, rows: list[Row]) -> Iterator[Cell]:
    """Yield the cells of ImageNet-C or Tiny-ImageNet-C; those of the warmed network follow from the rows so far."""
    benchmark = find_benchmark(options.part.removesuffix("c"))
    network = options.model or benchmark.network
    data = first_images(benchmark.load(), options.images)
    folder = options.work / f"{options.part}-{len(data)}"
    with display() as task:
        report = task("Corrupted images", "{:.0f} images")
        write_corrupted(
            data,
            folder,
            (5,),
            corruptions=options.corruptions,
            device=options.device,
            progress=lambda done, total: report(done, total, done),
        )
    base = RunSpec(
        "source",
        benchmark.name,
        network,
        source=options.source,
        corruptions=options.corruptions,
        corrupted=folder,
        limit=options.images,
        batch_size=options.batch_size,
        device=options.device,
    )

    def cell(method: str, start: str, preset: str | None, seed: int) -> Cell:
        warmed = start == "warmed"
        begun = start_of(find_method(method).needs_variational, warmed)
        changes: Row = {"method": method, "start": begun, "seed": seed}
        changes |= {"weights": options.warmed if warmed else options.weights}
        return _cell(replace(base, **changes), start, preset, options.views, len(data))

    wanted = options.methods or [*METHODS, "vcotta"]
    for seed in options.seeds:
        if "plain" in options.starts:
            for method in wanted:
                yield cell(method, "plain", "best" if method == "vcotta" else None, seed)
        if "warmed" in options.starts and options.warmed:
            if "vcotta" in wanted:
                yield cell("vcotta", "warmed", "best", seed)
                yield cell("vcotta", "warmed", "paper", seed)
            for method in options.methods or ("bn", *best_others(rows, network)):
                if method != "vcotta":
                    yield cell(method, "warmed", None, seed)


def _pacs(options: argparse.Namespace, rows: list[Row]) -> Iterator[Cell]:
    """Yield the cells of PACS, each seed with a network of its own that is fine-tuned on photographs."""
    if options.root is None:
        raise SystemExit("Expected --root with the folder of PACS, but got none.")
    network, place = options.model or "resnet-50-v1", split(options.root, options.work / "pacs")
    for seed in options.seeds:
        weights = options.work / f"pacs-{network}-{seed}.safetensors"
        if not weights.exists():
            fine_tuned(place, network, options.weights, weights, seed, options.device, options.epochs)
        for protocol, numbers in STREAMS.items():
            for method in options.methods or PACS_METHODS:
                ours = find_method(method).needs_variational
                spec = RunSpec(
                    method,
                    f"folder:{place / 'stream'}",
                    network,
                    weights,
                    source=f"folder:{place / 'train'}",
                    protocol=protocol,
                    protocol_options=numbers,
                    domains=DOMAINS,
                    batch_size=options.batch_size,
                    limit=options.images,
                    seed=seed,
                    device=options.device,
                )
                start = "warmed" if ours else "plain"
                yield _cell(spec, start, "best" if ours else None, options.views, options.images)


def _cell(spec: RunSpec, start: str, preset: str | None, views: int, images: int | None) -> Cell:
    uses_views = "views" in find_method(spec.method).Config.__dataclass_fields__
    settings: Row = ({"preset": preset} if preset else {}) | ({"views": views} if uses_views else {})
    facts = {
        "network": spec.network,
        "method": spec.method,
        "start": start,
        "preset": preset,
        "seed": spec.seed,
        "protocol": spec.protocol,
        "images": images,
        "views": views if uses_views else None,
    }
    return Cell(facts, replace(spec, options=settings))


def first_images(data: ImageSource, count: int | None) -> ImageSource:
    """Return the first images of a data set, all of them for None."""
    if count is None or count >= len(data):
        return data
    if isinstance(data, ImageFiles):
        return replace(data, images=replace(data.images, files=data.images.files[:count]), labels=data.labels[:count])
    assert isinstance(data, ImageData)
    return replace(data, images=data.images[:count], labels=data.labels[:count])


if __name__ == "__main__":
    main()

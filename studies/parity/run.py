"""Run official code and ours side by side, batch by batch, from a user's own checkouts.

What: for each method the largest difference of log-probabilities and of probabilities over a stream, and the number of
images that the two predict differently, in float32 and in float64; and, for scale, the largest difference of our
log-probabilities from those of the network that does not learn. A row without numbers says why there are none.
How: both sides get the network, images and settings (the official ones for CIFAR10-C) and every random draw of ours:
views, restored weights, chosen images, shuffles (`studies.parity.draws`). The network is that of digits, the images are
digits in batches, each with another corruption. Official code runs unchanged on the CPU, but for what the row lists;
packages that it imports and this environment lacks have stand-ins (`studies.checkouts`). Nothing is downloaded:
clone the repositories of your choice first.

    git clone https://github.com/mariodoebler/test-time-adaptation
    python -m studies.parity.run mariodoebler/test-time-adaptation=test-time-adaptation

Rows of repositories that are not given stay in the file.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import platform
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.steps import processor
from studies.checkouts import commit_of
from studies.files import results_of
from studies.parity.benchmark import PAIRS as BENCHMARK_PAIRS
from studies.parity.draws import Tape
from studies.parity.official import official_code
from studies.parity.own import PAIRS as OWN_PAIRS
from studies.parity.pairs import Pair
from studies.parity.subject import Subject, source_batches, stream, trained_network
from studies.parity.surgeon import PAIRS as SURGEON_PAIRS
from vcotta._util.files import read_json, write_json
from vcotta.methods import build_adapter
from vcotta.nn.runtime import Runtime

PAIRS = (*BENCHMARK_PAIRS, *OWN_PAIRS, *SURGEON_PAIRS)
PRECISIONS = {"fp32": torch.float32, "fp64": torch.float64}
KEYS = ("method", "repository", "variant", "precision")

Row = dict[str, Any]


def compare(pair: Pair, checkout: Path, precision: str, count: int, size: int, scratch: Path) -> Row:
    """Return what came of one comparison."""
    dtype = PRECISIONS[precision]
    network, source, tape = trained_network(), source_batches(dtype), Tape()
    adapter = build_adapter(
        pair.method,
        network,
        source=source,
        dataset="cifar10",
        guard=False,
        runtime=Runtime("cpu", precision),  # type: ignore[arg-type]
        **pair.options,
    )
    subject = Subject(copy.deepcopy(network).to(dtype), source, checkout, tape, adapter, scratch)
    largest = of_probabilities = moved = 0.0
    differing, usual = 0, torch.get_default_dtype()
    plain = build_adapter("bn", network, runtime=adapter.runtime)
    with (
        official_code(checkout / pair.folder, pair.replaced(subject)) as stand_ins,
        contextlib.redirect_stdout(io.StringIO()),  # official code prints much
    ):
        torch.set_default_dtype(dtype)
        try:
            official = pair.build(subject)
            for images in stream(count, size, dtype):
                torch.set_default_dtype(usual)
                with tape.recording():
                    ours = adapter(images)
                torch.set_default_dtype(dtype)
                with tape.playing():
                    theirs = official(images)
                if not theirs.isfinite().all():
                    raise FloatingPointError("the official code's prediction is not a number")
                largest = max(largest, _gap(ours, theirs))
                moved = max(moved, _gap(ours, plain(images)))
                of_probabilities = max(of_probabilities, _gap(ours.exp(), theirs.exp()))
                differing += int((ours.argmax(-1) != theirs.argmax(-1)).sum())
        finally:
            torch.set_default_dtype(usual)
    return {
        "log_probabilities": largest,
        "probabilities": of_probabilities,
        "differing": differing,
        "moved": moved,
        "stand_ins": stand_ins,
        "config": asdict(adapter.config),
    }


def _gap(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max())


def row_of(pair: Pair, checkout: Path, precision: str, count: int, size: int) -> Row:
    """Return the row of a comparison; of one that cannot be made, with the reason."""
    facts: Row = {
        "method": pair.method,
        "repository": pair.repository,
        "variant": pair.variant,
        "precision": precision,
        "commit": commit_of(checkout),
        "settings": pair.settings,
        "changes": list(pair.changes),
        "batches": count,
        "images": count * size,
        "network": "digits",
        "hardware": processor(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    with tempfile.TemporaryDirectory() as scratch:
        try:
            return facts | compare(pair, checkout, precision, count, size, Path(scratch))
        except NotImplementedError as error:  # there is nothing to run
            return facts | {"why": str(error)}
        except Exception as error:  # official code may fail in any way, which is then the row's content
            last = traceback.extract_tb(error.__traceback__)[-1]
            return facts | {"why": f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"}


def key_of(row: Row) -> tuple[Any, ...]:
    """Return what identifies a row."""
    return tuple(row[key] for key in KEYS)


def place_of(row: Row) -> tuple[int, str]:
    """Return where a row stands in the file: in the order of `PAIRS`."""
    order = [(pair.method, pair.repository, pair.variant) for pair in PAIRS]
    key = key_of(row)[:3]
    return order.index(key) if key in order else len(order), row["precision"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted({pair.repository for pair in PAIRS})
    parser.add_argument("checkouts", nargs="+", metavar="OWNER/NAME=FOLDER", help=f"of {', '.join(known)}")
    parser.add_argument("--methods", nargs="+", help="only these methods")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--out", type=Path, default=results_of("parity") / "parity.json")
    options = parser.parse_args(arguments)
    checkouts = dict(word.partition("=")[::2] for word in options.checkouts)
    if unknown := sorted(set(checkouts) - set(known)):
        parser.error(f"Expected OWNER/NAME=FOLDER of {', '.join(known)}, but got {', '.join(unknown)}.")
    torch.set_num_threads(1)
    rows: list[Row] = read_json(options.out) if options.out.exists() else []
    for pair in PAIRS:
        if pair.repository not in checkouts or (options.methods and pair.method not in options.methods):
            continue
        for precision in PRECISIONS:
            checkout = Path(checkouts[pair.repository]).resolve()
            row = row_of(pair, checkout, precision, options.batches, options.batch_size)
            rows = [other for other in rows if key_of(other) != key_of(row)] + [row]
            found = row.get("why") or f"{row['log_probabilities']:.1e}, {row['differing']} differ"
            rows.sort(key=place_of)
            write_json(options.out, rows)
            print(f"{pair.method} {pair.variant} ({pair.repository}), {precision}: {found}", flush=True)


if __name__ == "__main__":
    main()

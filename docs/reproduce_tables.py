"""The tables of docs/reproduce.md, drawn from the outcomes that `vcotta reproduce` left."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from vcotta.experiments.entries import ENTRIES
from vcotta.experiments.outcome import FORMS, read_rows
from vcotta.experiments.outcome_page import outcome_section
from vcotta.experiments.reproduce import OUTCOME

DOCS = Path(__file__).parent
RESULTS, PICTURES = DOCS / "results", DOCS / "pictures" / "reproduce"


def keep_reproduced(folders: list[str]) -> None:
    """Keep the outcome of every experiment in some folders, and its picture in few colours.

    Args:
        folders: Folders of outcomes, or the ``--out`` folders that hold them.

    Raises:
        ValueError: There is none, or there are two of one experiment and data set, of which a page shows one.
    """
    for (name, dataset), path in outcomes(folders).items():
        kept, picture = RESULTS / "reproduce" / dataset / f"{name}.json", PICTURES / dataset / f"{name}.png"
        for target in (kept, picture):
            target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, kept)
        with Image.open(path.with_name("picture.png")) as drawn:
            drawn.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(picture, optimize=True)


def outcomes(folders: list[str]) -> dict[tuple[str, str], Path]:
    """The file of each outcome in some folders, by experiment and data set; see `keep_reproduced`."""
    found: dict[tuple[str, str], Path] = {}
    places = [path for folder in map(Path, folders) for path in (folder, *folder.glob("*"))]
    for path in sorted(place / OUTCOME for place in places if (place / OUTCOME).is_file()):
        told = json.loads(path.read_text())
        which = told["experiment"], told["asked"]["dataset"]
        if found.setdefault(which, path) != path:
            raise ValueError(
                f"Expected one outcome of {' on '.join(which)}, but got {found[which].parent} and {path.parent}. Give "
                "the folders of the outcomes to keep."
            )
    if not found:
        raise ValueError(f"Expected folders with outcomes of `vcotta reproduce`, but got {', '.join(folders)}.")
    return found


def reproduced_text(name: str, dataset: str = "digits") -> str:
    """What came out of an experiment: command, tables, cost and picture."""
    path = RESULTS / "reproduce" / dataset / f"{name}.json"
    if not path.exists():
        return f"Not run on {dataset} yet: `vcotta reproduce {name} --dataset {dataset}`."
    return outcome_section(json.loads(path.read_text()), f"pictures/reproduce/{dataset}/{name}.png").rstrip()


def experiments_text() -> str:
    """Table of the experiments: what each asks, what it cost on digits, and what was lowest."""
    lines = ["| Experiment | What it shows | Runs | Seconds | CPU seconds | Lowest |", "|:--|:--|--:|--:|--:|:--|"]
    for name, entry in ENTRIES.items():
        path = RESULTS / "reproduce" / "digits" / f"{name}.json"
        cells = [f"[`{name}`](#{name})", entry.title]
        if not path.exists():
            cells += ["not run yet", "", "", ""]
        else:
            told = json.loads(path.read_text())
            cost, score = told["cost"], entry.scores[0]
            best = min(read_rows(told["rows"]), key=lambda row: row.scores[score])
            heading, form, _ = FORMS[score]
            spent = f"{cost['cpu_seconds']:.0f}" if "cpu_seconds" in cost else "-"  # of a cluster it is not known
            cells += [f"{cost['ran']} of {cost['cells']}", f"{cost['seconds']:.0f}", spent]
            cells.append(f"{best.label} ({heading} {best.scores[score]:{form}})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cifar10_text() -> str:
    """The experiments that were run on CIFAR10-C, or that none was."""
    found = [name for name in ENTRIES if (RESULTS / "reproduce" / "cifar10" / f"{name}.json").exists()]
    if not found:
        return "There are no results on CIFAR10-C here yet: nothing on this page says how these experiments end there."
    return "\n\n".join(f"### {name} on CIFAR10-C\n\n{reproduced_text(name, 'cifar10')}" for name in found)


REPRODUCE: dict[str, Callable[[], str]] = {
    "experiments": experiments_text,
    **{f"reproduce-{name}": functools.partial(reproduced_text, name) for name in ENTRIES},
    "reproduce-cifar10": cifar10_text,
}

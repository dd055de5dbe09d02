"""Keep the outcomes of `vcotta reproduce` as result files, with their pictures.

What: every experiment of the paper on digits (quick), and some on CIFAR10-C.
How: the runs are made by the commands that the page shows above each table, such as

    vcotta reproduce main --out reproduced
    python -m studies.reproduce.run reproduced

Pictures are kept in few colours. Where a folder holds several outcomes of one experiment and data set, give the folder
of the one to keep.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from studies.files import results_of
from vcotta.experiments.reproduce import OUTCOME


def keep_outcomes(folders: Sequence[Path], results: Path) -> None:
    """Keep the outcome of every experiment in some folders, and its picture in few colours.

    Args:
        folders: Folders of outcomes, or the ``--out`` folders that hold them.
        results: Where to keep them, as DATASET/NAME.json and DATASET/NAME.png.

    Raises:
        ValueError: There is none, or there are two of one experiment and data set, of which a page shows one.
    """
    for (name, dataset), path in outcomes(folders).items():
        kept = results / dataset / f"{name}.json"
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, kept)
        with Image.open(path.with_name("picture.png")) as drawn:
            few = drawn.convert("RGB").quantize(64, dither=Image.Dither.NONE)
            few.save(kept.with_suffix(".png"), optimize=True)


def outcomes(folders: Sequence[Path]) -> dict[tuple[str, str], Path]:
    """Return the file of each outcome in some folders, by experiment and data set; see `keep_outcomes`."""
    found: dict[tuple[str, str], Path] = {}
    candidates = [path / OUTCOME for folder in folders for path in (folder, *folder.glob("*"))]
    for path in sorted(file for file in candidates if file.is_file()):
        outcome = json.loads(path.read_text(encoding="utf-8"))
        which = outcome["experiment"], outcome["asked"]["dataset"]
        if found.setdefault(which, path) != path:
            raise ValueError(
                f"Expected one outcome of {' on '.join(which)}, but got {found[which].parent} and {path.parent}. Give "
                "the folders of the outcomes to keep."
            )
    if not found:
        names = ", ".join(map(str, folders))
        raise ValueError(f"Expected folders with outcomes of `vcotta reproduce`, but got {names}.")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="folders of outcomes, or --out folders that hold them")
    keep_outcomes(parser.parse_args(arguments).folders, results_of("reproduce"))


if __name__ == "__main__":
    main()

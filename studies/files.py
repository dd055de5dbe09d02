"""Result files: where they are, how to read them, and how to keep those of finished runs.

python -m studies.files studies/methods/results/cifar10c-recipe runs/methods/*
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "studies"


def results_of(study: str) -> Path:
    """Return the folder of a study's result files."""
    return STUDIES / study / "results"


def read_result(study: str, name: str) -> Any:
    """Read one of a study's result files."""
    return json.loads((results_of(study) / name).read_text(encoding="utf-8"))


def portable(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest without the folders of the machine that the run was made on."""
    kept = {key: value for key, value in manifest.items() if key != "platform"}
    kept["command"] = _names(manifest["command"])
    if "resumed" in kept:
        kept["resumed"] = [stop | {"command": _names(stop["command"])} for stop in kept["resumed"]]
    if "spec" in kept:
        paths = {key: kept["spec"][key] for key in ("weights", "corrupted")}
        kept["spec"] = kept["spec"] | {key: path and Path(path).name for key, path in paths.items()}
        folders = {
            key: name for key in ("data", "source") if (name := kept["spec"].get(key) or "").startswith("folder:")
        }
        kept["spec"] |= {key: f"folder:{Path(name.removeprefix('folder:')).name}" for key, name in folders.items()}
    return kept


def _names(command: Sequence[str]) -> list[str]:
    """The words of a command, of paths the last part."""
    return [Path(word).name if "/" in word else word for word in command]


def keep_runs(runs: Sequence[Path], folder: Path) -> None:
    """Copy manifest and summary of finished runs to ``folder``/METHOD.

    A run in a folder METHOD-FORM keeps that name, so that a variant of a method can stand beside the method itself.
    """
    for run in runs:
        manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
        method = manifest["method"]
        kept = folder / (run.name if run.name.startswith(f"{method}-") else method)
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "manifest.json").write_text(json.dumps(portable(manifest), indent=2) + "\n", encoding="utf-8")
        shutil.copy(run / "summary.json", kept / "summary.json")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Keep manifest and summary of finished runs as result files.")
    parser.add_argument("folder", type=Path, help="where to keep them, such as studies/methods/results/NAME")
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs")
    options = parser.parse_args(arguments)
    keep_runs(options.runs, options.folder)


if __name__ == "__main__":
    main()

"""Imports go one way: each package knows those below it and no others, and none hides an import to dodge a cycle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "vcotta"

NETWORKS = {"_util", "nn", "bayes", "models"}
IMAGES = {"_util", "corruptions", "data"}
BELOW: dict[str, set[str]] = {
    "_util": set(),
    "nn": {"_util"},
    "bayes": {"_util", "nn"},
    "models": {"_util", "nn", "bayes"},
    "methods": NETWORKS,
    "corruptions": {"_util"},
    "data": {"_util", "corruptions"},
    "streams": IMAGES,
    "training": {"_util", "nn", "models", "data"},
    "runs": NETWORKS | IMAGES | {"methods", "streams"},
    "report": NETWORKS | IMAGES | {"methods", "streams", "runs"},
    "experiments": NETWORKS | IMAGES | {"methods", "streams", "runs", "report", "training"},
    "serve": NETWORKS | IMAGES | {"methods", "runs", "report"},
}
"""Which packages each one may import, directly or inside a function; ``cli`` and the root may import all."""


def imports(path: Path) -> Iterator[str]:
    """The modules of vcotta that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "vcotta")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vcotta":
            yield from (f"{node.module}.{name.name}" for name in node.names)


def wrong_imports(root: Path) -> list[str]:
    """Every import that goes the wrong way, as ``package/file.py imports module``."""
    found = []
    for path in sorted(root.rglob("*.py")):
        package = path.relative_to(root).parts[0]
        if package not in BELOW:
            continue
        for module in imports(path):
            target = module.split(".")[1]
            if target not in BELOW[package] | {package, "_version"}:
                found.append(f"{path.relative_to(root)} imports {module}")
    return found


def test_every_package_imports_only_those_below_it() -> None:
    assert wrong_imports(SRC) == []


def test_the_order_of_packages_has_no_cycle() -> None:
    ordered: list[str] = []
    while len(ordered) < len(BELOW):
        free = [package for package in BELOW if package not in ordered and BELOW[package] <= set(ordered)]
        assert free, f"a cycle among {set(BELOW) - set(ordered)}"
        ordered += free


def test_every_package_has_its_place_and_the_root_has_no_module_of_its_own() -> None:
    packages = {path.parent.name for path in SRC.glob("*/__init__.py")}
    assert packages == {*BELOW, "cli"}
    assert {path.name for path in SRC.glob("*.py")} == {"__init__.py", "__main__.py", "_version.py"}


def test_an_import_that_goes_the_wrong_way_is_found_even_inside_a_function(tmp_path) -> None:
    (tmp_path / "corruptions").mkdir()
    planted = "def late():\n    from vcotta.data import ImageData\n    import vcotta.runs.run\n"
    (tmp_path / "corruptions" / "planted.py").write_text(planted)
    assert wrong_imports(tmp_path) == [
        "corruptions/planted.py imports vcotta.data.ImageData",
        "corruptions/planted.py imports vcotta.runs.run",
    ]

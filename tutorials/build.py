"""Execute the tutorials and write their pages.

    make tutorials                               # all of them
    python tutorials/build.py camera serve       # some

A tutorial is a script: its docstring has the title and a summary, cells that begin with ``# %% [markdown]`` are prose,
those that begin with ``# %%`` are code. It is executed in an empty folder. Its page, ``docs/tutorials/NAME.md``, shows
the prose, the code, what each cell printed and the figures it drew. A picture that the prose links to is one that the
script wrote to that folder.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, NamedTuple

from PIL import Image

SCRIPTS = Path(__file__).resolve().parent
PAGES = SCRIPTS.parent / "docs" / "tutorials"
NAMES = (
    "own_network",
    "camera",
    "compare",
    "calibration",
    "serve",
    "when_it_gets_worse",
)
"""The tutorials, in the order of the index."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MPLBACKEND": "agg",
    "COLUMNS": "100",
    "PYTHONUTF8": "1",
}
"""Environment variables of a tutorial's process: one core, no window, tables of one width."""

OUTPUT = '```text title="Output"'
"""How a fence with printed output begins."""

_INTRO = """\
# Tutorials

Each page is a script that the tests execute; its outputs and pictures are real. They need no download and no GPU: the \
images are scikit-learn's handwritten digits. To try one, run it in an empty folder:

```console
$ mkdir try && cd try
$ OMP_NUM_THREADS=1 python ../tutorials/own_network.py
```

On few cores torch is faster with one thread than with its own choice, often by much. Editors and notebooks that know \
`# %%` cells can run it step by step.

| Tutorial | What you get | Time on one core |
|:--|:--|--:|
"""
_COLOURS = 64  # of a picture's palette


class Cell(NamedTuple):
    """Prose or code, and the line of the script at which it begins."""

    is_code: bool
    text: str
    line: int


class Tutorial(NamedTuple):
    """A script taken apart."""

    title: str
    summary: str
    cells: list[Cell]


def read_script(path: Path) -> Tutorial:
    """Take a script apart."""
    text = path.read_text(encoding="utf-8")
    title, _, summary = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")
    cells = []
    marks = [*re.finditer(r"^# %%(.*)\n", text, re.M)]
    for mark, end in zip(
        marks, [*(mark.start() for mark in marks[1:]), len(text)], strict=True
    ):
        body, is_code = text[mark.end() : end].strip("\n"), "[markdown]" not in mark[1]
        if not is_code:
            body = "\n".join(
                line.removeprefix("#").removeprefix(" ") for line in body.splitlines()
            )
        cells.append(Cell(is_code, body, text[: mark.end()].count("\n")))
    return Tutorial(title.rstrip("."), " ".join(summary.split()), cells)


def write_page(name: str, out: Path) -> None:
    """Execute a tutorial and write its page and pictures into a folder, which a failure leaves as it was."""
    with tempfile.TemporaryDirectory() as folder:
        pictures = Pictures(name, Path(folder))
        page = _make_page(name, pictures)
        pictures.move_to(out / "pictures")
    (out / f"{name}.md").write_text(page, encoding="utf-8")


def _make_page(name: str, pictures: Pictures) -> str:
    script = SCRIPTS / f"{name}.py"
    tutorial = read_script(script)
    blocks = [
        f"<!-- Made from tutorials/{script.name} by `make tutorials`: edit that file. -->"
    ]
    blocks += [f"# {tutorial.title}", tutorial.summary]
    module = ModuleType(f"tutorial_{name}")
    sys.modules[module.__name__] = (
        module  # dataclasses and saved adapters look their classes up there
    )
    module.__file__ = str(script)
    began = _cpu_seconds()
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for cell in tutorial.cells:
            if cell.is_code:
                printed = _execute(cell, script, module)
                blocks.append(f"```python\n{cell.text}\n```")
                blocks += [f"{OUTPUT}\n{printed}\n```"] if printed else []
                blocks += pictures.of_figures()
            else:
                blocks.append(
                    re.sub(
                        r"\]\(([^):]+\.png)\)",
                        lambda link: f"]({pictures.add(Path(link[1]))})",
                        cell.text,
                    )
                )
    seconds, version = _cpu_seconds() - began, _torch_version()
    blocks.append(
        f"*Executed in {seconds:.0f} seconds on one core with torch {version}; the script is `{_shown(script)}`.*"
    )
    return "\n\n".join(blocks) + "\n"


def _shown(script: Path) -> str:
    return script.relative_to(SCRIPTS.parent).as_posix()


def _cpu_seconds() -> float:
    """Seconds of one core so far, of this process and its finished children: the same on a busy machine."""
    return sum(os.times()[:4])


def _torch_version() -> str:
    import torch

    return torch.__version__


def _execute(cell: Cell, script: Path, module: ModuleType) -> str:
    """Run a cell and return what it, or a program it started, printed; if it fails, print that."""
    code = compile("\n" * cell.line + cell.text, script, "exec")
    with tempfile.TemporaryFile() as file:
        try:
            with _captured(file):
                exec(code, vars(module))
        except BaseException:
            print(_content(file), file=sys.stderr)
            raise
        return _content(file)


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode().strip("\n").splitlines()
    return "\n".join(line.rstrip() for line in lines)


@contextmanager
def _captured(file: IO[bytes]) -> Iterator[None]:
    """Send standard output, also that of child processes, to a file."""
    sys.stdout.flush()
    before = os.dup(1)
    os.dup2(file.fileno(), 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(before, 1)
        os.close(before)


class Pictures:
    """The pictures of a page, numbered and made small."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.count = name, folder, 0

    def move_to(self, folder: Path) -> None:
        """Replace the page's pictures in a folder with these."""
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{self.name}-*.png"):
            old.unlink()
        for made in self.folder.iterdir():
            shutil.move(made, folder / made.name)

    def add(self, made: Path) -> str:
        """Take a picture that the tutorial wrote, and return its link."""
        self.count += 1
        file = self.folder / f"{self.name}-{self.count}.png"
        with Image.open(made) as picture:
            picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(
                file, optimize=True
            )
        return f"pictures/{file.name}"

    def of_figures(self) -> list[str]:
        """Take the open figures of matplotlib, whose titles describe them, and return their Markdown."""
        from matplotlib import pyplot

        blocks = []
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            made = Path(f".figure-{number}.png")
            figure.savefig(made, dpi=100, bbox_inches="tight")
            title = figure.get_suptitle() or figure.axes[0].get_title()
            blocks.append(f"![{title}]({self.add(made)})")
            pyplot.close(figure)
        return blocks


def write_index(out: Path) -> None:
    """Write the list of the tutorials, with the times that their pages have."""
    rows = []
    for name in NAMES:
        tutorial, page = read_script(SCRIPTS / f"{name}.py"), out / f"{name}.md"
        seconds = re.search(
            r"\*Executed in (\d+) seconds", page.read_text(encoding="utf-8")
        )
        assert seconds is not None
        rows.append(
            f"| [{tutorial.title}]({name}.md) | {tutorial.summary} | {seconds[1]} s |\n"
        )
    (out / "index.md").write_text(_INTRO + "".join(rows), encoding="utf-8")


def main() -> None:
    """Make the pages of the tutorials named on the command line, each in a process of its own."""
    parser = argparse.ArgumentParser(
        description="Execute tutorials and write their pages."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"by default all: {', '.join(NAMES)}"
    )
    parser.add_argument("--out", type=Path, default=PAGES, help="folder for the pages")
    parser.add_argument(
        "--here",
        action="store_true",
        help="execute in this process, and write no index",
    )
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in NAMES]:
        parser.error(f"expected one of {', '.join(NAMES)}, but got {unknown[0]}")
    out = asked.out.resolve()
    # A tutorial starts programs in another folder.
    if found := os.environ.get("PYTHONPATH"):
        places = (str(Path(place).resolve()) for place in found.split(os.pathsep))
        os.environ["PYTHONPATH"] = os.pathsep.join(places)
    for name in asked.names or NAMES:
        if asked.here:
            write_page(name, out)
        else:
            print(f"Executing {name} ...", flush=True)
            command = [
                sys.executable,
                str(SCRIPTS / "build.py"),
                name,
                "--out",
                str(out),
                "--here",
            ]
            if subprocess.run(command, env=os.environ | ENVIRONMENT).returncode:
                sys.exit(f"The tutorial {name} failed.")
    if not asked.here and all((out / f"{name}.md").exists() for name in NAMES):
        write_index(out)


if __name__ == "__main__":
    main()

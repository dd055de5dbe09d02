"""The fenced code of README and site, and how its commands are checked against the real command line."""

from __future__ import annotations

import functools
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

import typer
from typer.main import get_command

from vcotta.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(p for p in ROOT.glob("[A-Z]*.md") if p.stem in ("CONTRIBUTING", "SECURITY"))]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
SHELLS = ("console", "bash", "sh", "shell")
VARIABLE = re.compile(r"[A-Z_]+=.*")
OPERATORS = ("|", "||", "&&", ";", "&", ">", ">>", "<", "(", ")")
UNCHECKED = {
    ".",
    "base64",
    "cat",
    "cd",
    "chmod",
    "cp",
    "curl",
    "docker",
    "export",
    "git",
    "head",
    "install",
    "journalctl",
}
UNCHECKED |= {"mkdir", "podman", "pre-commit", "ray", "sudo", "systemctl", "tensorboard", "umask", "useradd"}
"""Programs that are not ours: their options are not checked."""


COMMAND = get_command(app)


@dataclass(frozen=True)
class Snippet:
    """Fenced code of a page."""

    page: Path
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The commands of a console; a console marks them by a dollar, and all else is output."""
        lines = re.sub(r" *\\\n\s*(?:> )?", " ", self.text).splitlines()
        if self.language == "console":
            lines = [line.strip().removeprefix("$ ") for line in lines if line.strip().startswith("$ ")]
        return [line for line in lines if line.strip() and not line.strip().startswith("#") and "# there" not in line]


@functools.cache
def snippets(*languages: str) -> list[Snippet]:
    """Return the fenced code in one of the languages, in the order of the pages."""
    found = []
    for page in PAGES:
        for indent, language, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if language in languages:
                found.append(Snippet(page, language, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)))
    return found


def pieces(command: str) -> list[list[str]]:
    """Return the words of each program that a line starts, without variables before it and files after > or <."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words, found = list(lexer), [[]]
    for before, word in zip(["", *words], words, strict=False):
        if word in OPERATORS and not word.startswith((">", "<")):
            found.append([])
        elif not (word in OPERATORS or before.startswith((">", "<"))) and (found[-1] or not VARIABLE.fullmatch(word)):
            found[-1].append(word)
    return [part for part in found if part]


def check_program(words: list[str]) -> None:
    """Raise unless a program and its words are ones that work: our command line, our files, our make targets."""
    program, *rest = words
    name = Path(program).name or program
    if name == "torchrun":
        words = rest[rest.index("-m") + 1 :]
        name, rest = words[0], words[1:]
    if name in ("python", "python3") and rest[:2] == ["-m", "vcotta"]:
        name, rest = "vcotta", rest[2:]
    if name == "vcotta":
        parse(rest)
    elif name == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert {word for word in rest if "=" not in word and not word.startswith("-")} <= targets, words
    elif name == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        asked = {extra for word in rest for part in re.findall(r"\[([\w,]+)\]", word) for extra in part.split(",")}
        assert asked <= set(extras), words
    elif name in ("python", "python3", "pytest"):
        check_files(rest)
    elif program.startswith((".ci/", "./")):
        assert (ROOT / program).is_file(), program
    else:
        assert name in UNCHECKED, f"{program} is not a program that the tests know; see {Path(__file__).name}"


def check_files(words: list[str]) -> None:
    """Raise unless scripts and modules of the repository are there."""
    for before, word in zip(["", *words], words, strict=False):
        if before == "-m" and word.split(".")[0] in ("studies", "benchmarks", "tutorials"):
            assert (ROOT / f"{word.replace('.', '/')}.py").is_file(), word
        if word.startswith(("examples/", "studies/", "benchmarks/", "tutorials/", "tests/")):
            assert (ROOT / word.split("::")[0]).exists(), word


def parse(words: list[str]) -> None:
    """Parse the words of a command line as the real one does, without running it.

    Raises:
        Exception: There is no such command or option, a value is not valid, or one is missing.
    """
    try:
        command = COMMAND
        context = command.make_context("vcotta", list(words))
        while hasattr(command, "resolve_command"):
            name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            context = command.make_context(name, rest, parent=context)
    except typer.Exit:  # --help and --version
        pass

"""Every command and every piece of Python of README and site works, or its need of data is listed and it is parsed."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vcotta.methods import registry

from .snippets import COMMAND, PAGES, ROOT, SHELLS, check_program, pieces, snippets

NEEDS = {
    r"\b(cifar10|cifar100|imagenet)\b|/shared/|--corrupted": "a downloaded data set",
    r"folder:|--weights|--model|\.pt\b|\.safetensors": "a network or pictures of the reader's",
    r"^vcotta serve": "nothing, but does not end; the tests of the server start it",
    r"^vcotta demo": "two minutes; tests/experiments/test_demo.py runs it",
    r"^vcotta reproduce (?!--list)": "minutes; tests/experiments/test_reproduce.py runs smaller ones",
    r"^vcotta data": "a download",
}
"""Commands that are parsed and not run, and what they need."""

TESTED_ELSEWHERE = {
    "docs/tutorials": "the tests of the tutorials run their scripts",
    "docs/how-to/add-a-method.md": "tests/test_add_a_method.py",
    "docs/operations/streams.md": "tests/serve/test_oip.py asks a real server in this way",
}
"""Python that other tests run."""

COMMANDS = [
    pytest.param(command, id=f"{part.page.name}: {command[:70]}")
    for part in snippets(*SHELLS)
    for command in part.commands
]
PYTHON = {
    page: parts
    for page in PAGES
    if (parts := [part for part in snippets("python", "pycon", "py") if part.page == page])
}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def runnable(command: str) -> bool:
    return not any(re.search(pattern, command) for pattern in NEEDS)


CONSOLES = {
    page: commands
    for page in PAGES
    if (
        commands := [
            command
            for part in snippets(*SHELLS)
            if part.page == page
            for command in part.commands
            if command.startswith(("vcotta ", "torchrun ")) and runnable(command)
        ]
    )
}


def test_the_readme_has_at_most_a_hundred_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one_that_exists(command) -> None:
    for words in pieces(command):
        check_program(words)


def test_a_wrong_option_a_wrong_command_and_an_unknown_program_are_found() -> None:
    for command in (
        "vcotta run --method tent --lr 1 --out x",
        "vcotta rum",
        "make nothing",
        "pip install '.[more]'",
        "rm x",
    ):
        with pytest.raises(Exception, match=r"option|command|make|pip|program"):
            check_program(pieces(command)[0])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_option_that_the_text_names_exists(page) -> None:
    groups = COMMAND.commands
    for code in re.findall(r"`vcotta ([a-z]+[^`\n]*)`", page.read_text()):
        command = groups[code.split()[0]]
        known = {option for part in command.params for option in (*part.opts, *part.secondary_opts)} | {"--help", "-h"}
        for nested in getattr(command, "commands", {}).values():
            known |= {option for part in nested.params for option in part.opts}
        assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", code)) <= known, code


@pytest.mark.parametrize("page", PYTHON, ids=name_of)
def test_python_of_every_page_compiles(page) -> None:
    for part in PYTHON[page]:
        if not part.text.startswith(('"', ">>>")):
            compile(part.text, name_of(page), "exec")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PYTHON if not any(name_of(page).startswith(part) for part in TESTED_ELSEWHERE)],
    ids=name_of,
)
def test_python_of_every_page_runs_from_top_to_bottom(page, tiny, images, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "REGISTERED", dict(registry.REGISTERED))
    module = types.ModuleType("page")  # dataclasses look for the module they are defined in
    monkeypatch.setitem(sys.modules, "page", module)
    if page.name == "README.md":  # the five lines speak of the reader's own
        loader = [(images(8, 0), torch.arange(8) % 4)]
        vars(module).update(model=tiny(), train_loader=loader, stream=[images(6, 1), images(6, 2)])
    if page.name == "distributed.md":  # as torchrun starts one process
        world = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        for name, value in world.items():
            monkeypatch.setenv(name, value)
    for part in PYTHON[page]:
        exec(part.text, vars(module))


@pytest.mark.slow
@pytest.mark.parametrize("page", CONSOLES, ids=name_of)
def test_commands_of_every_page_run_in_their_order(page, command, tmp_path, tmp_path_factory, monkeypatch) -> None:
    cache = tmp_path_factory.getbasetemp() / "snippets-cache"
    monkeypatch.setenv("VCOTTA_CACHE", str(cache))
    monkeypatch.setattr(registry, "REGISTERED", dict(registry.REGISTERED))
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save("picture.png")
    if page.name == "add-a-method.md":
        Path("pseudo_label.py").write_text(PYTHON[page][0].text)
    for line in CONSOLES[page]:
        for words in pieces(line):
            if words[0] == "torchrun":
                subprocess.run([sys.executable, "-m", "torch.distributed.run", *words[1:]], check=True)
                continue
            code, _, errors = command(*words[1:])
            assert code == 0, f"{line}: {errors}"

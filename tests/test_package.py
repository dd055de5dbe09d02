"""The package as users get it: a wheel, alone in an environment of its own."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import vcotta

ROOT = Path(__file__).parents[1]


PUBLIC = {
    "Adapter",
    "build_adapter",
    "configure",
    "register_method",
    "list_methods",
    "Guard",
    "Runtime",
    "Prediction",
    "save",
    "serve",
    "load",
    "warm_up",
    "WarmUpConfig",
    "to_variational",
    "to_point",
    "sampling",
    "corrupt",
    "list_corruptions",
    "make_stream",
    "merge",
    "Batch",
    "run_stream",
    "Run",
    "__version__",
    "methods",
    "models",
    "data",
    "metrics",
}


def test_the_public_names_are_these_and_all_are_there() -> None:
    assert set(vcotta.__all__) == PUBLIC
    assert all(getattr(vcotta, name) is not None for name in PUBLIC)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        vcotta.nothing  # noqa: B018


def test_names_are_loaded_when_first_used_so_that_the_command_starts_without_torch() -> None:
    code = "import sys, vcotta, vcotta.cli; print('torch' in sys.modules); vcotta.Run; print('torch' in sys.modules)"
    code = f"import sys; sys.modules['fastapi'] = None; {code}; print(vcotta.serve.load_bundle.__name__)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "True", "load_bundle"]  # the last without the extra `serve`


def test_no_message_advises_to_install_the_package_from_an_index() -> None:
    files = (ROOT / "src").rglob("*.py")
    assert not [path.name for path in files if re.search(r"pip install .*vcotta\b", path.read_text("utf-8"))]


PAGES = [
    ROOT / "docs" / "how-to" / "add-a-method.md",
    *sorted((ROOT / "examples").glob("*.py")),
    *sorted((ROOT / "tutorials").glob("*.py")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_tutorials_and_the_page_about_adding_a_method_import_only_what_is_public(page) -> None:
    text = page.read_text(encoding="utf-8")
    imports = re.findall(r"^\s*from (vcotta[\w.]*) import ([\w, ]+)$", text, re.M)
    inner = {module for module, _ in imports if module.count(".") > 1 or "._" in module}
    assert not inner
    for module, names in imports:
        assert {name.strip() for name in names.split(",")} <= set(importlib.import_module(module).__all__)
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.S)) if page.suffix == ".md" else text
    assert set(re.findall(r"\bvcotta\.(\w+)", re.sub(r"from vcotta[\w.]*", "", code))) <= PUBLIC


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    tracked = ["pyproject.toml", "README.md", "LICENSE", "src"]
    subprocess.run(["cp", "-r", *(str(ROOT / name) for name in tracked), str(source)], check=True)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_typed_package_and_nothing_else(wheel) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "vcotta/py.typed" in names
    assert {"vcotta/report/templates/base.html.j2", "vcotta/report/templates/style.css"} <= set(names)
    assert "vcotta/corruptions/__init__.py" in names
    assert not [name for name in names if not name.startswith(("vcotta/", "vcotta-"))]
    assert sum(info.file_size for info in zipfile.ZipFile(wheel).infolist()) < 2_000_000


def test_the_wheel_holds_every_template_that_the_package_has(wheel) -> None:
    ours = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").glob("vcotta/*/templates/*")}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if "/templates/" in name}
    assert held == ours
    assert "vcotta/serve/templates/status.html.j2" in held


ADAPT = """
import torch, vcotta
from vcotta.models import build_network
adapter = vcotta.build_adapter("tent", build_network("wrn-10-1", 4, base=4))
print(tuple(adapter(torch.rand(6, 3, 8, 8)).shape), vcotta.__file__)
"""


@pytest.mark.slow
def test_the_wheel_installed_alone_runs_the_commands_and_an_adapter(wheel, tmp_path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    folder = tmp_path / "env" / "bin"
    outside = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=outside)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(folder / "pip", "install", "-q", "--no-deps", "--no-index", wheel)
    # The dependencies are taken from the environment the tests run in; the package itself is the wheel's.
    purelib = run(folder / "python", "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
    Path(purelib, "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    assert run(folder / "vcotta", "--version") == f"vcotta {vcotta.__version__}\n"
    assert "bundle" in run(folder / "python", "-m", "vcotta", "--help")
    listed = run(folder / "vcotta", "methods")
    assert all(name in listed for name in vcotta.list_methods())
    shape, _, where = run(folder / "python", "-c", ADAPT).strip().rpartition(" ")
    assert shape == "(6, 4)"
    assert Path(where).is_relative_to(tmp_path / "env")

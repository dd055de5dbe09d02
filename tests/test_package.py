"""The package as users get it: a wheel, alone in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import vcotta

ROOT = Path(__file__).parents[1]


def test_every_public_name_is_there() -> None:
    assert all(hasattr(vcotta, name) for name in vcotta.__all__)


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
    assert "vcotta/corruptions/__init__.py" in names
    assert not [name for name in names if not name.startswith(("vcotta/", "vcotta-"))]
    assert sum(info.file_size for info in zipfile.ZipFile(wheel).infolist()) < 2_000_000


@pytest.mark.slow
def test_the_wheel_installed_alone_runs_the_command(wheel, tmp_path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel], check=True)
    # The dependencies are taken from the environment the tests run in; the package itself is the wheel's.
    purelib = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    Path(purelib, "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    where = subprocess.run(
        [python, "-c", "import vcotta; print(vcotta.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert Path(where.stdout.strip()).is_relative_to(tmp_path / "env")
    out = subprocess.run(
        [tmp_path / "env" / "bin" / "vcotta", "--version"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert out.stdout == f"vcotta {vcotta.__version__}\n"

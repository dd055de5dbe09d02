"""What contributors rely on: the workflow, the hooks, CONTRIBUTING, SECURITY and one version everywhere."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

import vcotta

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_workflow_runs_the_checks_and_builds_the_site() -> None:
    workflow = yaml.safe_load(read(".github/workflows/ci.yml"))
    assert workflow["permissions"] == {"contents": "read"}
    assert {"push", "pull_request"} == set(workflow[True])  # YAML reads the key `on` as true
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run", "make docs"]
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]) for step in job["steps"] if "uses" in step)


@pytest.mark.parametrize("name", [".github/workflows/ci.yml", ".ci/run", "CONTRIBUTING.md"])
def test_every_make_target_that_a_file_names_exists(name) -> None:
    text = read(name)
    named = set(re.findall(r"^(?:\$ |\s*run: )?make ([a-z-]+)", text, re.MULTILINE)) | set(
        re.findall(r"`make ([a-z-]+)`", text)
    )
    assert named
    assert named <= TARGETS


def test_the_script_that_continuous_integration_runs_is_executable_bash() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=True)


def test_the_hooks_are_the_checks_of_make_lint_and_fetch_nothing() -> None:
    (repository,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    lint = MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0]
    checks = [line.strip().removesuffix(" .") for line in lint.splitlines()[1:]]
    assert [hook["entry"] for hook in repository["hooks"]] == [check.replace("$(BIN)", ".venv/bin") for check in checks]


def test_contributing_lists_every_package_below_those_it_imports() -> None:
    order = re.findall(r"^\| `(\w+)` \|", read("CONTRIBUTING.md"), re.MULTILINE)
    source = ROOT / "src" / "vcotta"
    assert sorted(order) == sorted(path.parent.name for path in source.glob("*/__init__.py"))
    for number, package in enumerate(order):
        text = "\n".join(path.read_text(encoding="utf-8") for path in (source / package).rglob("*.py"))
        imported = set(re.findall(r"^\s*from vcotta\.(\w+)", text, re.MULTILINE)) - {package, "_version"}
        assert imported <= set(order[:number]), package


def test_the_site_shows_contributing_itself() -> None:
    assert read("docs/contributing.md") == '--8<-- "CONTRIBUTING.md"\n'


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md"])
def test_every_link_leads_to_a_file(name) -> None:
    folder = (ROOT / name).parent
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", read(name)) if "://" not in link]
    assert [link for link in links if not (folder / link).is_file()] == []


def test_citation_and_package_have_one_version() -> None:
    assert yaml.safe_load(read("CITATION.cff"))["version"] == vcotta.__version__

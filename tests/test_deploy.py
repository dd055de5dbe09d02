"""Files for deployment: a container file and a systemd unit that match the command line and give away nothing."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from vcotta import cli

ROOT = Path(__file__).parents[1]
CONTAINER = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")
UNIT = (ROOT / "deploy" / "vcotta.service").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "operations" / "deploy.md").read_text(encoding="utf-8")


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a container file, with continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def values(name: str) -> list[str]:
    return [rest for word, rest in instructions(CONTAINER) if word == name]


def section(name: str) -> dict[str, str]:
    """A section of the unit."""
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str
    parser.read_string(UNIT)
    return dict(parser[name])


def options_of(command: str) -> set[str]:
    found = typer.main.get_command(cli.app).commands[command]
    return {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_the_container_file_knows_only_instructions_that_exist() -> None:
    known = {"FROM", "COPY", "RUN", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}
    assert {word for word, _ in instructions(CONTAINER)} == known | {"ENTRYPOINT", "CMD"}


def test_every_base_image_is_pinned_to_a_full_version() -> None:
    bases = [base.split()[0] for base in values("FROM")]
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", bases[0])


def test_the_container_installs_the_wheel_and_no_source() -> None:
    copied = values("COPY")
    assert copied == ["constraints.txt dist/vcotta-*.whl /wheel/", "--from=install /opt/vcotta /opt/vcotta"]
    (install,) = [run for run in values("RUN") if "pip install" in run]
    assert "[serve]" in install
    assert "--no-cache-dir" in install


def test_the_container_runs_as_an_ordinary_user_from_the_last_stage_on() -> None:
    words = [word for word, _ in instructions(CONTAINER)]
    (user,) = values("USER")
    assert user.isdecimal()
    assert int(user) > 0
    assert f"--uid {user}" in CONTAINER
    assert len(words) - words[::-1].index("RUN") - 1 < words.index("USER") < words.index("ENTRYPOINT")


def test_the_container_checks_the_health_of_the_port_it_exposes() -> None:
    (check,) = values("HEALTHCHECK")
    (port,) = values("EXPOSE")
    command = json.loads(check.partition("CMD ")[2])
    assert f"http://127.0.0.1:{port}/healthz" in command[-1]
    compile(command[-1], "healthcheck", "exec")
    (default,) = (p.default for p in typer.main.get_command(cli.app).commands["serve"].params if p.name == "port")
    assert port == str(default)


def test_neither_file_holds_a_secret() -> None:
    for text in (CONTAINER, UNIT):
        assert not re.search(
            r"(?i)(password|secret|token|api_?key)\s*[=:]\s*[^/$\s]\S*", text.replace("token:/etc", "")
        )
        assert not re.search(r"[A-Za-z0-9+/]{32,}=*", text)
    assert not values("ARG")
    assert all("token" not in value.lower() for value in values("ENV"))


@pytest.mark.parametrize("where", ["container", "unit"])
def test_both_call_the_server_with_options_it_has_a_token_and_a_state(where) -> None:
    if where == "container":
        (entry,), (rest,) = values("ENTRYPOINT"), values("CMD")
        words = json.loads(entry) + json.loads(rest)
    else:
        words = section("Service")["ExecStart"].split()
    assert Path(words[0]).name == "vcotta"
    assert words[1] == "serve"
    given = {word for word in words if word.startswith("--")}
    assert {"--token-file", "--state"} <= given <= options_of("serve")


def test_the_unit_lets_the_server_save_its_state_and_is_confined() -> None:
    unit = section("Service")
    assert int(unit["TimeoutStopSec"]) > 30  # open requests have 30 s, then a batch and a checkpoint
    assert unit["DynamicUser"] == unit["NoNewPrivileges"] == unit["ProtectHome"] == "yes"
    assert unit["ProtectSystem"] == "strict"
    assert unit["StateDirectory"] == "vcotta"
    assert unit["LoadCredential"] == "token:/etc/vcotta/token"


def test_the_unit_starts_again_after_any_failure_but_not_endlessly() -> None:
    unit, limits = section("Service"), section("Unit")
    assert unit["Restart"] == "on-failure"
    assert "RestartPreventExitStatus" not in unit  # exit code 2 is also a port in use, which passes
    burst, seconds = int(limits["StartLimitBurst"]), int(limits["StartLimitIntervalSec"])
    slowest_start = 30
    assert burst * (int(unit["RestartSec"]) + slowest_start) < seconds


def test_a_missing_package_of_the_server_is_named_with_all_that_the_extra_has(command, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "vcotta.serve.server", raising=False)
    code, _, error = command("serve", str(tmp_path / "a.bundle"))
    assert code == 2
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["serve"]
    assert error.rstrip().endswith("pip install " + " ".join(re.split("[<>=]", name)[0] for name in extra))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path) -> None:
    path = tmp_path / "vcotta.service"
    path.write_text(UNIT.replace("/opt/vcotta/bin/vcotta", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if path.name in line]  # it also reports other units
    assert (done.returncode, ours) == (0, [])


def test_the_page_names_only_options_that_the_commands_have() -> None:
    for command in ("bundle", "serve"):
        for line in re.findall(rf"vcotta {command} .*", PAGE):
            assert set(re.findall(r"--[a-z-]+", line)) <= options_of(command), line
    known = options_of("bundle") | options_of("serve")
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.S)
    assert set(re.findall(r"`(--[a-z-]+)", prose)) <= known
    assert "continuous integration does not build it" in PAGE

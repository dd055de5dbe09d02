"""`vcotta serve --engine ray`: what needs no Ray; tests/serve/test_ray_cluster.py has real clusters."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

from vcotta.serve import load_bundle, save_bundle
from vcotta.serve.ray_engine import (
    Fleet,
    FleetOptions,
    _delete,
    _keep_bundle,
    _lost_is_refused,
    fleet_front,
    update_on_hangup,
)
from vcotta.serve.replica import ReplicaOptions
from vcotta.serve.requests import Limits, RefusedError
from vcotta.serve.service import Service

from .conftest import small_bundle


def test_a_number_of_replicas_that_follows_the_load_is_within_bounds() -> None:
    assert FleetOptions().deployment() == {"num_replicas": 2, "ray_actor_options": {"num_cpus": 1, "num_gpus": 0}}
    options = FleetOptions(1, max_replicas=4, device="cuda").deployment()
    assert options["ray_actor_options"]["num_gpus"] == 1
    scaling = options["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (1, 4)
    assert "num_replicas" not in options
    with pytest.raises(ValueError, match="at least 3"):
        FleetOptions(3, max_replicas=2)


@pytest.fixture
def environment(monkeypatch) -> None:
    """Put back afterwards what is set for Ray."""
    for name in ("AUTH_MODE", "AUTH_TOKEN", "USAGE_STATS_ENABLED", "DEDUP_LOGS", "ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        monkeypatch.setenv(f"RAY_{name}", "before")
    monkeypatch.setenv("RAY_worker_niceness", "")


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(("before", "after"), [(None, "0"), ("5", "5")])
def test_replicas_have_the_priority_of_the_command_unless_the_user_says_otherwise(
    bundle_path, tmp_path, monkeypatch, before, after
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delenv("RAY_worker_niceness")
    if before is not None:
        monkeypatch.setenv("RAY_worker_niceness", before)
    fleet = Fleet(FleetOptions(), ReplicaOptions(bundle_path, {}), tmp_path / "state")
    with pytest.raises(ValueError, match="Ray Serve"), fleet_front(fleet, bundle_path, Limits()):
        pass
    assert dict(os.environ)["RAY_worker_niceness"] == after


@pytest.mark.usefixtures("environment")
def test_without_ray_serve_the_error_says_what_to_install(bundle_path, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    fleet = Fleet(FleetOptions(), ReplicaOptions(bundle_path, {}), tmp_path / "state")
    with pytest.raises(ValueError, match=r"pip install 'ray\[serve\]'"), fleet_front(fleet, bundle_path, Limits()):
        pass


@pytest.mark.usefixtures("environment")
def test_an_address_that_does_not_answer_is_reported_at_once(bundle_path, tmp_path, monkeypatch) -> None:
    modules = {"ray": SimpleNamespace(serve=None), "ray.serve": SimpleNamespace()}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    with socket.socket() as taken:  # a port that is not listened to
        taken.bind(("127.0.0.1", 0))
        options = FleetOptions(address=f"127.0.0.1:{taken.getsockname()[1]}")
        fleet = Fleet(options, ReplicaOptions(bundle_path, {}), tmp_path / "state")
        with pytest.raises(ConnectionError, match="ray start"), fleet_front(fleet, bundle_path, Limits()):
            pass


def test_a_fleet_whose_folder_another_one_uses_is_refused(bundle, bundle_path, tmp_path) -> None:
    fleet = Fleet(FleetOptions(), ReplicaOptions(bundle_path, {}), tmp_path)
    with Service(bundle, state=tmp_path), pytest.raises(BlockingIOError), fleet_front(fleet, bundle_path, Limits()):
        pass


def test_a_merge_that_is_asked_for_during_another_is_refused_at_once(bundle_path, tmp_path) -> None:
    fleet = Fleet(FleetOptions(), ReplicaOptions(bundle_path, {}), tmp_path)
    began = time.monotonic()
    with fleet._changing, pytest.raises(RefusedError, match="streams are being merged") as refused:
        fleet.merge()
    assert time.monotonic() - began < 5
    assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "30"})


def test_each_bundle_is_kept_beside_its_states(tmp_path) -> None:
    path = tmp_path / "model.bundle"
    folders = []
    for lr in (0.01, 0.02):
        save_bundle(small_bundle(lr=lr), path)
        folder, kept = _keep_bundle(path, tmp_path / "state")
        assert kept.read_bytes() == path.read_bytes()
        assert _keep_bundle(path, tmp_path / "state") == (folder, kept)
        folders.append(folder)
    assert folders[0] != folders[1]
    path.write_bytes((folders[0] / "model.bundle").read_bytes())
    (folders[0] / "model.bundle").write_bytes((folders[1] / "model.bundle").read_bytes())
    with pytest.raises(ValueError, match="another file"):
        _keep_bundle(path, tmp_path / "state")


def test_a_bundle_that_cannot_be_read_is_logged_and_the_one_before_is_served(tmp_path, caplog) -> None:
    fleet = SimpleNamespace(deploy=lambda path: load_bundle(path))
    before = signal.getsignal(signal.SIGHUP)
    with update_on_hangup(fleet, tmp_path / "none.bundle"):
        signal.raise_signal(signal.SIGHUP)
    assert "could not be updated" in caplog.text
    assert signal.getsignal(signal.SIGHUP) is before


def test_replicas_have_three_minutes_to_save_their_states(caplog) -> None:
    def delete(name: str, times: list[int]) -> None:
        times[0] -= 1
        if times[0]:
            raise TimeoutError

    for tries, complaint in ((2, False), (4, True)):
        left = [tries]
        caplog.clear()
        _delete(SimpleNamespace(delete=lambda name, left=left: delete(name, left)))
        assert left == [tries - min(tries, 3)]
        assert ("did not stop in time" in caplog.text) == complaint


def test_a_lost_replica_is_told_apart_from_an_exception_of_its_code(monkeypatch) -> None:
    lost = type("RayError", (Exception,), {})
    of_the_code = type("RayTaskError", (lost,), {})
    modules = {
        "ray": SimpleNamespace(),
        "ray.exceptions": SimpleNamespace(RayError=lost, RayTaskError=of_the_code),
        "ray.serve": SimpleNamespace(),
        "ray.serve.exceptions": SimpleNamespace(RayServeException=type("RayServeException", (Exception,), {})),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(RefusedError, match="may be lost"), _lost_is_refused():
        raise lost("the actor died")
    with pytest.raises(of_the_code, match="odd"), _lost_is_refused():
        raise of_the_code("KeyError: odd")

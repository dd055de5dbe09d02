"""Cells as tasks of a Ray cluster (the extra ``cluster``)."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vcotta._version import __version__
from vcotta.experiments.board import Board
from vcotta.experiments.launch import WATCH_SECONDS, Job
from vcotta.files import cache_dir

__all__ = ["RayLauncher"]

RETRIES = 5
"""How often a cell whose worker or machine was lost is tried again; each time it goes on from its last checkpoint."""
PATIENCE = (1.0, 4.0, 15.0, 60.0)
"""Seconds between tries while a worker that was given up for lost still holds its run."""


@dataclass(frozen=True)
class RayLauncher:
    """Runs jobs on a Ray cluster, one task a job: one CPU each, and one GPU on a GPU.

    Every machine needs this version of vcotta and torch, and must see the same folder of runs and the same cache folder
    (``VCOTTA_CACHE``) under the same names, as on a network drive; that is checked before anything starts. The cluster
    decides what runs where. It runs the cells of a lost worker or machine again, from their checkpoints.

    Attributes:
        address: As for ``ray.init``: ``host:port``, ``ray://host:port``, ``auto``, or ``local`` for a cluster of this
            machine alone. None takes what ``RAY_ADDRESS`` says, a cluster that runs here, or a new one of this machine.
    """

    address: str | None = None

    def __call__(self, jobs: Mapping[Path, Job], board: Board, *, device: str = "cpu") -> None:
        """Run all jobs to their end.

        Raises:
            ValueError: Ray is not installed.
            ConnectionError: There is no cluster at the address.
            RuntimeError: No machine of the cluster fits, one lacks vcotta or a folder, or a cell was lost too often.
        """
        with _connected(self.address) as ray:
            gpus = int(torch.device(device).type == "cuda")
            _check_machines(ray, [*{folder.parent for folder in jobs}, cache_dir()], gpus)
            task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_work)
            environment = {"env_vars": {"VCOTTA_CACHE": str(cache_dir().absolute())}}
            waiting = [
                task.options(name=folder.name, runtime_env=environment).remote(job, sys.argv)
                for folder, job in jobs.items()
            ]
            try:
                while waiting:
                    done, waiting = ray.wait(waiting, timeout=WATCH_SECONDS)
                    _raise_failures(ray, done)
                    board.look()
            finally:
                for reference in waiting:  # none are left unless something failed or the user stopped it
                    ray.cancel(reference)


def _work(job: Job, command: Sequence[str]) -> None:
    """Run one job in a worker of the cluster, as the local launcher does."""
    sys.argv = list(command)  # what the manifest of the run tells
    torch.set_num_threads(1)
    for seconds in PATIENCE:
        try:
            job()
            return
        except BlockingIOError:
            time.sleep(seconds)
    job()


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Ray, connected for the block; a connection that is already there is used and kept."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told anything unless the user wants it
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's new behaviour, or it warns of the old one
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ValueError(
            "Expected Ray to be installed for the launcher `ray`, but it is not. Install the extra: "
            "pip install 'vcotta[cluster]'."
        ) from error
    if ray.is_initialized():
        yield ray
        return
    try:
        _knock(address)
        ray.init(address=address, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConnectionError(
            f"Expected a Ray cluster at {address or 'the usual address'}, but could not connect: {error}. Start one "
            "with `ray start --head`; for a cluster with a token set RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH; or give "
            "--address local for a new one of this machine alone."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str | None) -> None:
    """See whether somebody answers at an address; Ray itself would keep trying for many minutes."""
    place = (address or "").removeprefix("ray://").partition("/")[0]
    host, colon, port = place.rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _raise_failures(ray: Any, done: Sequence[Any]) -> None:
    """Raise what a job raised, as the local launcher would, and say it if a job was lost for good."""
    try:
        ray.get(done)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from error
        raise RuntimeError(f"A cell failed on the cluster: {error}") from error
    except ray.exceptions.RayError as error:
        raise RuntimeError(
            f"A cell was lost {RETRIES + 1} times or could not be started on the cluster: {error} Start the same "
            "command again to go on from the last checkpoints."
        ) from error


def _check_machines(ray: Any, folders: Sequence[Path], gpus: int) -> None:
    """See to it that each machine that may run cells has the same library, and sees the same folders."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    needed = {"CPU": 1, "GPU": gpus}
    nodes = {
        node["NodeID"]: node["NodeManagerAddress"]
        for node in ray.nodes()
        if node["Alive"] and all(node["Resources"].get(kind, 0) >= count for kind, count in needed.items())
    }
    if not nodes:
        raise RuntimeError(
            f"Expected a machine with {'a CPU and a GPU' if gpus else 'a CPU'} for each cell in the Ray cluster, but "
            f"it has {ray.cluster_resources()}. Add one, or choose another --device."
        )
    look = ray.remote(num_cpus=0, max_retries=1)(_look_around)
    with _marks(folders) as marks:
        asked = {
            node: look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(marks)
            for node in nodes
        }
        for node, reference in asked.items():
            problem = _answer(ray, reference)
            if problem:
                raise RuntimeError(f"The machine {nodes[node]} of the Ray cluster cannot run cells: {problem}")


def _answer(ray: Any, reference: Any) -> str:
    """What is wrong with a machine, in words; nothing if all is well."""
    try:
        versions, unseen = ray.get(reference)
    except ray.exceptions.TaskUnschedulableError:
        return ""  # it left the cluster just now: nothing will run there
    except ray.exceptions.RayError as error:
        return f"it could not start vcotta ({str(error).strip().splitlines()[-1]}). Install vcotta there."
    if versions != _versions():
        return f"Expected {_versions()} there as here, but it has {versions}."
    if unseen:
        return (
            f"it does not see {', '.join(unseen)}. Give folders that all machines share, by --out and the environment "
            "variable VCOTTA_CACHE."
        )
    return ""


@contextmanager
def _marks(folders: Sequence[Path]) -> Iterator[list[str]]:
    """A new file in each of the folders while the block lasts."""
    marks = [folder.absolute() / f".seen-{uuid.uuid4().hex}" for folder in folders]
    try:
        for mark in marks:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        yield [str(mark) for mark in marks]
    finally:
        for mark in marks:
            mark.unlink(missing_ok=True)


def _look_around(marks: Sequence[str]) -> tuple[str, list[str]]:
    """What a machine has, and which folders it does not see."""
    return _versions(), [str(Path(mark).parent) for mark in marks if not Path(mark).exists()]


def _versions() -> str:
    torch_version = str(torch.__version__).partition("+")[0]  # builds for CPU and GPU are one version
    return f"vcotta {__version__} with torch {torch_version}"

"""Runs as tasks of a Ray cluster (the extra ``cluster``)."""

from __future__ import annotations

import logging
import os
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vcotta._util.files import cache_dir
from vcotta._util.ray_address import knock
from vcotta._version import __version__
from vcotta.experiments.launch import WATCH_SECONDS, GridProgress, Job

__all__ = ["RayLauncher"]

RETRIES = 5
"""How often a run whose worker or machine was lost is tried again, each time from its last checkpoint."""
PATIENCE = (1.0, 4.0, 15.0, 60.0)
"""Seconds between tries while a worker that was counted as lost still holds the lock of its run."""


@dataclass(frozen=True)
class RayLauncher:
    """Runs jobs on a Ray cluster, one task for each job: with one CPU, and on a GPU with one GPU.

    Every machine needs this version of vcotta and torch, and the same folder of runs and cache folder
    (``VCOTTA_CACHE``) under the same paths, for example on a network drive; this is checked before anything starts.
    The runs of a lost worker or machine are resumed from their checkpoints on another.

    Attributes:
        address: As for ``ray.init``: ``host:port``, ``ray://host:port``, ``auto``, or ``local`` for a new cluster of
            this machine. None for ``RAY_ADDRESS``, a cluster that runs on this machine, or a new one.
    """

    address: str | None = None

    def __call__(self, jobs: Mapping[Path, Job], progress: GridProgress, *, device: str = "cpu") -> None:
        """Run all jobs to their end.

        Raises:
            ValueError: Ray is not installed.
            ConnectionError: There is no cluster at the address.
            RuntimeError: No machine of the cluster fits, one lacks vcotta or a folder, or a run was lost too often.
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
                    progress.read_folders()
            finally:
                for reference in waiting:  # left over only after a failure or Ctrl-C
                    ray.cancel(reference)


def _work(job: Job, command: Sequence[str]) -> None:
    """Run one job in a worker of the cluster."""
    sys.argv = list(command)  # for the manifest of the run
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
    """Connect to Ray for the block; a connection that exists is used and kept."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics unless the user wants them
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # otherwise Ray warns of a change in behaviour
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ValueError(
            "Expected Ray to be installed for the launcher `ray`, but it is not. Install it: pip install ray."
        ) from error
    if ray.is_initialized():
        yield ray
        return
    try:
        knock(address)
        ray.init(address=address, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConnectionError(
            f"Expected a Ray cluster at {address or 'the usual address'}, but could not connect: {error}. Start one "
            "with `ray start --head`; for a cluster with a token set RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH; or give "
            "--address local for a new one of this machine."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _raise_failures(ray: Any, done: Sequence[Any]) -> None:
    """Raise the error of a job, as the local launcher does, or that a job was lost."""
    try:
        ray.get(done)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from error
        raise RuntimeError(f"A run failed on the cluster: {error}") from error
    except ray.exceptions.RayError as error:
        raise RuntimeError(
            f"A run was lost {RETRIES + 1} times or could not be started on the cluster: {error} Start the same "
            "command again to resume from the last checkpoints."
        ) from error


def _check_machines(ray: Any, folders: Sequence[Path], gpus: int) -> None:
    """Raise `RuntimeError` unless each machine that may do runs has the same library and the same folders."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    needed = {"CPU": 1, "GPU": gpus}
    nodes = {
        node["NodeID"]: node["NodeManagerAddress"]
        for node in ray.nodes()
        if node["Alive"] and all(node["Resources"].get(kind, 0) >= count for kind, count in needed.items())
    }
    if not nodes:
        raise RuntimeError(
            f"Expected a machine with {'a CPU and a GPU' if gpus else 'a CPU'} for each run in the Ray cluster, but "
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
                raise RuntimeError(f"The machine {nodes[node]} of the Ray cluster cannot be used: {problem}")


def _answer(ray: Any, reference: Any) -> str:
    """Return what is wrong with a machine, the empty text if nothing is."""
    try:
        versions, unseen = ray.get(reference)
    except ray.exceptions.TaskUnschedulableError:
        return ""  # it has left the cluster
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
    """Create a new file in each of the folders for the block."""
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
    """Return the versions of a machine, and the folders that it does not see."""
    return _versions(), [str(Path(mark).parent) for mark in marks if not Path(mark).exists()]


def _versions() -> str:
    torch_version = str(torch.__version__).partition("+")[0]  # without the build, for CPU or GPU
    return f"vcotta {__version__} with torch {torch_version}"

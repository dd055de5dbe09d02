"""The server as an application of Ray Serve: several replicas, each with a part of the streams (extra ``cluster``).

Ray Serve starts, watches, replaces and scales the replicas, and its consistent-hash router sends all requests of a
stream to one of them. While replicas come and go, routers may disagree for a moment: the locks of
`vcotta.serve.claims` see to it that no two replicas ever write one stream.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from starlette.types import Scope

from vcotta._util.files import sync_folder
from vcotta._util.locks import locked
from vcotta._util.ray_address import knock
from vcotta._util.validation import Count, Settings
from vcotta.serve.bundle import load_bundle
from vcotta.serve.claims import Claims
from vcotta.serve.joint_merge import ORDER_SECONDS, JointMerge, Reply, merge_periodically
from vcotta.serve.merging import MergeOutcome, MergeRule
from vcotta.serve.replica import Answered, Front, Replica, ReplicaOptions
from vcotta.serve.requests import Limits, RefusedError

__all__ = ["Fleet", "FleetOptions", "fleet_front", "update_on_hangup"]

_log = logging.getLogger("vcotta.serve")
_NAME = "vcotta"
_BUSY = "Expected {} to be free, but another server is using it."
_ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
_OBJECT_STORE = 256 * 2**20  # bytes; holds requests and answers on their way, and goes to the disk beyond that
_STOP_SECONDS = 120.0  # to answer open requests and save the states
_ANY_SECONDS = 10.0  # until a request that needs no stream must be answered
_UNKNOWN = (
    "No answer came from the replica of this request, which may be lost, so it is not known whether it learned "
    "from the images. Another one continues from the stream's latest checkpoint."
)


@dataclass(frozen=True)
class FleetOptions(Settings):
    """How many replicas there are, and where.

    Attributes:
        replicas: Replicas, or the least of them.
        max_replicas: The most, if their number follows the load; None for always ``replicas``.
        queued: Requests being answered for each replica that the number of replicas is adjusted to.
        device: Device of the replicas.
        address: As for ``ray.init``; ``local`` for a cluster of this machine that ends with the server.
    """

    replicas: Count = 2
    max_replicas: Count | None = None
    queued: Count = 8
    device: str = "cpu"
    address: str = "local"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(
                f"Expected `max_replicas` to be at least {self.replicas}, the replicas, but got {self.max_replicas}."
            )

    def deployment(self) -> dict[str, Any]:
        """Return the options of Ray Serve's deployment that depend on these."""
        gpus = int(self.device.startswith("cuda"))
        options: dict[str, Any] = {"ray_actor_options": {"num_cpus": 1, "num_gpus": gpus}}
        if self.max_replicas is None:
            return options | {"num_replicas": self.replicas}
        scaling = {
            "min_replicas": self.replicas,
            "max_replicas": self.max_replicas,
            "target_ongoing_requests": self.queued,
            "metrics_interval_s": 2.0,
            "look_back_period_s": 10.0,
            "upscale_delay_s": 10.0,
            "downscale_delay_s": 300.0,
        }
        return options | {"autoscaling_config": scaling}


class Fleet:
    """The replicas, as the front sees them; made by `fleet_front`.

    Args:
        options: How many, and where.
        replica: What a replica needs.
        state: Folder of the states; those of each bundle have a folder of their own there.
        merging: Which streams are merged, and how often.
    """

    def __init__(
        self, options: FleetOptions, replica: ReplicaOptions, state: Path, merging: MergeRule | None = None
    ) -> None:
        self.options, self.replica, self.state = options, replica, state
        self.merging = merging or MergeRule()
        self._joint, self._folder = JointMerge(self._order_all, self.merging), state
        self._handle: Any = None
        self._changing = threading.Lock()
        self._held, self._folders = ExitStack(), set[Path]()

    def deploy(self, bundle: Path) -> Path:
        """Serve a bundle, in place of the one before, replica by replica; return the folder of its states.

        Raises:
            ValueError: It is no bundle.
            OSError: It cannot be read, or its folder not be written or locked.
            RuntimeError: The replicas do not start.
        """
        from ray import serve
        from ray.serve.config import RequestRouterConfig

        with self._changing:
            loaded = load_bundle(bundle)
            loaded.build_network(self.replica.service.get("trusted"))  # before a replica fails to
            self.merging.check(loaded.method)
            folder, kept = _keep_bundle(bundle, self.state)
            router: Any = _ROUTER
            own = {"state": folder, "merging": replace(self.merging, every=None)}  # replicas merge together
            needs = replace(self.replica, bundle=kept, service={**self.replica.service, **own})
            if folder not in self._folders:
                self._held.enter_context(locked(folder / ".lock", _BUSY.format(folder)))
                self._folders.add(folder)
            deployment: Any = serve.deployment(
                Replica,
                name="streams",
                max_ongoing_requests=10_000,  # a replica refuses by itself what it has no room for
                health_check_period_s=1.0,  # bounds the time until streams of a lost replica go to others
                graceful_shutdown_timeout_s=_STOP_SECONDS,
                logging_config={"log_level": "WARNING", "enable_access_log": False},
                request_router_config=RequestRouterConfig(
                    request_router_class=router, request_router_kwargs={"num_fallback_replicas": 0}
                ),
                **self.options.deployment(),
            )
            self._handle = serve.run(deployment.bind(needs), name=_NAME, route_prefix=None)
            self._folder = folder
        return folder

    def merge(self) -> MergeOutcome:
        """Merge the streams of all replicas; for errors see `JointMerge.run`."""
        outcome = self._merge(only_changed=False)
        assert outcome is not None
        return outcome

    def merge_changed(self) -> None:
        """Merge the streams of all replicas, if one has changed since the latest merge; errors as for `merge`."""
        self._merge(only_changed=True)

    def close(self) -> None:
        """Give up the folders of the states, which no replica uses any more."""
        self._held.close()

    async def ask(self, scope: Scope, body: bytes, stream: str | None) -> Answered:
        """Send a request to the replica of its stream; raise `RefusedError` (503) if that is lost meanwhile."""
        handle = self._handle.options(method_name="answer", **({} if stream is None else {"session_id": stream}))
        with _lost_is_refused():
            async with asyncio.timeout(_ANY_SECONDS if stream is None else None):
                answered: Answered = await handle.remote(scope, body, stream)
        return answered

    async def ask_all(self, scope: Scope) -> dict[str, Answered]:
        """Send a request to all replicas; raise `RefusedError` (503) if one is lost meanwhile."""
        with _lost_is_refused():
            found = await self._handle.broadcast("answer_as", scope).results_async(timeout_s=_ANY_SECONDS)
        if not found:
            raise RefusedError(503, "No replica is running. Try again in a moment.", Retry_After="1")
        return dict(sorted(found))

    def _merge(self, only_changed: bool) -> MergeOutcome | None:
        if not self._changing.acquire(timeout=_ANY_SECONDS if only_changed else 0):  # a request would hold a thread
            detail = "The bundle is being updated, or streams are being merged. Try again later."
            raise RefusedError(503, detail, Retry_After="30")
        try:
            return self._joint.run(self._folder, only_changed)
        finally:
            self._changing.release()

    def _order_all(self, order: str, merge: str, *details: Any) -> list[Reply]:
        with _lost_is_refused("A replica did not answer during a merge, and may be lost. Look at the list of streams."):
            found: list[Reply] = self._handle.broadcast("follow", order, merge, *details).results(
                timeout_s=ORDER_SECONDS
            )
        return found


@contextmanager
def fleet_front(fleet: Fleet, bundle: Path, limits: Limits) -> Iterator[Front]:
    """Serve a bundle within the block, in which the front may be asked; at its end all states are saved.

    Raises:
        ValueError: Ray Serve is not installed, or as for `Fleet.deploy`.
        BlockingIOError: Another server uses the folder of the states.
        OSError: As for `Fleet.deploy`, or there is no cluster at the address.
    """
    with ExitStack() as held:
        held.enter_context(locked(fleet.state / ".lock", _BUSY.format(fleet.state)))
        held.callback(fleet.close)
        fleet.merging.check(load_bundle(bundle).method)  # fails sooner than a cluster starts
        held.enter_context(_connected(fleet.options))
        fleet.deploy(bundle)
        with merge_periodically(fleet.merge_changed, fleet.merging.every):
            yield Front(fleet.ask, fleet.ask_all, limits, fleet.merge, fleet.replica.tokens)


@contextmanager
def update_on_hangup(fleet: Fleet, bundle: Path) -> Iterator[None]:
    """Within the block, let SIGHUP read the bundle's file anew and serve it; a file that cannot be used is logged.

    At the end it waits for an update that has begun.
    """
    begun: list[threading.Thread] = []

    def update() -> None:
        try:
            folder = fleet.deploy(bundle)
        except Exception as error:  # whatever the reason, the front must go on
            _log.exception("The bundle could not be updated: %s", error)
        else:
            _log.warning("The bundle was updated; its states are in %s", folder)

    def hangup(number: int, frame: FrameType | None) -> None:
        begun.append(threading.Thread(target=update, name="vcotta-update", daemon=True))
        begun[-1].start()

    before = signal.signal(signal.SIGHUP, hangup)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
        for thread in begun:
            thread.join()


def _keep_bundle(path: Path, state: Path) -> tuple[Path, Path]:
    """Copy a bundle beside its states, where replicas that start later find it; return the folder and the copy."""
    digest = load_bundle(path).sha256
    folder = (state / digest[:12]).absolute()
    kept = folder / "model.bundle"
    Claims(folder / "claims").close()  # checks that there are locks
    if not kept.exists():
        aside = kept.with_name(".model.bundle")
        shutil.copyfile(path, aside)
        aside.replace(kept)
        sync_folder(folder)
    if load_bundle(kept).sha256 != digest:
        raise ValueError(f"Expected {kept} to be a copy of {path}, but it is another file. Remove it.")
    return folder, kept


@contextmanager
def _connected(options: FleetOptions) -> Iterator[None]:
    """Connect to Ray for the block, or start it; at the end all replicas save their states and stop."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics unless the user wants them
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # otherwise Ray warns of a change in behaviour
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # every line of the replicas' logs is shown
    os.environ.setdefault("RAY_worker_niceness", "0")  # not 15, Ray's default: replicas are no background work
    own = options.address == "local"
    if own:  # or everybody who reaches its ports could run programs on it
        os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise ValueError(
            f"Expected Ray Serve for `--engine ray`, but {error.name} is missing. Install it: pip install 'ray[serve]'"
        ) from error
    more: dict[str, Any] = {}
    if own:
        count = max(os.cpu_count() or 1, options.max_replicas or options.replicas)
        more = {"num_cpus": count, "object_store_memory": _OBJECT_STORE, "include_dashboard": False}
        more["_node_ip_address"] = "127.0.0.1"
    try:
        knock(options.address)
        ray.init(address=options.address, logging_level=logging.ERROR, **more)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConnectionError(
            f"Expected a Ray cluster at {options.address}, but could not connect: {error}. Start one "
            "with `ray start --head`, or leave --address out for a new one of this machine."
        ) from error
    try:
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        yield
    finally:
        try:
            _delete(serve)
        finally:
            ray.shutdown()


def _delete(serve: Any) -> None:
    """Stop all replicas, which save their states first; Ray Serve waits a minute for that, we wait for three."""
    for _ in range(3):
        try:
            serve.delete(_NAME)
            return
        except TimeoutError:
            _log.warning("The replicas are still saving their states")
    _log.error("The replicas did not stop in time: states may not have been saved")


@contextmanager
def _lost_is_refused(detail: str = _UNKNOWN) -> Iterator[None]:
    """Turn errors of a lost replica into a refusal; an exception of a replica's code remains what it is."""
    from ray.exceptions import RayError, RayTaskError
    from ray.serve.exceptions import RayServeException

    try:
        yield
    except RayTaskError:
        raise
    except (RayError, RayServeException, TimeoutError) as error:
        _log.warning("A request was not answered: %s", " ".join(str(error).split())[:200])
        raise RefusedError(503, detail, Retry_After="1") from error

"""Two replicas in one process, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastapi.testclient import TestClient

from vcotta.serve.auth import hash_token
from vcotta.serve.joint_merge import JointMerge
from vcotta.serve.merging import MergeOutcome, MergeRule
from vcotta.serve.replica import Front, Replica, ReplicaOptions
from vcotta.serve.requests import Limits
from vcotta.serve.service import Service

OPERATOR = {"Authorization": "Bearer the-token-of-the-operator"}
TOKENS = {"*": hash_token("the-token-of-the-operator")}
NPY = OPERATOR | {"Content-Type": "application/x-npy"}


class Fleet:
    """Two replicas in this process; a stream goes to the first or the second of them by its name's last letter."""

    def __init__(self, path: Path, state: Path, rule: MergeRule | None = None, **more: object) -> None:
        self.path, self.state, self.orders = path, state, []
        options = {"state": state, "wait": 0.0, "checkpoint_seconds": 1e6, "merging": rule or MergeRule(), **more}
        self.replicas = [Replica(ReplicaOptions(path, options, TOKENS)) for _ in range(2)]
        self.joint = JointMerge(self.order_all, rule or MergeRule())
        self.http = TestClient(
            Front(self.ask, self.ask_all, Limits(), self.merge, TOKENS), raise_server_exceptions=False
        )

    async def ask(self, scope, body, stream):
        return await self.replicas[ord((stream or "a")[-1]) % 2].answer(scope, body, stream)

    async def ask_all(self, scope):
        return {f"r{n}": (await one.answer_as(scope))[1] for n, one in enumerate(self.replicas)}

    def order_all(self, *order):
        async def all_of_them():
            return await asyncio.gather(*(one.follow(*order) for one in self.replicas))

        self.orders.append(order[0])
        return asyncio.run(all_of_them())

    def merge(self) -> MergeOutcome:
        return self.joint.run(self.state)

    def send(self, npy, images, name: str, seeds: range) -> list[dict]:
        answers = [self.http.post(f"/v1/streams/{name}/predict", content=npy(images(6, s)), headers=NPY) for s in seeds]
        assert [answer.status_code for answer in answers] == [200] * len(answers)
        return [answer.json() for answer in answers]

    def stream(self, name: str):
        """The stream where it is, by the service that has it."""
        return next(s for one in self.services for s in one.list_streams() if s.name == name)

    @property
    def services(self) -> list[Service]:
        return [one._service for one in self.replicas]

    def states(self, *names: str) -> list[dict]:
        return [self.stream(name).engine.adapter.state_dict() for name in names]

    def total(self, metric: str) -> float:
        return sum(service.metrics.total(metric) for service in self.services)

    def close(self) -> None:
        for one in self.replicas:
            one.__del__()

    @contextmanager
    def reopened(self) -> Iterator[Fleet]:
        """Two new replicas on the same states, after the old ones have saved and ended."""
        self.close()
        again = Fleet(self.path, self.state)
        try:
            yield again
        finally:
            again.close()

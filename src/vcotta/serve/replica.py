"""One replica of the server on Ray Serve, and the front that passes requests on to the replicas.

The front listens on the port and reads each request; Ray Serve's router sends all requests of a stream to the replica
that a consistent hash of its name chooses. The replica runs the same application as the server of one process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fastapi import Request
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vcotta.serve.admission import Admission
from vcotta.serve.app import create_app
from vcotta.serve.auth import Auth, Tokens
from vcotta.serve.bundle import load_bundle
from vcotta.serve.joint_merge import MergeMember, Reply
from vcotta.serve.logs import log_event, log_to, request_id, safe_path
from vcotta.serve.merging import MergeOutcome
from vcotta.serve.observed import FAILED, HEADERS, error_as_json, reason_of
from vcotta.serve.oip import HEADER_LENGTH
from vcotta.serve.predicting import only
from vcotta.serve.requests import Limits, RefusedError, discard, read_body
from vcotta.serve.service import Service
from vcotta.serve.streams import DEFAULT

__all__ = ["Answered", "Front", "Replica", "ReplicaOptions", "merge_metrics", "merge_streams", "stream_of"]

_HAND_OVER_SECONDS = 10.0  # that a request waits for its stream
_ASK_SECONDS = 0.1
_log = logging.getLogger("vcotta.serve")
_PASSED_ON = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "client", "server")

Answered = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers and body of an answer."""


@dataclass(frozen=True)
class ReplicaOptions:
    """What a replica needs to serve.

    Attributes:
        bundle: The bundle's file.
        service: Keyword arguments of `Service`.
        tokens: As for `create_app`.
        name: As for `create_app`.
        log_format: As for `log_to`.
        threads: Threads of torch.
    """

    bundle: Path
    service: Mapping[str, Any]
    tokens: Tokens | None = None
    name: str = "vcotta"
    log_format: Any = "text"
    threads: int = 1


class Replica:
    """Serves the streams that are sent to it, one process of several with the same state folder; run by Ray Serve."""

    def __init__(self, options: ReplicaOptions) -> None:
        self._held = ExitStack()
        log_to(options.log_format)
        torch.set_num_threads(options.threads)
        bundle = load_bundle(options.bundle)
        self._service = self._held.enter_context(Service(bundle, shared=True, **options.service))
        self._app: ASGIApp = create_app(self._service, options.tokens, options.name)
        self._member = MergeMember(self._service.join_merge, bundle.sha256)

    def __del__(self) -> None:  # called by Ray Serve when the open requests are answered
        self._held.close()

    def check_health(self) -> None:
        """Raise if nothing is served any more, so that Ray Serve replaces the replica."""
        if not self._service.alive:
            raise RuntimeError("The thread that serves the streams has ended; see the log.")

    async def answer(self, scope: Scope, body: bytes, stream: str | None) -> Answered:
        """Answer a request; first wait for its stream, if another replica must hand it over."""
        if stream is not None:
            await self._wait_for(stream)
        return await run_request(self._app, scope, body)

    async def answer_as(self, scope: Scope) -> tuple[str, Answered]:
        """Answer a request that needs no stream; return this replica's name, too."""
        return f"{socket.gethostname()}-{os.getpid()}", await run_request(self._app, scope, b"")

    async def follow(self, order: str, merge: str, *details: Any) -> Reply:
        """Follow an order of a merge of all replicas, see `MergeMember.follow`."""
        return await self._member.follow(order, merge, *details)

    async def _wait_for(self, stream: str) -> None:
        try:
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                while not self._service.streams.ask_for(stream):
                    await asyncio.sleep(_ASK_SECONDS)
        except (TimeoutError, RefusedError):  # the application answers 503, or 422 to what is no name
            return


async def run_request(app: ASGIApp, scope: Scope, body: bytes) -> Answered:
    """Let an application answer one request whose body was read."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    status, headers, parts = 500, [], list[bytes]()

    async def receive() -> Message:
        while not messages:
            await asyncio.sleep(3600)  # a disconnect would come here
        return messages.pop()

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], [(bytes(k), bytes(v)) for k, v in message["headers"]]
        else:
            parts.append(message.get("body", b""))

    try:
        await app({**scope, "asgi": {"version": "3.0"}}, receive, send)
    except Exception:  # starlette raises it again after it was answered, for the server's log
        _log.exception("A request failed unexpectedly")
        if not parts:
            raise
    return status, headers, b"".join(parts)


def stream_of(path: str, body: bytes = b"", head: str | None = None) -> str | None:
    """Return the stream of a request, None if it is of none.

    Args:
        path: Path of the request.
        body: Its body, needed for the Open Inference Protocol only.
        head: Its header `HEADER_LENGTH`, if there is one.

    Example:
        >>> stream_of("/v1/predict"), stream_of("/v1/streams/camera-7/predict"), stream_of("/healthz")
        ('default', 'camera-7', None)
        >>> stream_of("/v2/models/vcotta/infer", b'{"parameters": {"stream": "camera-7"}}')
        'camera-7'
    """
    parts = path.strip("/").split("/")
    if parts in (["v1", "predict"], ["v1", "reset"], ["v1", "state"]):
        return DEFAULT
    if parts[:2] == ["v1", "streams"]:
        return parts[2] if len(parts) > 2 else None
    if parts[:2] == ["v2", "models"] and parts[-1] == "infer":
        try:
            length = None if head is None else int(head)
            found = json.loads(body[:length]).get("parameters", {}).get("stream", DEFAULT)
        except (ValueError, AttributeError, RecursionError):  # whatever replica gets it says what is wrong
            return DEFAULT
        return found if isinstance(found, str) else DEFAULT
    return None


def merge_streams(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one list of streams from those of all replicas; see `schemas.StreamList`."""
    streams = [stream for answer in answers for stream in answer["streams"]]
    streams.sort(key=lambda one: (not one["signs"], not one["pinned"], one["stream"]))
    added = {name: sum(answer[name] for answer in answers) for name in ("total", "in_memory", "memory", "held")}
    return {**answers[0], **added, "streams": streams[:1000]}


def merge_metrics(texts: Mapping[str, str], accept: str) -> tuple[bytes, str]:
    """Return the metrics of all replicas in one text, each with the label ``replica``, and its content type."""
    families: dict[str, Metric] = {}
    for replica, text in texts.items():
        for family in text_string_to_metric_families(text):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            merged.samples += [one._replace(labels={"replica": replica, **one.labels}) for one in family.samples]
    registry = CollectorRegistry()
    registry.register(_Collected(list(families.values())))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Collected:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        """Return the families."""
        return self._families


class Front:
    """An ASGI application that passes requests on to replicas, and adds up what all of them know.

    Args:
        ask: Sends a request to the replica of a stream, or to any; raises `RefusedError` if it cannot be answered.
        ask_all: Sends a request to all replicas; returns the answers by the replicas' names.
        limits: Bounds on requests. No more bodies are read at once than one server would read, and those that wait for
            an answer have no more bytes together than these may have.
        merge: Merges the streams of all replicas; None if that cannot be asked for here.
        tokens: As for `create_app`; the one for all streams is needed for a merge.
    """

    def __init__(
        self,
        ask: Callable[[Scope, bytes, str | None], Awaitable[Answered]],
        ask_all: Callable[[Scope], Awaitable[dict[str, Answered]]],
        limits: Limits,
        merge: Callable[[], MergeOutcome] | None = None,
        tokens: Tokens | None = None,
    ) -> None:
        self._ask, self._ask_all, self._limits = ask, ask_all, limits
        self._merge, self._auth = merge, Auth(tokens)
        self._admission = Admission(limits.requests)
        self._waiting, self._most_waiting = 0, limits.requests * limits.body  # bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise ValueError(f"Expected a request over HTTP, but got {scope['type']}.")
        request = Request(scope, receive, send)
        identity = request_id(request.headers.get("x-request-id", ""))
        try:
            status, headers, body = await self._answer(request, identity)
        except RefusedError as error:
            status, headers, body = await self._refuse(request, identity, error, error.detail)
        except Exception as error:  # in a merge here, or in a replica's code
            _log.exception("A request failed unexpectedly")
            status, headers, body = await self._refuse(request, identity, RefusedError(500, FAILED), reason_of(error))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _refuse(self, request: Request, identity: str, error: RefusedError, reason: str) -> Answered:
        """Log an error, for this reason, and return the answer."""
        await discard(request, self._limits)
        failed = error.status >= 500
        log_event(
            "request",
            logging.WARNING if failed else logging.INFO,
            id=identity,
            method=request.method[:20],
            path=safe_path(request.scope["path"]),
            status=error.status,
            **({"reason": reason} if failed else {}),
        )
        response = error_as_json(request, error.detail, error.status, error.headers)
        headers = [*response.raw_headers, *HEADERS, (b"x-request-id", identity.encode())]
        return error.status, headers, bytes(response.body)

    async def _answer(self, request: Request, identity: str) -> Answered:
        path, accept = request.url.path, request.headers.get("accept", "")
        scope: dict[str, Any] = {name: request.scope.get(name) for name in _PASSED_ON}
        others = [(name, value) for name, value in request.scope["headers"] if name != b"x-request-id"]
        scope["headers"] = [*others, (b"x-request-id", identity.encode())]
        if path == "/metrics" and request.method == "GET":
            plain = [(name, value) for name, value in scope["headers"] if name != b"accept"]
            found = await self._ask_all({**scope, "headers": plain})
            texts = {replica: answer[2].decode() for replica, answer in found.items()}
            body, kind = merge_metrics(texts, accept)
            return _like(next(iter(found.values())), body, kind)
        if path == "/v1/streams" and request.method == "GET":
            answers = list((await self._ask_all(scope)).values())
            if bad := next((answer for answer in answers if answer[0] != 200), None):
                return bad
            merged = merge_streams([json.loads(body) for _, _, body in answers])
            return _like(answers[0], json.dumps(merged, separators=(",", ":")).encode(), "application/json")
        if path == "/v1/merge" and request.method == "POST" and self._merge is not None:
            only(request)
            self._auth.check(request.headers)
            outcome = await asyncio.to_thread(self._merge)
            log_event("request", id=identity, method="POST", path=path, status=200)
            return _new(outcome.as_json(), identity)
        stream = stream_of(path)
        with self._admission.admit(stream or ""):
            body = await read_body(request, self._limits)
        if stream == DEFAULT or stream is None:
            head = request.headers.get(HEADER_LENGTH)
            stream = await asyncio.to_thread(stream_of, path, body, head)  # which may have much JSON to read
        if self._waiting + len(body) > self._most_waiting:
            raise RefusedError(429, "Too many bytes wait for an answer. Try again in a moment.", Retry_After="1")
        self._waiting += len(body)
        try:
            return await self._ask(scope, body, stream)
        finally:
            self._waiting -= len(body)


def _new(body: bytes, identity: str) -> Answered:
    """An answer in JSON that no replica has made."""
    about = [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")]
    return 200, [*about, *HEADERS, (b"x-request-id", identity.encode())], body


def _like(answer: Answered, body: bytes, kind: str) -> Answered:
    """An answer with another body."""
    status, headers, _ = answer
    kept = [(name, value) for name, value in headers if name not in (b"content-length", b"content-type")]
    about = [(b"content-length", str(len(body)).encode()), (b"content-type", kind.encode())]
    return status, [*about, *kept], body

"""Running the application until it is told to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from vcotta.serve.gate import is_loopback

__all__ = ["check_exposure", "run_app", "signals_given_back"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def check_exposure(host: str, token: str | None) -> None:
    """Raise unless there is a token or only this machine can reach the server.

    Example:
        >>> check_exposure("127.0.0.1", None)
        >>> check_exposure("0.0.0.0", None)
        Traceback (most recent call last):
        ValueError: Expected a token to listen on 0.0.0.0, but got none. Give --token-file, or listen on 127.0.0.1.
    """
    if token is None and not is_loopback(host):
        raise ValueError(
            f"Expected a token to listen on {host}, but got none. Give --token-file, or listen on 127.0.0.1."
        )


def run_app(app: FastAPI, host: str, port: int, *, stop_seconds: float = 30.0) -> None:
    """Serve until SIGTERM or SIGINT; then take no new requests, answer those that came, and return.

    From then on both signals are ignored: the caller still has a state to save. See `signals_given_back`.

    Args:
        app: The application.
        host: Address to listen on.
        port: Port; 0 for any free one.
        stop_seconds: Seconds the open requests have to be answered at the end; a second signal ends that at once.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_keep_alive=10,
        timeout_graceful_shutdown=int(stop_seconds),
    )
    for number in _SIGNALS:  # uvicorn has its own while it runs, and raises the signal again when it has stopped
        signal.signal(number, _already_stopping)
    _Server(config).run()


@contextmanager
def signals_given_back() -> Iterator[None]:
    """At the end SIGTERM and SIGINT do again what they did before, whatever `run_app` made of them."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        for server in self.servers:
            for socket in server.sockets:
                host, port = socket.getsockname()[:2]
                print(f"Listening on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)


def _already_stopping(number: int, frame: FrameType | None) -> None:
    """The signal has done its work: the server has stopped."""

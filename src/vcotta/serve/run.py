"""Running the application until it is told to stop."""

from __future__ import annotations

import errno
import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from vcotta.serve.gate import is_loopback

__all__ = ["check_exposure", "listen", "run_app"]

_BACKLOG = 2048  # connections that may wait to be accepted; uvicorn's own number
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


def listen(host: str, port: int) -> list[socket.socket]:
    """Take a port on every address of a host, so that a port in use is told before anything else is.

    Raises:
        OSError: If the port is in use, not allowed, or the host no address of this machine.

    Example:
        >>> (taken,) = listen("127.0.0.1", 0)
        >>> taken.getsockname()[0]
        '127.0.0.1'
        >>> taken.close()
    """
    taken: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address[:2]) for family, *_, address in found):
            taken.append(socket.create_server(address, family=family, backlog=_BACKLOG))
    except OSError as error:
        for one in taken:
            one.close()
        raise OSError(
            f"Expected to listen on {host}, port {port}, but {_why_not(error)}. "
            "Give another with --port (0 for any free one) or --host, or stop what is there."
        ) from error
    return taken


def _why_not(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program is using it"
    return (error.strerror or str(error)).partition(" (")[0]


def run_app(app: FastAPI, sockets: list[socket.socket], *, stop_seconds: float = 30.0) -> None:
    """Serve until SIGTERM or SIGINT; then take no new requests, answer those that came, and return.

    From then on both signals are ignored, until the process has ended: the caller still has a state to save, and Python
    takes a second to leave, in which a signal would be told as a failure.

    Args:
        app: The application.
        sockets: Where to listen, from `listen`.
        stop_seconds: Seconds the open requests have to be answered at the end; a second signal ends that at once.
    """
    config = uvicorn.Config(
        app,
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
    _Server(config).run(sockets)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for one in server.sockets:
                host, port = one.getsockname()[:2]
                print(f"Listening on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)


def _already_stopping(number: int, frame: FrameType | None) -> None:
    """The signal has done its work: the server has stopped."""

"""Running the application until a signal stops it."""

from __future__ import annotations

import errno
import signal
import socket
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

__all__ = ["listen", "run_app"]

_BACKLOG = 2048  # connections that may wait to be accepted, uvicorn's default
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def listen(host: str, port: int) -> list[socket.socket]:
    """Open a port on every address of a host; OSError if it is in use or not allowed, or the host is remote."""
    taken: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address[:2]) for family, *_, address in found):
            taken.append(socket.create_server(address, family=family, backlog=_BACKLOG))
    except OSError as error:
        for one in taken:
            one.close()
        in_use = error.errno == errno.EADDRINUSE
        reason = "another program is using it" if in_use else (error.strerror or str(error)).partition(" (")[0]
        raise OSError(
            f"Expected to listen on {host}, port {port}, but {reason}. "
            "Choose another --port (0 for any free one) or --host, or stop that program."
        ) from error
    return taken


def run_app(app: ASGIApp, sockets: list[socket.socket], *, stop_seconds: float = 30.0) -> None:
    """Serve on the sockets of `listen` until SIGTERM or SIGINT; then answer the open requests and return.

    Both signals are ignored from then on: the caller still saves the state, and a signal while Python exits would
    look like a failure.

    Args:
        app: The application.
        sockets: Where to listen.
        stop_seconds: Seconds to answer the open requests; a second signal ends them at once.
    """
    config = uvicorn.Config(
        app,
        log_config=None,  # `log_to` configures uvicorn's log with ours
        access_log=False,  # the application writes it, with the images and the request's id
        server_header=False,
        proxy_headers=False,
        ws="none",
        http="h11",  # not what else is installed (Ray Serve brings httptools): it bounds the headers
        loop="asyncio",
        timeout_keep_alive=10,
        timeout_graceful_shutdown=int(stop_seconds),
    )
    for number in _SIGNALS:  # uvicorn has its own handlers while it runs, and raises the signal again afterwards
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
    """Ignore the signal that uvicorn raises again after it has stopped."""

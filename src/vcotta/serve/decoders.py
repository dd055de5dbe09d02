"""Processes that decode image files: one that takes too long is ended, one that has died is replaced."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any, TypeVar

import numpy as np

from vcotta.serve.decode import READY, Array, ImageRefusedError

__all__ = ["BusyError", "Decoders"]

_COMMAND = (sys.executable, "-P", "-W", "ignore", "-m", "vcotta.serve.decode")  # -P: no code of the current folder
_START_SECONDS = 60.0  # it usually takes 0.2 s
_LONGEST_LINE = 4096

R = TypeVar("R")


class BusyError(Exception):
    """No process was free, or could be started, to decode images."""


class _EndedError(Exception):
    """The process ended before it answered."""


class Decoders:
    """A few processes in which images are decoded; each is started when all others are busy for the first time.

    The processes import no torch and end when this object, or the whole server, does. Files and pixels go through
    pipes as bytes and lines of JSON: nothing is unpickled.

    Args:
        seconds: Most seconds for the images of a request, and most to wait for a free process.
        threads: Requests that may be decoded or wait at once.
        count: Number of processes.

    Attributes:
        threads: The pool of threads that talk to the processes.
    """

    def __init__(self, seconds: float, threads: int, count: int = 2) -> None:
        self.seconds = seconds
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix="vcotta-decode")
        self._free: queue.LifoQueue[_Worker] = queue.LifoQueue()
        self._workers = [_Worker() for _ in range(count)]
        for worker in self._workers:
            self._free.put(worker)
        self._end = weakref.finalize(self, _end_all, self._workers)

    async def decode(self, files: Sequence[bytes], **arguments: Any) -> Array:
        """Decode files as `vcotta.serve.decode.decode` does, with the same arguments and errors.

        Raises:
            ImageRefusedError: Also 413 if it takes too long, and 422 if the process dies of these images twice.
            BusyError: No process is free in time, or one cannot be started.
        """
        worker = await self._take()
        try:
            for _ in range(2):  # the first time something else may have ended the process, long ago or just now
                with suppress(_EndedError):
                    return await self._ask(worker, files, arguments)
        finally:
            self._free.put(worker)
        raise ImageRefusedError(422, "Expected images that can be decoded, but the process that decodes died of them.")

    def start(self) -> None:
        """Start the first process, so that the first request does not wait for it."""
        self.threads.submit(self._workers[-1].start)

    def close(self) -> None:
        """End the processes."""
        self._end()
        self.threads.shutdown(wait=False)

    async def _take(self) -> _Worker:
        """Wait for a free process."""
        with suppress(queue.Empty):
            return self._free.get_nowait()
        try:
            get = self._free.get
            return await asyncio.get_running_loop().run_in_executor(self.threads, lambda: get(timeout=self.seconds))
        except queue.Empty:
            raise BusyError("Other images are being decoded for a long time. Try again in a moment.") from None

    async def _ask(self, worker: _Worker, files: Sequence[bytes], arguments: dict[str, Any]) -> Array:
        """Let a process decode; it stays only if it answers."""
        answered = False
        try:
            if not worker.ready:
                await self._within(_START_SECONDS, worker.start)
            answer, content = await self._within(self.seconds, lambda: worker.exchange(files, arguments))
            answered = True
        except TimeoutError:
            if not worker.ready:
                raise BusyError("The process that decodes images does not start. Try again in a moment.") from None
            detail = f"Expected images that are decoded within {self.seconds:g} seconds, but these take longer."
            raise ImageRefusedError(413, f"{detail} Send fewer or smaller ones.") from None
        finally:
            if not answered:
                worker.end()
        if "detail" in answer:
            raise ImageRefusedError(answer["status"], answer["detail"])
        return np.frombuffer(content, np.uint8).reshape(answer["shape"])

    async def _within(self, seconds: float, act: Callable[[], R]) -> R:
        """The result of a function that runs in a thread; TimeoutError if it takes longer."""
        future = asyncio.get_running_loop().run_in_executor(self.threads, act)
        done, _ = await asyncio.wait({future}, timeout=seconds)
        if not done:
            future.add_done_callback(lambda late: late.exception())  # it fails when the process is ended
            raise TimeoutError
        return future.result()


class _Worker:
    """One process, used by one thread at a time.

    Attributes:
        ready: Whether it is running and has said that it can decode.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = False
        self._starting = threading.Lock()

    def start(self) -> None:
        """Start the process unless it is running, and wait until it is ready."""
        with self._starting:  # once, also where `Decoders.start` and the first request meet
            if not self.ready:
                self._start()

    def _start(self) -> None:
        paths = os.pathsep.join(filter(None, sys.path))  # as in this process, whoever set them
        environment = os.environ | {"PYTHONPATH": paths}
        try:
            self.process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            self.ready = self._output.readline(_LONGEST_LINE) == READY
        except (OSError, ValueError) as error:
            raise BusyError(f"The process that decodes images cannot be started: {error}.") from error
        if not self.ready:
            raise BusyError("The process that decodes images ended while it started; see the server's log.")

    def exchange(self, files: Sequence[bytes], arguments: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Send files and arguments, and return the answer and its pixels."""
        question = json.dumps(arguments | {"files": [len(content) for content in files]})
        try:
            self._input.write(question.encode() + b"\n")
            for content in files:
                self._input.write(content)
            self._input.flush()
            answer: dict[str, Any] = json.loads(self._output.readline(_LONGEST_LINE))
            size = 0 if "detail" in answer else int(np.prod(answer["shape"]))
            pixels = self._output.read(size)
        except (OSError, ValueError) as error:  # a broken pipe, half a line
            raise _EndedError from error
        if len(pixels) != size:
            raise _EndedError
        return answer, pixels

    def end(self) -> None:
        """Kill the process, if it is running; another thread that talks to it then gets an error."""
        self.ready = False
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def _input(self) -> IO[bytes]:
        assert self.process is not None
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def _output(self) -> IO[bytes]:
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout


def _end_all(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.end()

"""The processes that decode images: within their time, whatever the images, and replaced when they die."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from fastapi.testclient import TestClient

from vcotta.serve import decoders as processes
from vcotta.serve.app import create_app
from vcotta.serve.bundle import Preprocess
from vcotta.serve.decode import ImageRefusedError, decode
from vcotta.serve.decoders import BusyError, Decoders
from vcotta.serve.requests import Limits

HOW = {**asdict(Preprocess(8)), "image_pixels": Limits.image_pixels, "request_pixels": Limits.request_pixels}


@pytest.fixture
def decoders():
    made = Decoders(seconds=30.0, threads=4, count=1)
    yield made
    made.close()


@pytest.fixture(scope="module")
def slow() -> bytes:
    """A small file that takes half a second: twenty scans of 25 million pixels."""
    file = io.BytesIO()
    Image.new("L", (5000, 5000), 90).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    scan = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + scan * (20 - content.count(b"\xff\xda")) + content[-2:]


def run(decoders: Decoders, *files: bytes, **changes) -> np.ndarray:
    return asyncio.run(decoders.decode(files, **(HOW | changes)))


def pid(decoders: Decoders) -> int:
    return decoders._workers[0].process.pid


def test_a_process_gives_the_same_pixels_and_the_same_refusals_as_the_function(decoders, png) -> None:
    files = [png(30, 20, kind=kind, seed=seed) for kind in ("PNG", "JPEG") for seed in range(2)]
    assert np.array_equal(run(decoders, *files), decode(files, **HOW))
    for wrong, changes in (([b"x"], {}), ([png(30, 20)], {"how": "none"}), ([png(30, 30)], {"image_pixels": 100})):
        with pytest.raises(ImageRefusedError) as here:
            decode(wrong, **(HOW | changes))
        with pytest.raises(ImageRefusedError) as there:
            run(decoders, *wrong, **changes)
        assert (there.value.status, there.value.detail) == (here.value.status, here.value.detail)


def test_one_process_serves_request_after_request_and_imports_no_torch(decoders, png) -> None:
    run(decoders, png())
    first = pid(decoders)
    run(decoders, png())
    assert pid(decoders) == first
    code = "import sys, vcotta.serve.decode; sys.exit('torch' in sys.modules or 'starlette' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


def stopped(decoders: Decoders) -> int:
    """Let the process answer nothing more, and return which it is."""
    os.kill(pid(decoders), signal.SIGSTOP)
    return pid(decoders)


def test_a_decoding_that_never_ends_is_ended_with_its_process_and_the_next_request_is_served(decoders, png) -> None:
    run(decoders, png())
    first, decoders.seconds = stopped(decoders), 0.1
    with pytest.raises(ImageRefusedError, match=r"within 0\.1 seconds") as refused:
        run(decoders, png())
    assert refused.value.status == 413
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    decoders.seconds = 30.0
    assert run(decoders, png()).shape == (1, 8, 8, 3)
    assert pid(decoders) != first


def test_a_request_waits_for_a_free_process_only_so_long(decoders, png) -> None:
    async def both() -> None:
        await decoders.decode([png()], **HOW)
        process = stopped(decoders)
        first = asyncio.create_task(decoders.decode([png()], **HOW))
        await asyncio.sleep(0)
        decoders.seconds = 0.05
        with pytest.raises(BusyError, match="Try again"):
            await decoders.decode([png()], **HOW)
        os.kill(process, signal.SIGCONT)
        await first

    asyncio.run(both())


def test_a_process_that_died_between_requests_is_replaced_and_nobody_notices(decoders, png) -> None:
    run(decoders, png())
    os.kill(pid(decoders), signal.SIGKILL)
    assert run(decoders, png()).shape == (1, 8, 8, 3)


def scripted(monkeypatch, script: str) -> None:
    monkeypatch.setattr(processes, "_COMMAND", (sys.executable, "-c", script))


def test_images_of_which_the_process_dies_are_refused_at_the_second_time(decoders, png, monkeypatch, tmp_path) -> None:
    note = tmp_path / "starts"
    scripted(monkeypatch, f"print('ready', flush=True); open({str(note)!r}, 'a').write('x'); input()")
    with pytest.raises(ImageRefusedError, match="died of them") as refused:
        run(decoders, png())
    assert refused.value.status == 422
    assert note.read_text() == "xx"
    monkeypatch.undo()
    assert run(decoders, png()).shape == (1, 8, 8, 3)


@pytest.mark.parametrize("script", ["print('other')", "raise SystemExit(3)"])
def test_a_process_that_does_not_start_is_a_busy_server(decoders, png, monkeypatch, script) -> None:
    scripted(monkeypatch, script)
    with pytest.raises(BusyError, match="ended while it started"):
        run(decoders, png())
    monkeypatch.setattr(processes, "_COMMAND", ("/no/such/program",))
    with pytest.raises(BusyError, match="cannot be started"):
        run(decoders, png())


def test_signals_to_the_group_do_not_end_a_process_but_the_end_of_its_pipe_does(decoders, png) -> None:
    run(decoders, png())
    process = decoders._workers[0].process
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(process.pid, number)
    assert run(decoders, png()).shape == (1, 8, 8, 3)
    assert decoders._workers[0].process is process
    process.stdin.close()  # as when the server is killed
    assert process.wait(60) == 0


def test_small_files_may_not_become_more_pixels_than_a_request_may_have(png) -> None:
    with pytest.raises(ImageRefusedError, match="at most 5 images of 4096 x 4096") as refused:
        decode([png()] * 6, **(HOW | {"size": 4096}))
    assert refused.value.status == 413


def test_a_request_that_takes_too_long_to_decode_is_answered_413_and_changes_nothing(service, png, slow) -> None:
    service.limits = replace(service.limits, decode_seconds=0.1)
    with TestClient(create_app(service), base_url="http://127.0.0.1") as client:
        parts = [("images", ("a.jpg", slow))] * 4
        answer = client.post("/v1/predict", files=parts)
        assert (answer.status_code, "Send fewer or smaller" in answer.json()["detail"]) == (413, True)
        client.app.state.decoders.seconds = 30.0
        answer = client.post("/v1/predict", files=[("images", ("a.png", png()))])
        assert (answer.status_code, answer.json()["batch"]["changes"]) == (200, 1)


def test_arrays_are_served_while_every_decoder_is_busy(service, npy, images) -> None:
    client = TestClient(create_app(service), base_url="http://127.0.0.1")
    decoders = client.app.state.decoders
    while not decoders._free.empty():
        decoders._free.get()
    array = npy(torch.rand(3, 3, 8, 8))
    assert client.post("/v1/predict", content=array, headers={"Content-Type": "application/x-npy"}).status_code == 200


def test_an_application_that_was_stopped_can_be_started_again(service) -> None:
    app = create_app(service)
    for _ in range(2):
        with TestClient(app) as client:
            assert client.get("/healthz").status_code == 200

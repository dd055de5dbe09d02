"""The study of a fleet compares answers with those of streams alone, before and after a kill."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

import httpx
import torch
from torch import Tensor, nn

from studies.fleet import run as script
from studies.fleet import run_replicas, run_throughput
from studies.fleet.failures import failures
from studies.fleet.picture import draw_throughput
from studies.fleet.run_shared_pass import EACH, NETWORKS, compare_bytes
from studies.fleet.table import shared_pass_text, throughput_text
from vcotta import build_adapter, to_variational
from vcotta.models.wide_resnet import digits_network
from vcotta.serve import Preprocess, make_bundle, save_bundle

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def bundle(tmp_path):
    """A bundle of a network that needs no training."""
    adapter = build_adapter("cotta", digits_network(0), views=1)
    names = [str(label) for label in range(10)]
    made = make_bundle(adapter, "wrn-10-1", names, Preprocess(32), batch_size=8, base=8, stem_stride=2)
    save_bundle(made, tmp_path / "a.bundle")
    return tmp_path / "a.bundle"


@pytest.mark.slow
def test_a_small_fleet_has_no_wrong_answer_and_continues_after_a_kill(bundle, monkeypatch) -> None:
    found = script.fleet(bundle, 4, 0.1, 1, 1.0)
    assert (found["wrong"], found["server_errors"], found["exit_code"]) == ([], 0, 0)
    assert (found["failures"], found["server_error_texts"]) == ([], {})
    assert found["answers_compared"] == found["by_status"]["200"] > 20
    assert found["states_put_to_disk"] > 0


@pytest.mark.slow
def test_an_answer_that_is_not_the_streams_own_is_found(bundle, tmp_path) -> None:
    images = script.Images(2)
    with script.Service(script.load_bundle(bundle), wait=0.0) as service:
        served = service.predict(script.torch.from_numpy(images.request(1, 0))).result(20)
    found = script.json.loads(script.body_of(served, service.bundle.class_names, True))
    assert script.check(bundle, images, 1, [(0, found)], 0, 1) == []
    assert len(script.check(bundle, images, 0, [(0, found)], 0, 1)) == 1


@pytest.mark.slow
def test_throughput_counts_the_answers_after_the_first_of_each_stream(tmp_path) -> None:
    adapter = build_adapter("vcotta", to_variational(digits_network(0)), views=1, trains="norm")
    names = [str(label) for label in range(10)]
    made = make_bundle(adapter, "wrn-10-1", names, Preprocess(32), batch_size=8, base=8, stem_stride=2)
    save_bundle(made, tmp_path / "a.bundle")
    row = run_throughput.measure(tmp_path / "a.bundle", 3, 7, 64)
    assert (row["trains"], row["streams"], row["answers"], row["states_loaded"]) == ("norm", 3, 9, 3)
    assert 0 < row["seconds_p50"] <= row["seconds_p99"]
    assert row["merged"] >= 2


LOG = """\
2026-01-01T10:00:00.000Z INFO request id=0123456789abcdef stream=camera-1 status=200 images=8 ms=3.1
2026-01-01T10:00:01.000Z ERROR The state after 3 changes could not be saved; the server continues: No space left
Traceback (most recent call last):
  File "server.py", line 3, in save
OSError: No space left
2026-01-01T10:00:02.000Z ERROR The state after 14 changes could not be saved; the server continues: No space left
Traceback (most recent call last):
  File "server.py", line 3, in save
OSError: No space left
\x1b[36m(ServeReplica:vcotta:streams pid=77)\x1b[0m 2026-01-01T10:00:03.000Z ERROR A batch failed
\x1b[36m(ServeReplica:vcotta:streams pid=77)\x1b[0m ValueError: odd
2026-01-01T10:00:04.000Z WARNING request id=0123456789abcdef stream=a status=503 images=0 ms=1.5 reason="it stops"
2026-01-01T10:00:05.000Z WARNING The replicas are still saving their states; INFO, not ERROR
"""


def test_the_text_of_every_kind_of_failure_is_kept_and_counted() -> None:
    found = failures(LOG)
    assert [kind["count"] for kind in found] == [2, 1, 1]
    assert (
        found[0]["text"]
        .splitlines()[0]
        .endswith("The state after 3 changes could not be saved; the server continues: No space left")
    )
    assert found[0]["text"].endswith("OSError: No space left")
    assert found[1]["text"].endswith("A batch failed\nValueError: odd")
    assert found[2]["text"].endswith('reason="it stops"')


def test_the_texts_of_server_errors_are_kept() -> None:
    tally = script.Tally()
    for status, text in ((200, "fine"), (500, "it failed"), (503, "it stops"), (500, "it failed")):
        tally.note("valid", httpx.Response(status, text=text))
    assert tally.errors == {"500: it failed": 2, "503: it stops": 1}
    client = run_replicas.Client(0)
    client.note(httpx.Response(503, text="lost"), 0.0)
    assert client.refusals == {"lost": 1}


def answer(changes: int, saved: int) -> httpx.Response:
    return httpx.Response(200, json={"batch": {"changes": changes}}, headers={"Vcotta-Saved": str(saved)})


def test_a_client_counts_the_acknowledged_steps_that_a_kill_takes() -> None:
    client = run_replicas.Client(0)
    for changes, saved in ((1, 0), (2, 0), (3, 2)):
        client.note(answer(changes, saved), 0.0)
    client.note(httpx.Response(503), 0.0)
    client.note(answer(3, 2), 0.0)  # version 3 was acknowledged before, but not called saved
    assert (client.lost, client.wrong, client.statuses) == (1, [], {200: 4, 503: 1})


@pytest.mark.parametrize("second", [answer(2, 2), httpx.Response(500)])
def test_a_lost_step_that_was_called_saved_is_wrong_and_so_is_a_500(second) -> None:
    client = run_replicas.Client(0)
    client.note(answer(3, 2), 0.0)
    client.note(second, 0.0)
    assert len(client.wrong) == 1


def test_throughput_is_drawn_for_every_number_of_streams(tmp_path) -> None:
    draw_throughput(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    rows = [line.split(" | ")[:2] for line in throughput_text().splitlines()[2:10]]
    assert [row[0].strip("| ") for row in rows] == ["1", "1", "10", "10", "50", "50", "200", "200"]
    assert [row[1] for row in rows] == ["`all`", "`norm`"] * 4


def test_the_bytes_of_shared_passes_are_compared_for_every_network_and_number_of_images(monkeypatch) -> None:
    lines = shared_pass_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    assert [row[0].strip("`") for row in rows] == [*NETWORKS]
    assert all(len(row) == 1 + len(EACH) for row in rows)
    assert any(cell != "same" for row in rows for cell in row[1:])  # or nothing speaks against sharing
    net = nn.Sequential(nn.Flatten(), Uneven())
    monkeypatch.setattr("studies.fleet.run_shared_pass.build_network", lambda *_: net)
    found = compare_bytes("wrn-10-1", 2)
    assert (found["same_bytes"], found["largest_change"]) == (False, 6.0)
    net[1] = nn.Identity()
    assert compare_bytes("wrn-10-1", 2)["same_bytes"]


class Uneven(nn.Module):
    """A layer whose outputs depend on the number of images."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.full((len(images), 1), float(len(images)))

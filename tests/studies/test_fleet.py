"""The study of a fleet compares answers with those of streams alone, before and after a kill."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from studies.fleet import run as script
from vcotta import build_adapter
from vcotta.models.wide_resnet import digits_network
from vcotta.serve import Preprocess, make_bundle, save_bundle

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.fixture
def bundle(tmp_path):
    """A bundle of a network that needs no training."""
    adapter = build_adapter("cotta", digits_network(0), views=1)
    names = [str(label) for label in range(10)]
    made = make_bundle(adapter, "wrn-10-1", names, Preprocess(32), batch_size=8, base=8, stem_stride=2)
    save_bundle(made, tmp_path / "a.bundle")
    return tmp_path / "a.bundle"


def test_a_small_fleet_has_no_wrong_answer_and_continues_after_a_kill(bundle, monkeypatch) -> None:
    found = script.fleet(bundle, 4, 0.1, 1, 1.0)
    assert (found["wrong"], found["server_errors"], found["exit_code"]) == ([], 0, 0)
    assert found["answers_compared"] == found["by_status"]["200"] > 20
    assert found["states_put_to_disk"] > 0


def test_an_answer_that_is_not_the_streams_own_is_found(bundle, tmp_path) -> None:
    images = script.Images(2)
    with script.Service(script.load_bundle(bundle), wait=0.0) as service:
        served = service.predict(script.torch.from_numpy(images.request(1, 0))).result(20)
    found = script.json.loads(script.body_of(served, service.bundle.class_names, True))
    assert script.check(bundle, images, 1, [(0, found)], 0, 1) == []
    assert len(script.check(bundle, images, 0, [(0, found)], 0, 1)) == 1

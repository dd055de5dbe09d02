import numpy as np
import pytest
import torch

from vcotta.data import ImageData
from vcotta.data.corrupted import open_corrupted_arrays, write_corrupted
from vcotta.methods import build_adapter
from vcotta.runs.runner import run_stream
from vcotta.streams.camera import Bursts, DayNight
from vcotta.streams.frames import darken
from vcotta.streams.stream import make_stream

FOUR = ("gaussian_noise", "fog", "contrast", "snow")


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (23, 32, 32, 3), dtype=np.uint8)
    return ImageData(images, rng.integers(0, 4, 23), tuple("abcd"), "squares")


@pytest.fixture
def network():
    return torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(48, 4))


def test_bursts_come_within_and_between_domains_and_change_their_kind(data):
    parts = [(batch.domain, len(batch.labels)) for batch in make_stream("bursts", data, FOUR[:2], frames=5)]
    assert parts == [
        ("gaussian_noise", 12),
        ("blank", 5),
        ("gaussian_noise", 11),
        ("noise", 5),
        ("fog", 12),
        ("stuck", 5),
        ("fog", 11),
    ]


def test_a_stuck_frame_is_the_last_image_before_it_and_noise_changes(data):
    before = None
    for batch in make_stream("bursts", data, FOUR, batch_size=6, frames=9):
        if batch.domain == "stuck":
            assert all(torch.equal(image, before) for image in batch.images)
        elif batch.domain == "noise":
            assert len({tuple(image.flatten().tolist()) for image in batch.images}) == len(batch.images)
        else:
            before = batch.images[-1]
        assert batch.severity == (0 if batch.domain in ("blank", "noise", "stuck") else 5)


def test_a_domain_of_one_image_is_not_halved():
    plan = Bursts().plan(("fog", "snow"), (5,), np.zeros(1, np.int64), 0)
    assert [segment.useless or segment.domains[0][0] for segment in plan] == ["fog", "blank", "snow"]


def test_bursts_are_seen_but_not_scored(data, network):
    adapter = build_adapter("source", network)
    run = run_stream(adapter, make_stream("bursts", data, FOUR, batch_size=6, frames=9))
    usual = run_stream(adapter, make_stream("continual", data, FOUR, batch_size=6))
    summary = run.summary()
    assert sum(record["n"] for record in run.records) == 4 * 23 + 7 * 9
    assert [(part["domain"], part["n"]) for part in summary["domains"]] == [(name, 23) for name in FOUR]
    for part, other in zip(summary["domains"], usual.summary()["domains"], strict=True):
        assert part["error"] == other["error"]
        assert part["nll"] == pytest.approx(other["nll"])
    assert summary["mean"]["error"] == usual.summary()["mean"]["error"]
    assert summary["forwards"] == len(run.records)


def test_bursts_change_what_an_adapter_learns(data, network):
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.AvgPool2d(30))
    net = torch.nn.Sequential(net, torch.nn.Flatten())
    with_bursts, without = (
        run_stream(build_adapter("tent", net, lr=0.1), make_stream(name, data, FOUR, batch_size=12)).summary()
        for name in ("bursts", "continual")
    )
    assert with_bursts["domains"][0]["n"] == without["domains"][0]["n"]
    assert with_bursts["mean"]["nll"] != without["mean"]["nll"]


def test_bursts_work_with_corrupted_files_too(data, tmp_path):
    files = write_corrupted(data, tmp_path, (5,), 3, corruptions=("fog", "snow"))
    stored = make_stream("bursts", open_corrupted_arrays(files, tuple("abcd"), "C", 23), ("fog", "snow"), seed=3)
    made = make_stream("bursts", data, ("fog", "snow"), seed=3)
    for one, other in zip(stored, made, strict=True):
        assert torch.equal(one.images, other.images)
    assert stored.describe()["seed"] == 3  # of the noise
    with pytest.raises(ValueError, match="Expected clean images for the protocol day_night, but C has none"):
        make_stream("day_night", stored.data)


def test_days_are_clean_and_nights_dark(data):
    batches = list(make_stream("day_night", data, severity=4, batch_size=30, turns=3))
    assert [(batch.domain, batch.severity) for batch in batches] == [("clean", 0), ("dark", 4)] * 3
    clean = torch.from_numpy(data.images.copy())
    for batch in batches:
        pixels = darken(clean, 4) if batch.severity else clean
        assert torch.equal(batch.images, pixels.permute(0, 3, 1, 2) / 255)
        assert batch.labels.tolist() == data.labels.tolist()


def test_several_severities_are_nights_of_each():
    plan = DayNight(turns=2).plan((), (3, 5), np.zeros(2, np.int64), 0)
    assert [segment.domains[0] for segment in plan] == [("clean", 0), ("dark", 3), ("clean", 0), ("dark", 5)] * 2


def test_day_and_night_have_no_corruptions_to_choose(data):
    for chosen in (("fog",), ("none",)):
        with pytest.raises(ValueError, match=f"no `corruptions` with the protocol day_night.*{chosen[0]}.*Leave them"):
            make_stream("day_night", data, chosen)
    told = make_stream("day_night", data).describe()
    assert (told["order"], told["seed"], told["severity_table"], told["frost"]) == (["clean", "dark"], None, None, None)


def test_every_turn_is_a_domain_of_the_score(data, network):
    run = run_stream(build_adapter("source", network), make_stream("day_night", data, turns=2))
    assert [part["domain"] for part in run.summary()["domains"]] == ["clean", "dark"] * 2

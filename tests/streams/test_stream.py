import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from vcotta.corruptions import STANDARD, corrupt, frost
from vcotta.data import ImageData, to_tensor
from vcotta.data.corrupted import open_corrupted_arrays, write_corrupted
from vcotta.streams import stream as streams
from vcotta.streams.protocols import Correlated, MixedDomains, ResetEachShift
from vcotta.streams.stream import ProtocolStream, make_stream


@pytest.fixture(autouse=True)
def no_photographs(monkeypatch, tmp_path):
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return ImageData(
        rng.integers(0, 256, (23, 32, 32, 3), dtype=np.uint8), rng.integers(0, 4, 23), tuple("abcd"), "squares"
    )


@pytest.fixture
def calls(monkeypatch):
    """Replace the corruptions by an addition that records each call's arguments."""
    seen = []

    def add(images, name, severity, *, seed, offset, table, textures):
        seen.append((name, severity, len(images), seed, offset.tolist()))
        return images + np.uint8(severity)

    monkeypatch.setattr(streams, "corrupt", add)
    return seen


def test_every_image_comes_once_for_each_corruption_in_order(data, calls):
    stream = make_stream("continual", data, batch_size=10)
    parts = list(stream)
    assert len(parts) == len(stream) == 45
    assert [part.index for part in parts] == list(range(45))
    assert [part.domain for part in parts[::3]] == list(STANDARD)
    assert [len(part.labels) for part in parts[:4]] == [10, 10, 3, 10]
    assert torch.equal(torch.cat([part.images for part in parts[:3]]), to_tensor(data.images + np.uint8(5)))
    for first in (0, 3):
        labels = torch.cat([part.labels for part in parts[first : first + 3]])
        assert torch.equal(labels, torch.from_numpy(data.labels))


def test_corruption_gets_the_seed_and_the_index_of_each_image(data, calls):
    list(make_stream("continual", data, ("fog", "snow"), severity=2, batch_size=15, limit=20, seed=7))
    first, second = list(range(15)), list(range(15, 20))
    assert calls == [(name, 2, len(images), 7, images) for name in ("fog", "snow") for images in (first, second)]


def test_severities_are_separate_domains_within_each_corruption(data, calls):
    stream = make_stream("continual", data, ("fog", "snow"), severity=(3, 5), batch_size=23)
    assert [(part.domain, part.severity) for part in stream] == [("fog", 3), ("fog", 5), ("snow", 3), ("snow", 5)]
    assert len(stream) == 4


def test_images_are_corrupted_only_when_asked_for(data, calls):
    iterator = iter(make_stream("continual", data, batch_size=10))
    assert calls == []
    next(iterator)
    assert len(calls) == 1


def test_started_in_the_middle_equals_the_rest_of_a_whole_pass(data):
    stream = make_stream("continual", data, ("gaussian_noise", "fog"), batch_size=9, seed=3)
    whole = list(stream)
    for start in (0, 2, 4, 6):
        rest = list(stream.batches(start))
        assert [part.index for part in rest] == list(range(start, 6))
        for one, other in zip(rest, whole[start:], strict=True):
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.labels, other.labels)


def test_pixels_do_not_depend_on_the_batch_size(data):
    one, other = (
        torch.cat([part.images for part in make_stream("continual", data, ("shot_noise",), batch_size=size)])
        for size in (4, 23)
    )
    assert torch.equal(one, other)


def test_images_are_floats_in_unit_range(data):
    batch = next(iter(make_stream("continual", data, ("contrast",), batch_size=5)))
    assert batch.images.shape == (5, 3, 32, 32)
    assert batch.images.dtype == torch.float32
    assert batch.images.min() >= 0
    assert batch.images.max() <= 1


def test_description_survives_json_and_differs_for_other_pixels(data):
    stream = make_stream("continual", data, ("fog",), severity=(3, 4), batch_size=10, limit=20, seed=1)
    told = stream.describe()
    assert json.loads(json.dumps(told)) == told
    assert told["order"] == ["fog"]
    assert told["severities"] == [3, 4]
    assert told["images_per_domain"] == 20
    assert told["seed"] == 1
    assert told["data"]["name"] == "squares"
    other = ImageData(data.images ^ 1, data.labels, data.class_names, data.name)
    assert make_stream("continual", other, ("fog",)).describe()["data"]["sha256"] != told["data"]["sha256"]


def test_sentence_says_what_will_come(data):
    assert str(make_stream("continual", data, severity=(3, 4), batch_size=10)) == (
        "Continual stream of squares: 15 corruptions at severities 3, 4, 23 images each, "
        "90 batches of up to 10, seed 0."
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, "`batch_size` to be at least 1, but got 0"),
        ({"batch_size": 2.5}, "`batch_size`"),
        ({"limit": 0}, "`limit` to be 1 to 23"),
        ({"limit": 24}, "`limit` to be 1 to 23"),
        ({"severity": 6}, "`severity` to be 1 to 5, but got 6"),
        ({"severity": (5, 0)}, "`severity` to be 1 to 5, but got 0"),
        ({"severity": ()}, "`severity`"),
        ({"severity": True}, "`severity`"),
        ({"corruptions": ("fogg",)}, "Did you mean 'fog'"),
        ({"corruptions": ()}, "at least one corruption"),
        ({"corruptions": ("fog", "none")}, "'none' to be the only one"),
        ({"seed": -1}, "`seed`"),
    ],
)
def test_wrong_settings_are_named_at_once(data, options, text):
    with pytest.raises(ValueError, match=text):
        make_stream("continual", data, **options)


def test_a_single_name_is_not_taken_for_a_list_of_letters(data):
    with pytest.raises(TypeError, match=r"\('fog',\)"):
        make_stream("continual", data, "fog")


def test_start_beyond_the_end_is_refused(data):
    with pytest.raises(ValueError, match="`start` to be 0 to 15"):
        make_stream("continual", data).batches(16)


def test_without_corruption_images_come_once_and_as_they_are(data, calls):
    stream = make_stream("continual", data, ("none",), batch_size=10, limit=15)
    parts = list(stream)
    assert [(part.domain, part.severity, len(part.labels)) for part in parts] == [("clean", 0, 10), ("clean", 0, 5)]
    assert torch.equal(torch.cat([part.images for part in parts]), to_tensor(data.images[:15]))
    assert calls == []
    told = stream.describe()
    assert (told["order"], told["severities"], told["pixels"]) == (["clean"], [0], "clean")
    assert (told["severity_table"], told["seed"]) == (None, None)
    assert str(stream) == "Stream of squares: 15 images as they are, 2 batches of up to 10."


def test_mixed_images_are_corrupted_together_by_domain(data, calls):
    next(iter(make_stream("mixed_domains", data, ("fog", "snow"), (3, 5), batch_size=40, seed=7)))
    assert [call[:4] for call in calls] == [
        ("fog", 3, 10, 7),
        ("fog", 5, 10, 7),
        ("snow", 3, 10, 7),
        ("snow", 5, 10, 7),
    ]


class Files:
    """Images that can only be sliced, as those in files are."""

    def __init__(self, images):
        self.whole, self.shape = images, images.shape

    def __len__(self):
        return len(self.whole)

    def __getitem__(self, index):
        assert isinstance(index, slice)
        return self.whole[index]


@pytest.mark.parametrize("kind", ["array", "memory map", "files"])
def test_scattered_images_are_read_from_arrays_and_from_files(data, kind, tmp_path):
    np.save(tmp_path / "images.npy", data.images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    stored = replace(data, images=mapped if kind == "memory map" else data.images)
    if kind == "files":
        object.__setattr__(stored, "images", Files(data.images))
    stream = make_stream("correlated", stored, ("shot_noise",), batch_size=10)
    whole = corrupt(data.images, "shot_noise", 5)
    expected = to_tensor(whole[stream._plan[0].images])
    assert torch.equal(torch.cat([batch.images for batch in stream]), expected)


def test_the_description_names_the_textures_of_frost_only_where_frost_is_generated(data, tmp_path):
    source = open_corrupted_arrays(
        write_corrupted(data, tmp_path, (5,), corruptions=("frost",)), tuple("abcd"), "C", 23
    )
    streams = [(data, ("fog",)), (data, ("fog", "frost")), (data, ("none",)), (source, ("frost",))]
    found = [make_stream("continual", *given).describe()["frost"] for given in streams]
    assert found == [None, "procedural", None, None]


def test_photographs_that_are_downloaded_later_do_not_change_the_pixels_of_a_stream(data, monkeypatch):
    stream = make_stream("continual", data, ("frost",))
    (before,) = stream
    monkeypatch.setattr(frost, "has_frost", lambda: True)
    (after,) = stream
    assert torch.equal(before.images, after.images)
    assert stream.describe()["frost"] == "procedural"
    assert make_stream("continual", data, ("frost",)).describe()["frost"] == "photographs"


def test_stored_images_follow_protocols_too(data, tmp_path):
    names = ("fog", "contrast")
    source = open_corrupted_arrays(write_corrupted(data, tmp_path, (5,), 3, corruptions=names), tuple("abcd"), "C", 23)
    for protocol in (MixedDomains(), Correlated(), ResetEachShift()):
        stored = ProtocolStream(source, names, batch_size=6, seed=3, protocol=protocol)
        made = ProtocolStream(data, names, batch_size=6, seed=3, protocol=protocol)
        for one, other in zip(stored, made, strict=True):
            assert torch.equal(one.images, other.images)
            assert (one.domains, one.reset) == (other.domains, other.reset)
        draws = protocol != ResetEachShift()
        assert stored.describe()["seed"] == (3 if draws else None)
        assert str(stored).endswith("from files, seed 3." if draws else "from files.")


def test_a_stream_refuses_a_name_in_place_of_a_protocol(data):
    with pytest.raises(TypeError, match="`protocol` to be a protocol, but got 'loops'"):
        ProtocolStream(data, protocol="loops")


@pytest.mark.parametrize("data", [torch.rand(2, 3, 4, 4), np.zeros((2, 4, 4, 3), np.uint8), [1]])
def test_images_without_labels_are_refused_with_what_to_do_instead(data) -> None:
    with pytest.raises(TypeError, match=r"images with labels.* but got \w+\. .*call the adapter on each batch"):
        make_stream("continual", data, ("fog",))

import json

import numpy as np
import pytest
import torch

from vcotta import streams
from vcotta.corruptions import STANDARD
from vcotta.data import ImageData, to_tensor
from vcotta.data.corrupted import open_corrupted_arrays
from vcotta.data.corrupted_writer import write_corrupted
from vcotta.protocols import Correlated, MixedDomains, ResetEachShift
from vcotta.streams import ContinualStream, ProtocolStream


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return ImageData(
        rng.integers(0, 256, (23, 32, 32, 3), dtype=np.uint8), rng.integers(0, 4, 23), tuple("abcd"), "squares"
    )


@pytest.fixture
def calls(monkeypatch):
    """Replace the corruptions by an addition that tells each call's arguments."""
    seen = []

    def add(images, name, severity, *, seed, offset, table):
        seen.append((name, severity, len(images), seed, offset))
        return images + np.uint8(severity)

    monkeypatch.setattr(streams, "corrupt", add)
    return seen


def test_every_image_comes_once_for_each_corruption_in_order(data, calls):
    stream = ContinualStream(data, batch_size=10)
    parts = list(stream)
    assert len(parts) == len(stream) == 45
    assert [part.index for part in parts] == list(range(45))
    assert [part.domain for part in parts[::3]] == list(STANDARD)
    assert [len(part.labels) for part in parts[:4]] == [10, 10, 3, 10]
    assert torch.equal(torch.cat([part.images for part in parts[:3]]), to_tensor(data.images + np.uint8(5)))
    for first in (0, 3):
        labels = torch.cat([part.labels for part in parts[first : first + 3]])
        assert torch.equal(labels, torch.from_numpy(data.labels))


def test_corruption_is_told_the_seed_and_the_place_of_the_batch(data, calls):
    list(ContinualStream(data, ("fog", "snow"), severity=2, batch_size=15, limit=20, seed=7))
    assert calls == [("fog", 2, 15, 7, 0), ("fog", 2, 5, 7, 15), ("snow", 2, 15, 7, 0), ("snow", 2, 5, 7, 15)]


def test_severities_are_separate_domains_within_each_corruption(data, calls):
    stream = ContinualStream(data, ("fog", "snow"), severity=(3, 5), batch_size=23)
    assert [(part.domain, part.severity) for part in stream] == [("fog", 3), ("fog", 5), ("snow", 3), ("snow", 5)]
    assert len(stream) == 4


def test_images_are_corrupted_only_when_asked_for(data, calls):
    iterator = iter(ContinualStream(data, batch_size=10))
    assert calls == []
    next(iterator)
    assert len(calls) == 1


def test_started_in_the_middle_equals_the_rest_of_a_whole_pass(data):
    stream = ContinualStream(data, ("gaussian_noise", "fog"), batch_size=9, seed=3)
    whole = list(stream)
    for start in (0, 2, 4, 6):
        rest = list(stream.batches(start))
        assert [part.index for part in rest] == list(range(start, 6))
        for one, other in zip(rest, whole[start:], strict=True):
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.labels, other.labels)


def test_pixels_do_not_depend_on_the_batch_size(data):
    one, other = (
        torch.cat([part.images for part in ContinualStream(data, ("shot_noise",), batch_size=size)]) for size in (4, 23)
    )
    assert torch.equal(one, other)


def test_images_are_floats_in_unit_range(data):
    batch = next(iter(ContinualStream(data, ("contrast",), batch_size=5)))
    assert batch.images.shape == (5, 3, 32, 32)
    assert batch.images.dtype == torch.float32
    assert batch.images.min() >= 0
    assert batch.images.max() <= 1


def test_description_survives_json_and_tells_pixels_apart(data):
    stream = ContinualStream(data, ("fog",), severity=(3, 4), batch_size=10, limit=20, seed=1)
    told = stream.describe()
    assert json.loads(json.dumps(told)) == told
    assert told["order"] == ["fog"]
    assert told["severities"] == [3, 4]
    assert told["images_per_domain"] == 20
    assert told["seed"] == 1
    assert told["data"]["name"] == "squares"
    other = ImageData(data.images ^ 1, data.labels, data.class_names, data.name)
    assert ContinualStream(other, ("fog",)).describe()["data"]["sha256"] != told["data"]["sha256"]


def test_sentence_says_what_will_come(data):
    assert str(ContinualStream(data, severity=(3, 4), batch_size=10)) == (
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
        ContinualStream(data, **options)


def test_a_single_name_is_not_taken_for_a_list_of_letters(data):
    with pytest.raises(TypeError, match=r"\('fog',\)"):
        ContinualStream(data, "fog")


def test_start_beyond_the_end_is_refused(data):
    with pytest.raises(ValueError, match="`start` to be 0 to 15"):
        ContinualStream(data).batches(16)


def test_without_corruption_images_come_once_and_as_they_are(data, calls):
    stream = ContinualStream(data, ("none",), batch_size=10, limit=15)
    parts = list(stream)
    assert [(part.domain, part.severity, len(part.labels)) for part in parts] == [("clean", 0, 10), ("clean", 0, 5)]
    assert torch.equal(torch.cat([part.images for part in parts]), to_tensor(data.images[:15]))
    assert calls == []
    told = stream.describe()
    assert (told["order"], told["severities"], told["pixels"]) == (["clean"], [0], "clean")
    assert (told["severity_table"], told["seed"]) == (None, None)
    assert str(stream) == "Stream of squares: 15 images as they are, 2 batches of up to 10."


def test_mixed_images_are_corrupted_together_by_domain(data, monkeypatch):
    seen = []

    def add(images, name, severity, places, *, seed, table):
        seen.append((name, severity, len(images), seed))
        return images

    monkeypatch.setattr(streams, "corrupt_at", add)
    stream = ProtocolStream(data, ("fog", "snow"), (3, 5), batch_size=40, seed=7, protocol=MixedDomains())
    next(iter(stream))
    assert seen == [("fog", 3, 10, 7), ("fog", 5, 10, 7), ("snow", 3, 10, 7), ("snow", 5, 10, 7)]


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


def test_continual_stream_has_no_other_protocol(data):
    with pytest.raises(TypeError, match="protocol"):
        ContinualStream(data, protocol=MixedDomains())
    with pytest.raises(TypeError, match="`protocol` to be a protocol, but got 'loops'"):
        ProtocolStream(data, protocol="loops")

"""Streams over domains that have images of their own, in every protocol that visits domains."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from vcotta.data import DomainData, ImageData
from vcotta.streams import make_stream

SIZES = {"art": 5, "sketch": 3, "photo": 4}


@pytest.fixture
def data() -> DomainData:
    """Three domains of different size; a pixel value tells domain and image, the label follows from the image."""
    parts = {}
    for number, (name, size) in enumerate(SIZES.items()):
        values = (100 * (number == 1) + 50 * (number == 2) + np.arange(size)).astype(np.uint8)
        images = np.broadcast_to(values[:, None, None, None], (size, 4, 4, 3)).copy()
        parts[name] = ImageData(images, (np.arange(size) + number) % 2, ("cat", "dog"), name)
    return DomainData(parts, "pets")


def seen(stream) -> list[tuple[str, int]]:
    """Domain and index of every image; checks that its label is its own."""
    first, number = {"art": 0, "sketch": 100, "photo": 50}, list(SIZES)
    found = []
    for batch in stream:
        values = (batch.images[:, 0, 0, 0] * 255).round().int().tolist()
        for value, label, name in zip(
            values, batch.labels.tolist(), batch.domains or [batch.domain] * len(values), strict=True
        ):
            image = value - first[name]
            assert label == (image + number.index(name)) % 2
            found.append((name, image))
    return found


def test_domains_come_in_order_each_with_all_its_images(data) -> None:
    stream = make_stream("continual", data, batch_size=2)
    assert [(batch.domain, batch.severity, len(batch.labels)) for batch in stream] == [
        ("art", 0, 2),
        ("art", 0, 2),
        ("art", 0, 1),
        ("sketch", 0, 2),
        ("sketch", 0, 1),
        ("photo", 0, 2),
        ("photo", 0, 2),
    ]
    assert seen(stream) == [(name, image) for name, size in SIZES.items() for image in range(size)]
    assert torch.equal(next(iter(stream.batches(4))).images, list(stream)[4].images)
    assert str(stream) == "Continual stream of pets: art, sketch, photo, 12 images as they are, 7 batches of up to 2."


@pytest.mark.parametrize("protocol", ["correlated", "practical", "orders", "reset_each_shift"])
def test_each_image_comes_once(data, protocol) -> None:
    everything = [(name, image) for name, size in SIZES.items() for image in range(size)]
    assert sorted(seen(make_stream(protocol, data, batch_size=3))) == sorted(everything)


def test_domains_are_visited_again_and_mixed(data) -> None:
    assert len(seen(make_stream("recurring", data, visits=2))) == 24
    orders = {tuple(batch.domain for batch in make_stream("orders", data, order=order)) for order in range(6)}
    assert len(orders) == 6
    assert len(seen(make_stream("loops", data, rounds=3))) == 36
    mixed = make_stream("mixed_domains", data, batch_size=6, limit=3)
    (first, _) = mixed
    assert sorted(first.domains) == ["art", "art", "photo", "photo", "sketch", "sketch"]
    assert len(set(seen(mixed))) == 9
    with pytest.raises(ValueError, match=r"equally many images .* but got \[5, 3, 4\]\. Use a `limit` of at most 3"):
        len(make_stream("mixed_domains", data))


def test_the_description_names_domains_and_their_sizes(data) -> None:
    described = make_stream("continual", data, batch_size=2).describe()
    assert json.loads(json.dumps(described)) == described
    assert (described["order"], described["images_per_domain"]) == (list(SIZES), SIZES)
    assert (described["pixels"], described["severities"], described["data"]["images"]) == ("clean", [0], 12)
    assert make_stream("continual", data, limit=2).describe()["images_per_domain"] == 2


def test_what_domains_cannot_have_is_refused(data) -> None:
    with pytest.raises(ValueError, match=r"to be \('none',\), as pets has domains of its own, .* but got corr.*'fog'"):
        make_stream("continual", data, ("fog",))
    with pytest.raises(ValueError, match="but got the protocol day_night"):
        make_stream("day_night", data)
    with pytest.raises(ValueError, match="to be 1 to 3, the number of images of the smallest domain, but got 4"):
        make_stream("continual", data, limit=4)

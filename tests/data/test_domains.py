"""Images of several domains: which folders they are, and that their classes agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vcotta.data import DomainData, ImageData
from vcotta.data.named import load_domains


@pytest.fixture
def places(tmp_path, save_image) -> Path:
    """Two domains of two classes: three images in one, two in the other."""
    for number, file in enumerate(("art/cat/1", "art/dog/1", "art/dog/2", "photo/cat/1", "photo/dog/7")):
        save_image(tmp_path / "pets" / f"{file}.png", (8, 8), seed=number)
    return tmp_path / "pets"


def test_domains_are_sub_folders_in_the_given_order(places) -> None:
    data = load_domains(f"folder:{places}@8", ("photo", "art"))
    assert list(data.parts) == ["photo", "art"]
    assert (data.class_names, data.name) == (("cat", "dog"), "folder:pets")
    assert (len(data), data.smallest) == (5, 2)
    assert sorted(data.parts["art"].labels.tolist()) == [0, 1, 1]
    assert data.parts["photo"].images.shape == (2, 8, 8, 3)


def test_the_hash_knows_images_and_order(places) -> None:
    one, other = (load_domains(f"folder:{places}@8", names).sha256() for names in (("photo", "art"), ("art", "photo")))
    assert one != other
    (places / "art" / "cat" / "1.png").write_bytes(b"")
    assert load_domains(f"folder:{places}@8", ("photo", "art")).sha256() != one


def test_a_class_that_a_domain_lacks_is_named(places) -> None:
    (places / "photo" / "dog").rename(places / "photo" / "puppy")
    with pytest.raises(ValueError, match="to have the same classes, but art has 'dog' and photo has not"):
        load_domains(f"folder:{places}@8", ("art", "photo"))


def test_a_domain_without_a_folder_is_named(places) -> None:
    with pytest.raises(FileNotFoundError, match=r"Expected a folder photos in .*pets, but it has art, photo"):
        load_domains(f"folder:{places}", ("art", "photos"))
    with pytest.raises(FileNotFoundError, match="but it has no folders"):
        load_domains(f"folder:{places}/nowhere", ("art",))


def test_names_that_streams_use_and_other_orders_of_classes_are_refused() -> None:
    def part(*names: str) -> ImageData:
        return ImageData(np.zeros((1, 4, 4, 3), np.uint8), np.zeros(1, np.int64), names, "x")

    with pytest.raises(ValueError, match="another name than 'mixed'"):
        DomainData({"mixed": part("a")}, "x")
    with pytest.raises(ValueError, match="the classes of one and two in the same order"):
        DomainData({"one": part("a", "b"), "two": part("b", "a")}, "x")
    with pytest.raises(ValueError, match="at least one domain"):
        DomainData({}, "x")

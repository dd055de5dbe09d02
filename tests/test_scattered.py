import numpy as np
import pytest
import torch

from vcotta import scattered
from vcotta.corruptions import EXTRA, STANDARD, corrupt
from vcotta.scattered import corrupt_at, read_at


@pytest.mark.parametrize("name", [*STANDARD, *EXTRA])
def test_scattered_images_get_the_pixels_of_the_whole(name, monkeypatch):
    monkeypatch.setattr(scattered, "_CHUNK_VALUES", {"cpu": 2 * 32 * 32 * 3})
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (9, 32, 32, 3), dtype=np.uint8))
    whole = corrupt(images, name, 4, seed=5)
    places = np.array([7, 0, 3, 8, 2])
    assert torch.equal(corrupt_at(images[places], name, 4, places, seed=5), whole[places])


def test_table_is_passed_on():
    images = torch.full((3, 32, 32, 3), 90, dtype=torch.uint8)
    whole = corrupt(images, "fog", 5, seed=1, table=224)
    places = np.array([2, 0])
    assert torch.equal(corrupt_at(images[places], "fog", 5, places, seed=1, table=224), whole[places])


def test_what_can_only_be_sliced_is_read_in_the_order_asked_for():
    class Files:
        shape = (6, 1, 1, 1)

        def __len__(self):
            return 6

        def __getitem__(self, index):
            assert isinstance(index, slice)
            return np.arange(6, dtype=np.uint8)[index].reshape(-1, 1, 1, 1)

    assert read_at(Files(), np.array([4, 1, 5])).ravel().tolist() == [4, 1, 5]


def test_memory_mapped_images_are_copied(tmp_path):
    np.save(tmp_path / "images.npy", np.arange(4, dtype=np.uint8).reshape(4, 1, 1, 1))
    some = read_at(np.load(tmp_path / "images.npy", mmap_mode="r"), np.array([2, 0]))
    assert some.ravel().tolist() == [2, 0]
    assert some.flags.writeable

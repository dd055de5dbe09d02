import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits as sklearn_digits

from vcotta.data import ImageData, batches, load_digits, to_tensor
from vcotta.models.wide_resnet import digits_network


@pytest.fixture(scope="module")
def digits():
    return load_digits()


def test_split_keeps_the_order_of_scikit_learn(digits):
    train, test = digits
    assert train.images.shape == (1000, 32, 32, 3)
    assert test.images.shape == (797, 32, 32, 3)
    assert np.array_equal(np.concatenate([train.labels, test.labels]), sklearn_digits().target)


def test_enlarged_digit_averages_back_to_the_original(digits):
    small = sklearn_digits().images[:50]
    large = digits[0].images[:50, :, :, 0].astype(float).reshape(50, 8, 4, 8, 4).mean((2, 4)) * 16 / 255
    assert np.abs(large - small).mean() < 1  # of a range of 16
    assert np.corrcoef(large.ravel(), small.ravel())[0, 1] > 0.98


def test_channels_are_equal_and_the_range_is_used(digits):
    images = digits[0].images
    assert np.array_equal(images[..., 0], images[..., 1])
    assert np.array_equal(images[..., 0], images[..., 2])
    assert images.min() == 0
    assert images.max() == 255


def test_pixels_are_the_same_on_every_load(digits):
    assert load_digits()[1].sha256() == digits[1].sha256()
    assert digits[0].sha256() != digits[1].sha256()


def test_to_tensor_is_channels_first_in_unit_range(digits):
    images = digits[1].images[:3]
    tensor = to_tensor(images)
    assert tensor.shape == (3, 3, 32, 32)
    assert tensor.dtype == torch.float32
    assert tensor[1, 2, 5, 7] == pytest.approx(images[1, 5, 7, 2] / 255)
    tensor.zero_()
    assert images.any()  # a copy: the data set is not written through


def test_batches_cover_the_data_once_and_keep_the_short_last_batch(digits):
    data = digits[1]
    loader = batches(data.images, data.labels, 100)
    parts = list(loader)
    assert len(loader) == len(parts) == 8
    assert len(loader.dataset) == 797
    assert [len(labels) for _, labels in parts] == [100] * 7 + [97]
    assert torch.equal(torch.cat([images for images, _ in parts]), to_tensor(data.images))
    assert torch.equal(torch.cat([labels for _, labels in parts]), torch.from_numpy(data.labels))


def test_shuffled_passes_differ_repeat_under_the_seed_and_leave_the_global_state_alone():
    images = np.arange(20, dtype=np.uint8).reshape(20, 1, 1, 1)
    labels = np.arange(20)
    before = torch.random.get_rng_state()
    loader = batches(images, labels, 7, shuffle_seed=3)
    first, second = (torch.cat([y for _, y in loader]) for _ in range(2))
    again = torch.cat([y for _, y in batches(images, labels, 7, shuffle_seed=3)])
    assert torch.equal(before, torch.random.get_rng_state())
    assert sorted(first.tolist()) == list(range(20))
    assert not torch.equal(first, second)
    assert torch.equal(first, again)
    for x, y in loader:  # images stay with their labels
        torch.testing.assert_close(x.flatten() * 255, y.float())


def test_network_is_seeded_without_touching_the_global_state():
    before = torch.random.get_rng_state()
    one, same, other = (digits_network(seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["conv1.weight"], other["conv1.weight"])


def test_wrong_data_is_refused():
    images, labels = np.zeros((2, 4, 4, 3), np.uint8), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="`images` to be uint8"):
        ImageData(images.astype(float), labels, ("a",), "x")
    with pytest.raises(ValueError, match="`labels` to be int64"):
        ImageData(images, labels[:1], ("a",), "x")
    with pytest.raises(ValueError, match="`labels` to be 0 to 0"):
        ImageData(images, labels + 1, ("a",), "x")
    with pytest.raises(ValueError, match="`batch_size` to be at least 1"):
        batches(images, labels, 0)
    with pytest.raises(ValueError, match="a label for each image"):
        batches(images, labels[:1], 1)

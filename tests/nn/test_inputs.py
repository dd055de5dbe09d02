from __future__ import annotations

import pytest
import torch
from torch import nn

from vcotta import build_adapter
from vcotta.data import load_digits
from vcotta.nn.inputs import check_accepted, check_images, labelled_batches

IMAGES = torch.linspace(0, 1, 48).reshape(1, 3, 4, 4)


@pytest.mark.parametrize("slip", [lambda x: (x - 0.5) / 0.2, lambda x: (x - 0.48) / 0.23, lambda x: 2 * x])
def test_normalised_images_are_refused_with_how_to_undo_it(slip) -> None:
    with pytest.raises(ValueError, match=r"lie in \[0, 1\], but got values from .*Undo the mean and std"):
        check_images(slip(IMAGES))


@pytest.mark.parametrize("brightest", [255, 60])
def test_bytes_are_refused_with_how_to_scale_them(brightest) -> None:
    with pytest.raises(ValueError, match="Divide by 255"):
        check_images(brightest * IMAGES)


@pytest.mark.parametrize("slip", [lambda x: 1.0002 * x, lambda x: x - 0.001])
def test_images_slightly_out_of_range_are_refused_with_advice_to_clamp(slip) -> None:
    with pytest.raises(ValueError, match=r"from (0 to 1\.0002|-0\.001 to 0\.999)\. .*clamp\(0, 1\)"):
        check_images(slip(IMAGES))


def test_a_loaders_batch_is_refused_with_advice_to_pass_its_images() -> None:
    with pytest.raises(TypeError, match=r"got list\. Of a batch of a loader pass the images: batch\[0\]"):
        check_images([IMAGES, torch.zeros(1)])
    with pytest.raises(TypeError, match=r"got ndarray\. Try torch\.from_numpy"):
        check_images(IMAGES.numpy())


def test_images_in_their_range_pass() -> None:
    check_images(IMAGES)


@pytest.mark.parametrize(
    ("source", "got"),
    [
        ([IMAGES], r"a tensor of shape \(1, 3, 4, 4\)"),
        ((IMAGES, torch.zeros(1)), r"a tensor of shape \(1, 3, 4, 4\)"),
        (torch.utils.data.TensorDataset(IMAGES, torch.zeros(1)), r"images of shape \(3, 4, 4\)"),
    ],
)
def test_source_data_without_batches_is_refused_with_how_to_wrap_it(source, got) -> None:
    with pytest.raises(TypeError, match=f"to yield batches, .*but got {got}.*DataLoader"):
        list(labelled_batches(source))


@pytest.mark.parametrize(
    ("batch", "got"),
    [
        ((IMAGES.numpy(), torch.zeros(1).numpy()), r"\(ndarray, ndarray\)\. Make tensors of them: .*from_numpy"),
        ([IMAGES, [3]], r"\(Tensor, list\)\. Make tensors of them: torch\.tensor\(labels\)"),
        ((IMAGES, torch.zeros(1).numpy()), r"\(Tensor, ndarray\)\. Make tensors of them"),
    ],
)
def test_pairs_that_are_no_tensors_are_refused_by_their_types(batch, got) -> None:
    with pytest.raises(TypeError, match=rf"to yield pairs of torch tensors, \(images, labels\), but got {got}"):
        list(labelled_batches([batch]))


def test_a_network_that_ends_in_a_softmax_is_refused_and_one_in_log_softmax_is_not() -> None:
    body = nn.Sequential(nn.Flatten(), nn.Linear(48, 4))
    with pytest.raises(ValueError, match=r"its outputs are probabilities.* Remove its softmax"):
        check_accepted(nn.Sequential(body, nn.Softmax(-1)), IMAGES)
    assert check_accepted(nn.Sequential(body, nn.LogSoftmax(-1)), IMAGES) == 4
    body[1].weight.data.zero_()  # outputs that are the same for all images are no sign of a softmax
    body[1].bias.data.fill_(0.25)
    assert check_accepted(body, IMAGES.expand(2, -1, -1, -1)) == 4


@pytest.mark.parametrize(
    ("batch", "got"),
    [
        ((IMAGES, torch.zeros(1), torch.zeros(1)), r"a tuple of 3\. Make pairs .*collate_fn.*\(b\[0\], b\[1\]\)"),
        (
            {"image": IMAGES, "label": torch.zeros(1)},
            r"a dict of image, label\. Make pairs .*\(b\['image'\], b\['label'\]\)",
        ),
    ],
    ids=["triple", "dict"],
)
def test_batches_of_another_form_are_refused_with_how_to_make_pairs_of_them(batch, got) -> None:
    with pytest.raises(TypeError, match=f"but got {got}"):
        list(labelled_batches([batch]))
    with pytest.raises(TypeError, match=r"Of a batch of a loader pass the images: batch\[(0|'image')\]"):
        check_images(batch)


def test_a_data_set_in_place_of_a_loader_is_refused_with_how_to_make_one() -> None:
    data = load_digits()[0]
    with pytest.raises(TypeError, match=r"yields \(images, labels\), but got ImageData. Make one: vcotta.data.batches"):
        build_adapter("eata", nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), source=data)
    with pytest.raises(TypeError, match=r"but got int\.$"):
        next(labelled_batches(3))


def test_images_with_channels_last_are_refused_with_how_to_turn_them() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(ValueError, match=r"shape \(8, 8, 3\).*channels seem to come last.*permute\(0, 3, 1, 2\)"):
        check_accepted(net, torch.rand(2, 8, 8, 3))
    with pytest.raises(ValueError, match=r"shape \(1, 8, 8\)") as other:
        check_accepted(net, torch.rand(2, 1, 8, 8))
    assert "permute" not in str(other.value)


@pytest.mark.parametrize(
    ("shape", "advice"),
    [
        ((3, 8, 8), r"images\.unsqueeze\(0\)"),
        ((8, 8, 3), r"permute\(2, 0, 1\)\.unsqueeze\(0\)"),
        ((50, 8, 8), r"images\.unsqueeze\(1\)"),
    ],
)
def test_of_three_dimensions_the_missing_one_is_named(shape, advice) -> None:
    with pytest.raises(ValueError, match=advice):
        check_images(torch.rand(shape))


def test_a_network_with_one_output_is_refused_with_how_to_give_two() -> None:
    with pytest.raises(ValueError, match="two classes or more"):
        check_accepted(nn.Sequential(nn.Flatten(), nn.Linear(12, 1)), torch.rand(2, 3, 2, 2))

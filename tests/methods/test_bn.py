from __future__ import annotations

import torch

from vcotta import BN, Source


def test_bn_is_memoryless(tiny, images) -> None:
    adapter = BN(tiny())
    first = adapter(images())
    adapter(images(seed=1))
    assert torch.equal(adapter(images()), first)


def test_bn_uses_mean_and_biased_variance_of_the_batch(tiny, images) -> None:
    model, x = tiny(), images()
    h = model.conv1(x)
    h = (h - h.mean((0, 2, 3), keepdim=True)) / (h.var((0, 2, 3), keepdim=True, unbiased=False) + 1e-5).sqrt()
    h = model.conv2(torch.relu(h))
    h = (h - h.mean((0, 2, 3), keepdim=True)) / (h.var((0, 2, 3), keepdim=True, unbiased=False) + 1e-5).sqrt()
    expected = model.fc(torch.relu(h).mean((2, 3))).log_softmax(-1)
    assert torch.allclose(BN(model)(x), expected, atol=1e-5)


def test_permuting_a_batch_permutes_the_predictions(tiny, images) -> None:
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    assert torch.allclose(BN(tiny())(images()[order]), BN(tiny())(images())[order], atol=1e-5)


def test_without_batch_norm_bn_is_source(tiny, images) -> None:
    assert torch.equal(BN(tiny("group"))(images()), Source(tiny("group"))(images()))

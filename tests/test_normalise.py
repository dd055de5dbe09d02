from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from vcotta.normalise import normalise


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 4, 5)])
def test_it_is_batch_norm_by_the_statistics_given(shape, affine) -> None:
    x, mean, variance = torch.rand(shape), torch.rand(3), torch.rand(3) + 0.5
    weight, bias = (torch.rand(3), torch.rand(3)) if affine else (None, None)
    expected = F.batch_norm(x, mean, variance, weight, bias, eps=1e-3)
    assert torch.allclose(normalise(x, mean, variance, weight, bias, 1e-3), expected, atol=1e-6)


def test_gradients_reach_the_statistics() -> None:
    x = torch.rand(3, 2, 2, dtype=torch.double)
    mean, variance = (torch.rand(2, dtype=torch.double).add(0.5).requires_grad_() for _ in range(2))
    assert torch.autograd.gradcheck(lambda m, v: normalise(x, m, v, None, None, 1e-5), (mean, variance))


def test_images_of_less_precision_are_normalised_in_that_of_the_statistics_and_keep_their_own() -> None:
    x, mean, variance = torch.rand(64, 3, dtype=torch.bfloat16), torch.full((3,), 0.501), torch.full((3,), 1e-4)
    found = normalise(x, mean, variance, None, None, 0.0)
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.float(), (x.float() - mean) * 100, rtol=1e-2, atol=1e-2)

"""Fusion of Gaussian posteriors that began at one prior."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["fuse_gaussians"]

Gaussian = tuple[Tensor, Tensor]


@torch.no_grad()
def fuse_gaussians(prior: Gaussian, posteriors: Sequence[Gaussian], weights: Sequence[float]) -> Gaussian:
    r"""Fuse diagonal Gaussians q_k that were each learned from the same prior p_0, element by element, in float64.

    Each posterior is the prior times the evidence of its own data, :math:`q_k \propto p_0 L_k`. If the data are
    independent, the posterior of all of them is :math:`p_0 \prod_k L_k = p_0^{1-K} \prod_k q_k`: the prior counts once
    and not K times. With weights w, by which evidence counts,

    .. math:: q^* \propto p_0^{1-\sum_k w_k} \prod_k q_k^{w_k}

    With precisions :math:`\lambda = 1/\sigma^2`, completing the square gives

    .. math:: \lambda^* = \lambda_0 + \sum_k w_k (\lambda_k - \lambda_0), \qquad
        \mu^* = \mu_0 + \frac{1}{\lambda^*} \sum_k w_k \lambda_k (\mu_k - \mu_0)

    Weights of 1 give the product over the prior. Weights whose sum is 1 give the logarithmic pool
    :math:`\prod_k q_k^{w_k}`, for posteriors that have seen the same: that of equal ones is that one.

    A posterior wider than the prior has :math:`\lambda_k < \lambda_0`, and enough of them would make
    :math:`\lambda^*` zero or negative. It is kept at half the smallest precision or more,
    :math:`\lambda^* \ge \frac12 \min(\lambda_0, \lambda_1, \dots, \lambda_K)`: elsewhere all weights of that element
    are multiplied by the largest s below 1 that has it so. There is one, as :math:`s = 1 / \sum_k w_k` gives the pool,
    whose precision is a mean of these; and s falls from 1 without a jump.

    Args:
        prior: Mean and standard deviation of the prior, in one shape.
        posteriors: The same of each posterior.
        weights: A number of at least 0 for each posterior.

    Returns:
        Mean and standard deviation, float64.

    Example:
        >>> prior, one = (torch.zeros(1), torch.ones(1)), (torch.ones(1), torch.full((1,), 0.5**0.5))
        >>> fuse_gaussians(prior, [one, one], [1, 1])  # precisions 1, 2 and 2: 3, and mean (2 + 2) / 3
        (tensor([1.3333], dtype=torch.float64), tensor([0.5774], dtype=torch.float64))
        >>> fuse_gaussians(prior, [one, one], [0.5, 0.5])
        (tensor([1.], dtype=torch.float64), tensor([0.7071], dtype=torch.float64))
    """
    mean, precision = prior[0].double(), prior[1].double().square().reciprocal()
    more, shift, least = torch.zeros_like(mean), torch.zeros_like(mean), precision
    for (own_mean, own_sigma), weight in zip(posteriors, weights, strict=True):
        own = own_sigma.double().square().reciprocal()
        more += weight * (own - precision)
        shift += weight * own * (own_mean.double() - mean)
        least = torch.minimum(least, own)
    share = torch.where(precision + more < least / 2, (least / 2 - precision) / more, 1.0)
    fused = precision + share * more
    return mean + share * shift / fused, fused.rsqrt()

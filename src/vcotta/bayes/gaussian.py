"""Diagonal Gaussians: softplus and its inverse, the closed-form KL divergence, the mixture bound."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.bayes.layers import variational_parameters

__all__ = ["gaussian_kl", "inverse_softplus", "kl_divergence", "mixture_kl_bound"]


def inverse_softplus(sigma: Tensor) -> Tensor:
    r"""Return rho with softplus(rho) = sigma, that is :math:`\rho = \sigma + \log(1 - e^{-\sigma})`.

    Example:
        >>> inverse_softplus(torch.tensor([0.5])).exp().log1p()
        tensor([0.5000])
    """
    return sigma + torch.log(-torch.expm1(-sigma))


def gaussian_kl(mean_q: Tensor, sigma_q: Tensor, mean_p: Tensor, sigma_p: Tensor) -> Tensor:
    r"""KL(q || p) between diagonal Gaussians, summed over all elements, in float32 or better.

    .. math:: \sum_d \log\frac{\sigma_p}{\sigma_q} + \frac{\sigma_q^2 + (\mu_q - \mu_p)^2}{2\sigma_p^2} - \frac12

    Example:
        >>> one = torch.ones(3)
        >>> gaussian_kl(0 * one, one, one, one)
        tensor(1.5000)
    """
    if mean_q.dtype in (torch.float16, torch.bfloat16):
        mean_q, sigma_q, mean_p, sigma_p = (t.float() for t in (mean_q, sigma_q, mean_p, sigma_p))
    ratio = sigma_q / sigma_p
    shift = (mean_q - mean_p) / sigma_p
    return (0.5 * (ratio.square() + shift.square() - 1) - ratio.log()).sum()


def kl_divergence(q: nn.Module, p: nn.Module) -> Tensor:
    """KL(q || p) between two variational networks of the same shape (paper, equation of the KL term).

    The sum runs over every variational weight and bias; a tensor that several layers share counts once. Parameters
    without a distribution (normalisation layers) take no part.

    Args:
        q: The network whose parameters receive the gradient, usually the student.
        p: The prior. Freeze it (``requires_grad_(False)``) if it is not to be trained.

    Returns:
        A scalar; exactly zero if ``q`` and ``p`` hold the same values.

    Raises:
        ValueError: If a network is not variational or the two do not have the same layers.

    Example:
        >>> from vcotta.bayes import to_variational
        >>> net = to_variational(nn.Linear(4, 2))
        >>> kl_divergence(net, net).item()
        0.0
    """
    terms = []
    posterior, prior = list(variational_parameters(q)), list(variational_parameters(p))
    shapes_q = [(name, tuple(mean.shape)) for name, mean, _ in posterior]
    shapes_p = [(name, tuple(mean.shape)) for name, mean, _ in prior]
    if shapes_q != shapes_p:
        differing = next((a for a, b in zip(shapes_q, shapes_p, strict=False) if a != b), None)
        raise ValueError(
            f"Expected two variational networks of the same shape, but they have {len(shapes_q)} and {len(shapes_p)} "
            f"variational parameters{f' and first differ at {differing[0]!r}' if differing else ''}. "
            "Build both from the same model."
        )
    if not posterior:
        raise ValueError(
            "Expected variational networks, but neither has a variational layer. Call to_variational first."
        )
    for (_, mean_q, rho_q), (_, mean_p, rho_p) in zip(posterior, prior, strict=True):
        terms.append(gaussian_kl(mean_q, F.softplus(rho_q), mean_p, F.softplus(rho_p)))
    return torch.stack(terms).sum()


def mixture_kl_bound(q: nn.Module, source_prior: nn.Module, teacher_prior: nn.Module, alpha: float | Tensor) -> Tensor:
    r"""Upper bound of KL(q || alpha * source_prior + (1 - alpha) * teacher_prior), from the convexity of KL.

    .. math:: \alpha\,\mathrm{KL}(q\|p_1) + (1-\alpha)\,\mathrm{KL}(q\|\bar p)

    Example:
        >>> from vcotta.bayes import to_variational
        >>> net = to_variational(nn.Linear(4, 2))
        >>> mixture_kl_bound(net, net, net, alpha=0.3).item()
        0.0
    """
    return alpha * kl_divergence(q, source_prior) + (1 - alpha) * kl_divergence(q, teacher_prior)

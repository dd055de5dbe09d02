"""Diagonal Gaussians: softplus and its inverse, the closed-form KL divergence, the mixture bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vcotta.bayes.layers import variational_parameters
from vcotta.nn.elementwise import alike, flat, for_each_layer, fused, shaped

__all__ = ["gaussian_kl", "inverse_softplus", "kl_divergence", "kl_to_priors", "mixture_kl_bound"]


def inverse_softplus(sigma: Tensor) -> Tensor:
    r"""Return rho with softplus(rho) = sigma, that is :math:`\rho = \sigma + \log(1 - e^{-\sigma})`."""
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


def kl_divergence(q: nn.Module, p: nn.Module, *, compiled: bool = False) -> Tensor:
    """KL(q || p) between two variational networks of the same shape (paper, equation of the KL term).

    The sum runs over every variational weight and bias, a shared tensor once. It is exactly zero if ``q`` and ``p``
    hold the same values. A prior with ``requires_grad`` receives a gradient, too. Tensors that both networks share
    cost nothing. ``compiled`` compiles the arithmetic
    for a frozen prior, which is faster on a GPU (``Runtime.compile``).

    Raises:
        ValueError: If a network is not variational or the two do not have the same layers.

    Example:
        >>> from vcotta.bayes import to_variational
        >>> net = to_variational(nn.Linear(4, 2))
        >>> kl_divergence(net, net).item()
        0.0
    """
    posterior = _checked(q)
    prior = _checked(p, like=posterior)
    if any(tensor.requires_grad for _, mean, rho in prior for tensor in (mean, rho)):
        terms = [
            gaussian_kl(mean_q, F.softplus(rho_q), mean_p, F.softplus(rho_p))
            for (_, mean_q, rho_q), (_, mean_p, rho_p) in zip(posterior, prior, strict=True)
        ]
        return torch.stack(terms).sum()
    return _kl_to_frozen(posterior, [(1.0, prior)], compiled)[0]


def mixture_kl_bound(
    q: nn.Module, source_prior: nn.Module, teacher_prior: nn.Module, alpha: float | Tensor, *, compiled: bool = False
) -> Tensor:
    r"""Upper bound of KL(q || alpha * source_prior + (1 - alpha) * teacher_prior), from the convexity of KL.

    .. math:: \alpha\,\mathrm{KL}(q\|p_1) + (1-\alpha)\,\mathrm{KL}(q\|\bar p)

    Priors and alpha are constants here: no gradient reaches them. ``compiled`` is that of `kl_divergence`.
    """
    return kl_to_priors(q, [(alpha, source_prior), (1 - alpha, teacher_prior)], compiled=compiled)[0]


def kl_to_priors(
    q: nn.Module, priors: Sequence[tuple[float | Tensor, nn.Module]], *, compiled: bool = False
) -> tuple[Tensor, Tensor]:
    r"""The sum of KL(q || prior) over all priors by their weights, and each divergence without gradient, (priors,).

    Priors and weights are constants here, as in `mixture_kl_bound`, which this gives in one pass with its parts.

    Example:
        >>> from vcotta.bayes import to_variational
        >>> net = to_variational(nn.Linear(4, 2))
        >>> kl_to_priors(net, [(0.3, net), (0.7, to_variational(nn.Linear(4, 2)))])[1][0]
        tensor(0.)
    """
    posterior = _checked(q)
    weights = [weight.reshape(()) if isinstance(weight, Tensor) else weight for weight, _ in priors]
    checked = [_checked(prior, like=posterior) for _, prior in priors]
    return _kl_to_frozen(posterior, list(zip(weights, checked, strict=True)), compiled)


_Parameters = list[tuple[str, Tensor, Tensor]]


def _checked(net: nn.Module, like: _Parameters | None = None) -> _Parameters:
    """The variational parameters of a network; raises if there are none, or other shapes than ``like``."""
    found = list(variational_parameters(net))
    if like is not None:
        shapes, expected = ([(name, tuple(mean.shape)) for name, mean, _ in each] for each in (found, like))
        if shapes != expected:
            differing = next((b for a, b in zip(shapes, expected, strict=False) if a != b), None)
            raise ValueError(
                f"Expected two variational networks of the same shape, but they have {len(expected)} and {len(shapes)} "
                f"variational parameters{f' and first differ at {differing[0]!r}' if differing else ''}. "
                "Build both from the same model."
            )
    if not found:
        raise ValueError(
            "Expected variational networks, but neither has a variational layer. Call to_variational first."
        )
    return found


def _kl_to_frozen(
    posterior: _Parameters, priors: list[tuple[float | Tensor, _Parameters]], compiled: bool
) -> tuple[Tensor, Tensor]:
    """`kl_to_priors` of priors without gradient, in float32 or better."""
    differs = [
        any(prior[place][1] is not mean or prior[place][2] is not rho for _, prior in priors)
        for place, (_, mean, rho) in enumerate(posterior)
    ]
    if not any(differs):
        kind = torch.promote_types(posterior[0][1].dtype, torch.float32)
        return posterior[0][1].new_zeros((), dtype=kind), posterior[0][1].new_zeros(len(priors), dtype=kind)
    if not all(differs):
        priors = [(weight, list(compress(prior, differs))) for weight, prior in priors]
        posterior = list(compress(posterior, differs))
    means, rhos = [mean for _, mean, _ in posterior], [rho for _, _, rho in posterior]
    if any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in (*means, *rhos)):
        posterior = [(name, mean.float(), rho.float()) for name, mean, rho in posterior]
        priors = [(weight, [(name, m.float(), r.float()) for name, m, r in prior]) for weight, prior in priors]
        return _kl_to_frozen(posterior, priors, compiled)
    blank = means[0].detach().new_ones(())
    weights = torch.stack([blank * weight for weight, _ in priors])
    frozen = [prior for _, prior in priors]
    if not torch.is_grad_enabled():
        values = _over_tensors(_kl_values, weights, frozen, compiled, means, rhos)[0]
        return (weights * values).sum(), values
    weighted, values = _FrozenPriorKL.apply(weights, frozen, compiled, *means, *rhos)
    return weighted, values


def _over_tensors(
    formula: Callable[..., tuple[Tensor, ...]],
    weights: Tensor,
    priors: list[_Parameters],
    compiled: bool,
    means: Sequence[Tensor],
    rhos: Sequence[Tensor],
) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """Apply a formula to each tensor: the divergence to each prior, and its other results in the tensor's shape."""
    layers = [
        [mean, rho, *(tensor for prior in priors for tensor in prior[place][1:])]
        for place, (mean, rho) in enumerate(zip(means, rhos, strict=True))
    ]
    dense = [compiled and alike(*layer) for layer in layers]
    rest = iter(for_each_layer(partial(formula, weights), list(compress(layers, [not one for one in dense]))))
    values, others = list[Tensor](), list[tuple[Tensor, ...]]()
    for layer, is_dense in zip(layers, dense, strict=True):
        found = fused(formula)(weights, *map(flat, layer)) if is_dense else next(rest)
        values += found[: len(priors)]
        slopes = found[len(priors) :]
        others.append(tuple(shaped(slope, layer[0]) for slope in slopes) if is_dense else slopes)
    # Not compiled: over an unknown length the compiler would sum in one block.
    sums = torch.stack([value.sum() for value in values])
    return sums.view(-1, len(priors)).sum(0), others


class _FrozenPriorKL(torch.autograd.Function):
    r"""Value and gradient of :math:`\sum_k w_k\,\mathrm{KL}(q\|p_k)` in one pass, without an autograd graph."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, priors: list[_Parameters], compiled: bool, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        half = len(parameters) // 2
        formula, means, rhos = _kl_and_slopes, parameters[:half], parameters[half:]
        values, slopes = _over_tensors(formula, weights, priors, compiled, means, rhos)
        ctx.save_for_backward(*(to_mean for to_mean, _ in slopes), *(to_rho for _, to_rho in slopes))
        ctx.mark_non_differentiable(values)
        return (weights * values).sum(), values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, None, *torch._foreach_mul(ctx.saved_tensors, grad))


def _kl_values(_: Tensor, mean: Tensor, rho: Tensor, *priors: Tensor) -> tuple[Tensor, ...]:
    """Each weight's divergence to (mean, rho) of every prior.

    With r = sigma_q / sigma_p and s = (mu_q - mu_p) / sigma_p the divergence of one weight is
    (r - 1) - log(1 + (r - 1)) + ((r - 1)^2 + s^2) / 2, exactly zero at r = 1, s = 0.
    """
    sigma, values = F.softplus(rho), list[Tensor]()
    for prior_mean, prior_rho in zip(priors[::2], priors[1::2], strict=True):
        scale = F.softplus(prior_rho)
        excess, shift = sigma / scale - 1, (mean - prior_mean) / scale
        values.append(excess - excess.log1p() + 0.5 * (excess.square() + shift.square()))
    return tuple(values)


def _kl_and_slopes(weights: Tensor, mean: Tensor, rho: Tensor, *priors: Tensor) -> tuple[Tensor, ...]:
    """`_kl_values`, and the slopes of their weighted sum for mean and rho.

    Of one prior they are s / sigma_p and (r / sigma_p - 1 / sigma_q) softplus'.
    """
    sigma, to_mean, to_sigma = F.softplus(rho), torch.zeros_like(mean), torch.zeros_like(mean)
    for weight, prior_mean, prior_rho in zip(weights, priors[::2], priors[1::2], strict=True):
        scale = F.softplus(prior_rho)
        to_mean = to_mean + weight * (mean - prior_mean) / scale.square()
        to_sigma = to_sigma + weight * (sigma / scale.square() - 1 / sigma)
    return (*_kl_values(weights, mean, rho, *priors), to_mean, to_sigma * rho.sigmoid())

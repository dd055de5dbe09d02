"""Layers whose weights are Gaussians: torch's own, with a standard deviation added to every weight and bias."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vcotta._util.errors import unknown_name
from vcotta.nn.sharing import current

__all__ = [
    "Sampling",
    "VariationalConv1d",
    "VariationalConv2d",
    "VariationalLayer",
    "VariationalLinear",
    "draw",
    "is_variational",
    "sampling",
    "variational_layers",
    "variational_parameters",
]

Sampling = Literal["local", "weight"]
"""How a pass draws: ``local`` reparameterisation (paper), or one draw of the ``weight`` a batch (authors' code)."""


class _Perturb(torch.autograd.Function):
    """Draw from N(mean, variance) element by element, saving one tensor for the gradient instead of four.

    With y = mean + sqrt(variance) * eps the gradient of the variance is eps / (2 sqrt(variance)). A variance of zero,
    as of a layer without bias whose inputs are all zero, is clamped above zero.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor) -> Tensor:
        deviation, noise = variance.clamp_min(1e-20).sqrt_(), current().noise_like(mean)
        y = torch.addcmul(mean, deviation, noise)
        ctx.save_for_backward(noise.div_(deviation).mul_(0.5))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (slope,) = ctx.saved_tensors
        return grad, grad * slope


class _WithSquare(torch.autograd.Function):
    """An input and its square; their gradient takes one pass over memory instead of autograd's four."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        # A product, as autocast computes squares in float32, at three times the memory traffic.
        return x.view_as(x), x * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_of_square: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.addcmul(grad, grad_of_square, x, value=2)


class VariationalLayer(nn.Module):
    r"""Base of the variational layers: each weight is N(weight, softplus(weight_rho)^2), and so is each bias.

    ``weight`` and ``bias`` are the means, under torch's own names, so that a plain checkpoint loads and leaves the
    standard deviations as they are. Outside ``with sampling(net):`` a layer computes with the means, by torch's code.

    With local reparameterisation (Kingma et al., 2015; the paper's choice) the outputs are drawn, not the weights:

    .. math:: y = f(x; \mu_w, \mu_b) + \sqrt{f(x^2; \sigma_w^2, \sigma_b^2)}\,\epsilon, \quad \epsilon \sim N(0, 1)

    with one epsilon for each element of the output. The authors' code draws the weights once per batch instead,
    which is ``sampling(net, "weight")``.
    """

    sampling: Sampling | None = None
    _means: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def __init__(self, *args: Any, sigma: float = 0.01, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._attach(sigma)

    def gaussians(self) -> Iterator[tuple[str, Tensor, nn.Parameter]]:
        """Yield (name, mean, rho) for each weight and bias of this layer.

        Example:
            >>> [name for name, _, _ in VariationalLinear(2, 2).gaussians()]
            ['weight', 'bias']
        """
        for name in self._means:
            if getattr(self, name) is not None:
                yield name, getattr(self, name), getattr(self, f"{name}_rho")

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors):  # type: ignore[no-untyped-def]
        """Load as usual, but accept a plain checkpoint, which has no standard deviations."""
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)
        for name, _, _ in self.gaussians():
            if f"{prefix}{name}" in state_dict and f"{prefix}{name}_rho" in missing:
                missing.remove(f"{prefix}{name}_rho")

    def _attach(self, sigma: float) -> None:
        """Add the standard deviations, all equal to ``sigma``."""
        rho = torch.tensor(sigma, dtype=torch.float64).expm1().log().item()
        for name in self._means:
            mean = getattr(self, name)
            filled = None if mean is None else nn.Parameter(torch.full_like(mean, rho), mean.requires_grad)
            self.register_parameter(f"{name}_rho", filled)

    def _detach(self) -> None:
        """Drop the standard deviations."""
        for name in self._means:
            delattr(self, f"{name}_rho")
        self.__dict__.pop("sampling", None)


Gaussian = tuple[Tensor, Tensor]
"""Mean and rho."""


def draw(
    affine: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    x: Tensor,
    weight: Gaussian,
    bias: Gaussian | None,
    mode: Sampling,
) -> Tensor:
    """Draw an affine map's output, see `VariationalLayer`; ``affine`` takes an input, a weight and a bias."""
    sigma = F.softplus(weight[1])
    bias_mean, bias_sigma = (None, None) if bias is None else (bias[0], F.softplus(bias[1]))
    if mode == "weight":
        drawn = weight[0] + sigma * torch.randn_like(sigma)
        if bias_mean is not None and bias_sigma is not None:
            bias_mean = bias_mean + bias_sigma * torch.randn_like(bias_sigma)
        return affine(x, drawn, bias_mean)
    x, square = _WithSquare.apply(x)
    mean = affine(x, weight[0], bias_mean)
    variance = affine(square, sigma * sigma, None if bias_sigma is None else bias_sigma * bias_sigma)
    noisy: Tensor = _Perturb.apply(mean, variance)
    return noisy


class _VariationalAffine(VariationalLayer):
    """Base of the layers that are one affine map."""

    weight: Tensor
    bias: Tensor | None
    weight_rho: nn.Parameter
    bias_rho: nn.Parameter | None

    def _affine(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's linear map with the given weight and bias."""
        raise AssertionError(f"{type(self).__name__} defines no linear map")

    def forward(self, x: Tensor) -> Tensor:
        """Mean mode: exactly torch's layer. Sampling mode: a draw, fresh at every call."""
        if self.sampling is None:
            return self._affine(x, self.weight, self.bias)
        bias = None if self.bias is None or self.bias_rho is None else (self.bias, self.bias_rho)
        return draw(self._affine, x, (self.weight, self.weight_rho), bias, self.sampling)


class VariationalLinear(_VariationalAffine, nn.Linear):  # type: ignore[misc]
    """``nn.Linear`` with Gaussian weights; see `VariationalLayer`. Extra argument ``sigma``: the standard deviation."""

    def _affine(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)


class _VariationalConv(_VariationalAffine):
    """Base of the convolutions."""

    def _affine(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor = self._conv_forward(x, weight, bias)  # type: ignore[operator]
        return y


class VariationalConv1d(_VariationalConv, nn.Conv1d):
    """``nn.Conv1d`` with Gaussian weights; see `VariationalLayer`. Extra argument ``sigma``: the standard deviation."""


class VariationalConv2d(_VariationalConv, nn.Conv2d):
    """``nn.Conv2d`` with Gaussian weights; see `VariationalLayer`. Extra argument ``sigma``: the standard deviation."""


def variational_layers(net: nn.Module) -> Iterator[tuple[str, VariationalLayer]]:
    """Yield (name, layer) for every variational layer, a layer used twice once."""
    for name, module in net.named_modules():
        if isinstance(module, VariationalLayer):
            yield name, module


def is_variational(net: nn.Module) -> bool:
    """Whether the network has a variational layer."""
    return next(variational_layers(net), None) is not None


def variational_parameters(net: nn.Module) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (name, mean, rho) for every variational weight and bias, a shared tensor once."""
    seen: set[int] = set()
    for name, layer in variational_layers(net):
        for kind, mean, rho in layer.gaussians():
            if id(mean) not in seen:
                seen.add(id(mean))
                yield f"{name}.{kind}" if name else kind, mean, rho


@contextmanager
def sampling(net: nn.Module, mode: Sampling = "local") -> Iterator[nn.Module]:
    """Draw in every pass of ``net`` within the block, see `Sampling`; outside it uses its means, also in training mode.

    Example:
        >>> net, x = VariationalLinear(3, 2), torch.ones(1, 3)
        >>> with sampling(net):
        ...     noisy = net(x)
        >>> torch.equal(noisy, net(x)), torch.equal(net(x), net(x))
        (False, True)
    """
    if mode not in get_args(Sampling):
        raise unknown_name("sampling", mode, get_args(Sampling))
    layers = [layer for _, layer in variational_layers(net)]
    if not layers:
        raise ValueError(
            f"Expected a variational network, but {type(net).__name__} has no variational layer. "
            "Convert it with to_variational(model) or warm_up(model, loader)."
        )
    before = [layer.sampling for layer in layers]
    for layer in layers:
        layer.sampling = mode
    try:
        with _unfused(net):
            yield net
    finally:
        for layer, was in zip(layers, before, strict=True):
            layer.sampling = was


@contextmanager
def _unfused(net: nn.Module) -> Iterator[None]:
    """Keep torch inside the block from its fused pass of encoder layers, which reads weights without calling layers.

    torch calls the layers one by one where there is a hook, and makes no nested tensors where an encoder says so.
    """
    hooks = [
        module.register_forward_pre_hook(lambda *_: None)
        for module in net.modules()
        if isinstance(module, nn.TransformerEncoderLayer)
    ]
    encoders = [module for module in net.modules() if isinstance(module, nn.TransformerEncoder)]
    nested = [encoder.use_nested_tensor for encoder in encoders]
    for encoder in encoders:
        encoder.use_nested_tensor = False
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for encoder, was in zip(encoders, nested, strict=True):
            encoder.use_nested_tensor = was

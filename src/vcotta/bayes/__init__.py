"""A network as a distribution: variational layers, conversion, divergences, the warm-up."""

from vcotta.bayes.attention import VariationalMultiheadAttention
from vcotta.bayes.convert import to_point, to_variational
from vcotta.bayes.fusion import fuse_gaussians
from vcotta.bayes.gaussian import gaussian_kl, inverse_softplus, kl_divergence, kl_to_priors, mixture_kl_bound
from vcotta.bayes.layers import (
    VariationalConv1d,
    VariationalConv2d,
    VariationalLayer,
    VariationalLinear,
    is_variational,
    sampling,
    variational_layers,
    variational_parameters,
)
from vcotta.bayes.warmup import WarmUpConfig, is_warmed_file, load_warmed, save_warmed, warm_up

__all__ = [
    "VariationalConv1d",
    "VariationalConv2d",
    "VariationalLayer",
    "VariationalLinear",
    "VariationalMultiheadAttention",
    "WarmUpConfig",
    "fuse_gaussians",
    "gaussian_kl",
    "inverse_softplus",
    "is_variational",
    "is_warmed_file",
    "kl_divergence",
    "kl_to_priors",
    "load_warmed",
    "mixture_kl_bound",
    "sampling",
    "save_warmed",
    "to_point",
    "to_variational",
    "variational_layers",
    "variational_parameters",
    "warm_up",
]

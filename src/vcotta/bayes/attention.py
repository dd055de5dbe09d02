"""torch's multi-head attention with Gaussian weights."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from vcotta.bayes.layers import Gaussian, VariationalLayer, VariationalLinear, draw

__all__ = ["VariationalMultiheadAttention", "VariationalOutProjection"]


class VariationalOutProjection(VariationalLinear, NonDynamicallyQuantizableLinear):  # type: ignore[misc]
    """The output projection of torch's attention, which has a class of its own there."""


class VariationalMultiheadAttention(VariationalLayer, nn.MultiheadAttention):
    """``nn.MultiheadAttention`` with Gaussian projection weights; see `VariationalLayer`.

    The projections of query, key and value, and of the output, have Gaussian weights and biases, under torch's names
    with ``_rho`` beside them (``in_proj_weight_rho``, ..., ``out_proj.weight_rho``). In sampling mode each projection
    is drawn as that of a linear layer is, with a noise of its own for every token; softmax and the sum over tokens are
    torch's. ``bias_k`` and ``bias_v`` stay point parameters. Outside ``with sampling(net):`` it computes by torch's
    code, its fused pass included. Extra argument ``sigma``: the standard deviation.

    Example:
        >>> from vcotta.bayes import sampling
        >>> attention, x = VariationalMultiheadAttention(8, 2, batch_first=True), torch.rand(1, 3, 8)
        >>> with sampling(attention):
        ...     noisy, weights = attention(x, x, x)
        >>> noisy.shape, weights.shape, torch.equal(noisy, attention(x, x, x)[0])
        (torch.Size([1, 3, 8]), torch.Size([1, 3, 3]), False)
    """

    _means: ClassVar = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias")

    def __init__(self, *args: object, sigma: float = 0.01, **kwargs: object) -> None:
        super().__init__(*args, sigma=sigma, **kwargs)
        self.out_proj.__class__ = VariationalOutProjection
        self.out_proj._attach(sigma)  # type: ignore[operator]

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Mean mode: exactly torch's layer. Sampling mode: a draw, fresh at every call; arguments are torch's."""
        if self.sampling is None:
            found: tuple[Tensor, Tensor | None] = nn.MultiheadAttention.forward(
                self, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
            return found
        if is_causal and attn_mask is None:
            raise ValueError("Expected `attn_mask` with `is_causal`, as torch does, but got none. Give the mask.")
        batched, self_attention = query.ndim == 3, query is key and key is value
        query, key, value = (self._batch_first(x, batched) for x in (query, key, value))
        q, k, v = (self._in_heads(x) for x in self._projected(query, key, value, self_attention))
        mask = _joined_mask(attn_mask, key_padding_mask, (*q.shape[:3], k.shape[2]), q.dtype)
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (
                torch.cat([x, self._in_heads(bias.expand(len(x), 1, -1).to(x.dtype))], 2)
                for x, bias in ((k, self.bias_k), (v, self.bias_v))
            )
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        if mask is not None:
            mask = F.pad(mask, (0, k.shape[2] - mask.shape[3]))
        dropout, weights = self.dropout if self.training else 0.0, None
        if need_weights:
            scores = q @ k.transpose(-2, -1) / self.head_dim**0.5
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            attended = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            attended = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        output = self.out_proj(attended.transpose(1, 2).flatten(2))
        if not batched:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights

    def _batch_first(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _in_heads(self, x: Tensor) -> Tensor:
        """(n, tokens, dimensions) as (n, heads, tokens, dimensions of a head)."""
        heads: Tensor = x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return heads

    def _projected(self, query: Tensor, key: Tensor, value: Tensor, self_attention: bool) -> tuple[Tensor, ...]:
        """Draws of query, key and value, of one projection where they are the same tokens."""
        assert self.sampling is not None
        known = {name: (mean, rho) for name, mean, rho in self.gaussians()}
        weight, bias = known.get("in_proj_weight"), known.get("in_proj_bias")
        if weight is not None and self_attention:
            return draw(F.linear, query, weight, bias, self.sampling).chunk(3, -1)
        weights = [known[f"{name}_proj_weight"] for name in "qkv"] if weight is None else _thirds(weight)
        biases = [None] * 3 if bias is None else _thirds(bias)
        inputs = zip((query, key, value), weights, biases, strict=True)
        return tuple(draw(F.linear, x, weight, bias, self.sampling) for x, weight, bias in inputs)


def _thirds(both: Gaussian) -> list[Gaussian]:
    return list(zip(*(tensor.chunk(3) for tensor in both), strict=True))


def _joined_mask(
    attention: Tensor | None, padding: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor | None:
    """Both masks as one that is added to the scores, (n, heads, queries, keys); None if there is none."""
    n, heads, queries, keys = shape
    masks = []
    if attention is not None:
        masks.append(attention.reshape(-1, heads if attention.ndim == 3 else 1, queries, keys))
    if padding is not None:
        masks.append(padding.reshape(n, 1, 1, keys))
    if not masks:
        return None
    added = [
        torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)
        if mask.dtype == torch.bool
        else mask.to(dtype)
        for mask in masks
    ]
    return sum(added[1:], added[0]).expand(shape)

"""Tokens of vision transformers with timm's names: drop some, insert some, and see what the class token sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vcotta.methods.parts.layers import classifier
from vcotta.nn.sharing import current

__all__ = [
    "catch_attention",
    "catch_class_tokens",
    "insert_tokens",
    "keep_patches",
    "require_tokens",
    "transformer",
]


def transformer(net: nn.Module) -> nn.Module | None:
    """Return the part of a network that has a class token and blocks of attention, or None.

    It is known by the names in timm's vision transformers and ours: ``cls_token``, ``blocks`` and, in each block,
    ``norm1`` and ``attn.qkv``. One with further tokens before the patches, such as registers, does not count.

    Example:
        >>> from vcotta.models import ViT
        >>> type(transformer(nn.Sequential(ViT(depth=1, width=8, heads=2)))).__name__
        'ViT'
        >>> transformer(nn.Linear(2, 2)) is None
        True
    """
    for module in net.modules():
        blocks = getattr(module, "blocks", None)
        if not isinstance(blocks, nn.Sequential | nn.ModuleList) or not isinstance(
            getattr(module, "cls_token", None), Tensor
        ):
            continue
        usual = all(hasattr(block, "norm1") and hasattr(getattr(block, "attn", None), "qkv") for block in blocks)
        if usual and len(blocks) and getattr(module, "num_prefix_tokens", 1) == 1:
            return module
    return None


def require_tokens(net: nn.Module, method: str, advice: str) -> nn.Module:
    """Return the `transformer` in a network, or raise ValueError with an advice."""
    found = transformer(net)
    if found is None:
        raise ValueError(
            f"Expected a vision transformer for {method}, with `cls_token` and `blocks` as timm's have, but got "
            f"{type(net).__name__}, which has no tokens. {advice}"
        )
    return found


@contextmanager
def _before_blocks(net: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside the block, change the tokens that enter the first block, (n, 1 + patches, width)."""
    found = transformer(net)
    assert found is not None
    first: nn.Module = next(iter(found.blocks.children()))  # type: ignore[union-attr]

    def hook(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (change(inputs[0]), *inputs[1:])

    handle = first.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def keep_patches(net: nn.Module, kept: Tensor) -> Iterator[None]:
    """Inside the block, drop all patches but those of these numbers, (batch, patches); the class token stays.

    Example:
        >>> from vcotta.models import ViT
        >>> net, images = ViT(depth=1, width=8, heads=2), torch.rand(2, 3, 32, 32)
        >>> with keep_patches(net, torch.tensor([[0, 5], [7, 63]])):
        ...     net.features(images).shape
        torch.Size([2, 3, 8])
    """

    def drop(tokens: Tensor) -> Tensor:
        index = torch.cat([kept.new_zeros(len(kept), 1), kept + 1], 1)
        return tokens.gather(1, index.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))

    with _before_blocks(net, drop):
        yield


@contextmanager
def insert_tokens(net: nn.Module, prompts: Tensor) -> Iterator[None]:
    """Inside the block, put tokens, (prompts, width), between the class token and the patches of every image.

    Example:
        >>> from vcotta.models import ViT
        >>> net = ViT(depth=1, width=8, heads=2)
        >>> with insert_tokens(net, torch.zeros(3, 8)):
        ...     net.features(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 68, 8])
    """

    def insert(tokens: Tensor) -> Tensor:
        own = prompts.to(tokens).expand(len(tokens), -1, -1)
        return torch.cat([tokens[:, :1], own, tokens[:, 1:]], 1)

    with _before_blocks(net, insert):
        yield


@contextmanager
def catch_attention(net: nn.Module) -> Iterator[list[Tensor]]:
    """Inside the block, collect of every pass how much the class token attends to each patch, (batch, patches).

    It is the attention of the last block, the mean over its heads, without gradient.
    """
    found = transformer(net)
    assert found is not None
    *_, last = found.blocks.children()  # type: ignore[union-attr]
    attention: Any = last.attn
    heads = int(getattr(attention, "num_heads", 0) or attention.heads)
    norms: Sequence[Any] = [getattr(attention, name, None) or nn.Identity() for name in ("q_norm", "k_norm")]
    caught: list[Tensor] = []

    @torch.no_grad()
    def catch(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
        queries, keys, _values = output.detach().float().unflatten(-1, (3, heads, -1)).unbind(2)
        query, keys = norms[0](queries[:, :1]), norms[1](keys)  # (n, tokens, heads, width of a head)
        scores = (query * keys).sum(-1) / keys.shape[-1] ** 0.5
        caught.append(current().whole_batch(scores.softmax(1)[:, 1:].mean(-1)))

    handle = attention.qkv.register_forward_hook(catch)
    try:
        yield caught
    finally:
        handle.remove()


@contextmanager
def catch_class_tokens(net: nn.Module) -> Iterator[list[Tensor]]:
    """Inside the block, collect the class token after every block of every pass, (batch, blocks x width), as float32.

    It is the one that the next block's first norm returns, after the last block what the classifier reads.

    Example:
        >>> from vcotta.models import ViT
        >>> net = ViT(depth=3, width=8, heads=2)
        >>> with catch_class_tokens(net) as caught:
        ...     _ = net(torch.rand(2, 3, 32, 32))
        >>> caught[0].shape
        torch.Size([2, 24])
    """
    found = transformer(net)
    assert found is not None
    _, *later = found.blocks.children()  # type: ignore[union-attr]
    parts: list[Tensor] = []
    caught: list[Tensor] = []

    def keep(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
        parts.append(output[:, 0])

    def join(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        tokens = torch.cat([*parts, inputs[0]], -1)
        parts.clear()
        caught.append(current().whole_batch(tokens.to(torch.promote_types(tokens.dtype, torch.float32))))

    handles = [block.norm1.register_forward_hook(keep) for block in later]  # type: ignore[union-attr]
    handles.append(classifier(net).register_forward_pre_hook(join))
    try:
        yield caught
    finally:
        for handle in handles:
            handle.remove()

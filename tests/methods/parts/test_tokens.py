from __future__ import annotations

import pytest
import torch
from torch import nn

from vcotta.methods.parts.tokens import (
    catch_attention,
    catch_class_tokens,
    insert_tokens,
    keep_patches,
    require_tokens,
    transformer,
)
from vcotta.models import ViT

from ..promises import tiny_vit


def test_dropping_no_patch_and_inserting_no_token_change_nothing(images) -> None:
    net = tiny_vit()
    expected = net(images())
    with keep_patches(net, torch.arange(4).expand(6, -1)), insert_tokens(net, torch.zeros(0, 8)):
        assert torch.equal(net(images()), expected)
    assert torch.equal(net(images()), expected)


def test_each_image_keeps_its_own_patches(images) -> None:
    net, kept = tiny_vit(), torch.tensor([[0, 3], [2, 1]])
    tokens = net.tokens(net.patches(images(2)))
    expected = net.run_blocks(torch.stack([tokens[i][[0, *(kept[i] + 1).tolist()]] for i in range(2)]))
    with keep_patches(net, kept):
        assert torch.equal(net.features(images(2)), expected)


def test_prompts_stand_between_the_class_token_and_the_patches(images) -> None:
    net, prompts = tiny_vit(), torch.randn(2, 8)
    tokens = net.tokens(net.patches(images(3)))
    expected = net.run_blocks(torch.cat([tokens[:, :1], prompts.expand(3, -1, -1), tokens[:, 1:]], 1))
    with insert_tokens(net, prompts):
        assert torch.equal(net.features(images(3)), expected)


def test_attention_is_that_of_the_class_token_in_the_last_block(images) -> None:
    net, x = tiny_vit(), images(3)
    with catch_attention(net) as caught:
        net(x)
        net(x)
    assert len(caught) == 2
    tokens = net.blocks[1].norm1(net.blocks[0](net.tokens(net.patches(x))))
    q, k, _ = net.blocks[1].attn.qkv(tokens).chunk(3, -1)
    weights = [(q[..., h : h + 4] @ k[..., h : h + 4].transpose(1, 2) / 2).softmax(-1) for h in (0, 4)]
    expected = (weights[0] + weights[1])[:, 0, 1:] / 2
    assert torch.allclose(caught[0], expected, atol=1e-6)
    assert not caught[0].requires_grad


def test_class_tokens_are_those_that_the_next_norm_returns(images) -> None:
    net, x = tiny_vit(), images(3)
    with catch_class_tokens(net) as caught:
        net(x)
    first = net.blocks[0](net.tokens(net.patches(x)))
    expected = torch.cat([net.blocks[1].norm1(first)[:, 0], net.norm(net.blocks[1](first))[:, 0]], -1)
    assert torch.equal(caught[0], expected)


def test_hooks_are_removed_even_after_an_error(images) -> None:
    net = tiny_vit()
    before = net(images())

    def fail() -> None:
        with catch_attention(net), catch_class_tokens(net), insert_tokens(net, torch.zeros(1, 8)):
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        fail()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert torch.equal(net(images()), before)


def test_only_networks_with_a_class_token_and_attention_blocks_have_tokens(tiny) -> None:
    net = ViT(8, depth=1, width=8, heads=2)
    assert transformer(nn.Sequential(nn.Identity(), net)) is net
    assert require_tokens(nn.Sequential(net), "rem", "") is net
    net.num_prefix_tokens = 5  # as timm's networks with registers say
    assert transformer(net) is None
    assert transformer(tiny()) is None
    with pytest.raises(ValueError, match=r"for rem, .* but got TinyNet, which has no tokens\. Do this\."):
        require_tokens(tiny(), "rem", "Do this.")

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from vcotta import Runtime
from vcotta.methods import REM, REMConfig
from vcotta.methods.rem import least_attended
from vcotta.models import ViT

from .promises import tiny_vit


def logits_of(net: ViT, x: torch.Tensor, dropped: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits without some patches of each image, and the last block's attention of the class token, head by head."""
    tokens = net.tokens(net.patches(x))
    rows = [[0] + [1 + p for p in range(4) if p not in gone] for gone in dropped]
    tokens = torch.stack([tokens[i][row] for i, row in enumerate(rows)])
    for block in net.blocks:
        normed = F.layer_norm(tokens, (8,), block.norm1.weight, block.norm1.bias, 1e-6)
        q, k, v = (normed @ block.attn.qkv.weight.T + block.attn.qkv.bias).chunk(3, -1)
        heads = [slice(4 * h, 4 * h + 4) for h in range(2)]
        weights = [(q[..., h] @ k[..., h].transpose(1, 2) / math.sqrt(4)).softmax(-1) for h in heads]
        tokens = tokens + block.attn.proj(torch.cat([w @ v[..., h] for w, h in zip(weights, heads, strict=True)], -1))
        tokens = tokens + block.mlp(F.layer_norm(tokens, (8,), block.norm2.weight, block.norm2.bias, 1e-6))
    attention = (weights[0] + weights[1])[:, 0, 1:] / 2
    return net.head(F.layer_norm(tokens[:, 0], (8,), net.norm.weight, net.norm.bias, 1e-6)), attention


def test_the_steps_are_those_of_the_card(images) -> None:
    settings = {"lr": 0.05, "share": 0.3, "ranking": 0.7, "margin": 0.2}
    adapter = REM(tiny_vit(), REMConfig(**settings), runtime=Runtime(precision="fp64"))
    net = tiny_vit().double().requires_grad_(False)
    norms = [
        p.requires_grad_(True) for b in net.blocks for norm in (b.norm1, b.norm2) for p in (norm.weight, norm.bias)
    ]
    adam = torch.optim.Adam(norms, lr=0.05)
    for seed in range(3):
        x = images(7, seed).double()
        z0, attention = logits_of(net, x, [[]] * 7)
        order = attention.argsort(-1, descending=True).tolist()  # 4 patches: int(4 * 0.7) = 2 stay, int(4 * 0.4) = 1
        z = [z0, *(logits_of(net, x, [row[:gone] for row in order])[0] for gone in (2, 3))]
        p = [one.softmax(-1) for one in z]
        h = [-(q * q.log()).sum(-1) for q in p]
        follow = sum(-(p[j].detach() * p[i].log()).sum(-1).mean() for i in range(3) for j in range(i))
        rank = sum((h[j] - h[i].detach() + 0.2 * math.log(4)).clamp_min(0).mean() for i in range(3) for j in range(i))
        assert rank > 0
        assert torch.allclose(adapter(x.float()).double(), p[0].log().detach(), atol=1e-5)
        loss = follow + 0.7 * rank
        assert adapter.last["loss"] == pytest.approx(loss.item(), rel=1e-6)
        assert adapter.last["disorder"] == pytest.approx(rank.item(), rel=1e-5)
        adam.zero_grad()
        loss.backward()
        adam.step()
    ours = adapter.networks["model"]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours.parameters(), net.parameters(), strict=True))


def test_the_patches_that_the_class_token_sees_most_go_first() -> None:
    attention = torch.rand(5, 20, generator=torch.Generator().manual_seed(0))
    kept = least_attended(attention, 0.2)
    assert kept.shape == (5, int(20 * 0.8))
    for row, stays in zip(attention, kept, strict=True):
        gone = [p for p in range(20) if p not in stays.tolist()]
        assert row[gone].min() > row[stays].max()
    assert least_attended(attention, 0.99).shape == (5, 1)


def test_ordered_entropies_have_no_ranking_loss_and_each_level_costs_a_pass(images) -> None:
    adapter = REM(tiny_vit(), REMConfig(share=0.0, levels=4))  # all levels are the whole image
    adapter(images())
    assert adapter.last["disorder"] == pytest.approx(0, abs=1e-6)
    assert (adapter.last["forwards"], adapter.last["backwards"]) == (4, 1)


def test_late_blocks_and_the_last_norm_are_not_trained(images) -> None:
    adapter = REM(ViT(8, depth=11, width=8, heads=2, classes=4).eval())
    adapter(images())
    trained = {name.rsplit(".", 1)[0] for name, p in adapter.networks["model"].named_parameters() if p.requires_grad}
    assert trained == {f"blocks.{block}.norm{n}" for block in range(9) for n in (1, 2)}


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"share": 1.0}, {"levels": 1}, {"ranking": -1.0}, {"share": 0.5, "levels": 3}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            REMConfig(**wrong)

"""Tiny networks without BatchNorm, for images of 8 x 8 pixels.

A vision transformer, shifted windows, blocks of ConvNeXt, torch's encoder and GroupNorm. The first three have the
layers of timm's ViT, Swin and ConvNeXt; timm itself is not used.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vcotta.models import CifarResNet, ViT

__all__ = ["WITHOUT_BATCH_NORM", "TinySwin", "maker"]


class WindowAttention(nn.Module):
    """Attention within windows, with a learned bias for each pair of relative positions."""

    def __init__(self, width: int, window: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.relative_position_bias_table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads))
        places = torch.cartesian_prod(torch.arange(window), torch.arange(window))
        offsets = places.unsqueeze(1) - places.unsqueeze(0) + window - 1
        self.register_buffer("relative_position_index", offsets[..., 0] * (2 * window - 1) + offsets[..., 1])
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        windows, tokens, width = x.shape
        q, k, v = self.qkv(x).view(windows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        scores = scores + self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)
        if mask is not None:
            scores = (scores.unflatten(0, (-1, len(mask))) + mask.unsqueeze(1)).flatten(0, 1)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(windows, tokens, width))


class SwinBlock(nn.Module):
    """Windows of tokens, shifted cyclically by ``shift``; tokens that were no neighbours do not see each other."""

    def __init__(self, width: int, window: int, shift: int) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.norm1, self.attn = nn.LayerNorm(width), WindowAttention(width, window, 2)
        self.norm2, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 8), nn.GELU(), nn.Linear(8, width))

    def windows(self, x: Tensor) -> Tensor:
        side = self.window
        return x.unflatten(1, (-1, side)).unflatten(3, (-1, side)).transpose(2, 3).flatten(3, 4).flatten(0, 2)

    def mask(self, height: int, width: int) -> Tensor | None:
        if not self.shift:
            return None
        region = torch.zeros(1, height, width, 1)
        for i, rows in enumerate((slice(0, -self.shift), slice(-self.shift, None))):
            for j, columns in enumerate((slice(0, -self.shift), slice(-self.shift, None))):
                region[:, rows, columns] = 2 * i + j
        region = self.windows(region).squeeze(-1)
        return torch.where(region.unsqueeze(1) == region.unsqueeze(2), 0.0, -100.0)

    def forward(self, x: Tensor) -> Tensor:
        n, height, width, _ = x.shape
        moved = self.norm1(x).roll((-self.shift, -self.shift), (1, 2))
        mask = self.mask(height, width)
        mask = None if mask is None else mask.to(x)
        seen = self.attn(self.windows(moved).flatten(1, 1).reshape(-1, self.window**2, x.shape[-1]), mask)
        seen = seen.view(n, height // self.window, width // self.window, self.window, self.window, -1)
        x = x + seen.transpose(2, 3).reshape(x.shape).roll((self.shift, self.shift), (1, 2))
        return x + self.mlp(self.norm2(x))


class TinySwin(nn.Module):
    """4 x 4 patches of two pixels, a block of windows, one of shifted windows, and the mean of all tokens."""

    def __init__(self, classes: int = 4, channels: int = 3) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(channels, 8, 2, 2)
        self.blocks = nn.Sequential(SwinBlock(8, 2, 0), SwinBlock(8, 2, 1))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.patch_embed(x).permute(0, 2, 3, 1))
        return self.head(self.norm(x).mean((1, 2)))


class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of images, a class of its own as in timm."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class TinyConvNeXt(nn.Module):
    """A stem, one block (depthwise convolution, LayerNorm, MLP, layer scale) and a head with a norm."""

    def __init__(self, classes: int = 4, channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, 8, 2, 2), LayerNorm2d(8))
        self.conv_dw, self.norm = nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.gamma = nn.Parameter(torch.full((8,), 0.5))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), LayerNorm2d(8), nn.Flatten(), nn.Linear(8, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        seen = self.gamma * self.mlp(self.norm(self.conv_dw(x).permute(0, 2, 3, 1)))
        return self.head(x + seen.permute(0, 3, 1, 2))


class TorchTransformer(nn.Module):
    """torch's own encoder layers on patches of four pixels."""

    def __init__(self, classes: int = 4, channels: int = 3) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(channels, 8, 4, 4)
        layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.patch_embed(x).flatten(2).transpose(1, 2)).mean(1))


WITHOUT_BATCH_NORM: dict[str, Callable[..., nn.Module]] = {
    "vit": lambda **sizes: ViT(8, 4, depth=2, width=8, heads=2, **{"classes": 4, **sizes}),
    "swin": TinySwin,
    "convnext": TinyConvNeXt,
    "encoder": TorchTransformer,
    "group norm": lambda **sizes: CifarResNet(8, norm="group", **{"classes": 4, **sizes}),
}


def maker(name: str) -> Callable[..., nn.Module]:
    """A factory of seeded networks, as the fixture ``tiny`` is, whose predictions differ well between images."""

    def make(seed: int = 0, **sizes: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            net = WITHOUT_BATCH_NORM[name](**sizes)
            head = [module for module in net.modules() if isinstance(module, nn.Linear)][-1]
            nn.init.normal_(head.weight, std=head.in_features**-0.5)
        return net.eval()

    return make

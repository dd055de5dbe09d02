"""A small vision transformer for images of 32 or 64 pixels, with timm's names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vcotta.models.normalised import HALF, NormalisedNetwork

__all__ = ["ViT"]


class PatchEmbed(nn.Module):
    """Cut images into square patches and map each to a token: a convolution whose stride is its size."""

    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        """Return the patches (n, patches, width) of normalised images, row by row."""
        patches: Tensor = self.proj(x).flatten(2).transpose(1, 2)
        return patches


class Attention(nn.Module):
    """Self-attention with one linear layer for queries, keys and values and one for the output."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (n, tokens, width) of tokens."""
        n, tokens, width = x.shape
        q, k, v = self.qkv(x).view(n, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        out: Tensor = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, width))
        return out


class Mlp(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (n, tokens, width) of tokens."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class Block(nn.Module):
    """Attention and an MLP, each on normalised tokens and added to them (pre-norm)."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (n, tokens, width) of tokens."""
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class ViT(NormalisedNetwork):
    """Vision transformer of Dosovitskiy et al. (2021), of a size for small images.

    The default is ViT-Lite-7/4 of Hassani et al. (2021, "Escaping the Big Data Paradigm with Compact Transformers"):
    patches of 4 pixels, 7 pre-norm blocks of 256 dimensions with 4 heads and MLPs of twice the width, 3.7 million
    weights; they report 91.4 % on CIFAR-10 after 200 epochs. Class token, learned position embeddings and all
    parameter names are those of timm's ViT (``patch_embed.proj.weight``, ``blocks.0.attn.qkv.weight``, ...,
    ``head.weight``).

    ``net(images)`` is ``net.classify(net.run_blocks(net.tokens(net.patches(images))))``. Code that masks patches
    replaces rows between ``patches`` and ``tokens``; code with prompts inserts further tokens after the first one,
    the class token, before ``run_blocks``, which takes any number of them.

    Args:
        image_size: Side of the images in pixels, a multiple of ``patch``.
        patch: Side of a patch in pixels.
        depth: Number of blocks.
        width: Dimensions of a token.
        heads: Heads of the attention; they divide ``width``.
        mlp_ratio: Width of the hidden layer of an MLP, as a multiple of ``width``.
        classes: Number of outputs.
        channels: Number of image channels.
        mean: See `NormalisedNetwork`.
        std: See `NormalisedNetwork`.

    Example:
        >>> net = ViT(depth=2, width=64, heads=2)
        >>> net(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
        >>> net.features(torch.zeros(2, 3, 32, 32)).shape  # the class token and 8 x 8 patches
        torch.Size([2, 65, 64])
    """

    image_size: int

    def __init__(
        self,
        image_size: int = 32,
        patch: int = 4,
        depth: int = 7,
        width: int = 256,
        heads: int = 4,
        mlp_ratio: int = 2,
        classes: int = 10,
        channels: int = 3,
        mean: Sequence[float] | None = HALF[0],
        std: Sequence[float] | None = HALF[1],
    ) -> None:
        super().__init__()
        more = {"image_size": image_size, "patch": patch, "width": width, "heads": heads, "mlp_ratio": mlp_ratio}
        self.keep_arguments(mean, std, depth=depth, classes=classes, channels=channels, **more)
        if image_size % patch:
            raise ValueError(f"Expected `image_size` to be a multiple of `patch`, but got {image_size} and {patch}.")
        if width % heads:
            raise ValueError(f"Expected `width` to be a multiple of `heads`, but got {width} and {heads}.")

        self.patch_embed = PatchEmbed(channels, width, patch)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + (image_size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads, mlp_ratio * width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)
        for tensor in (self.cls_token, self.pos_embed):
            nn.init.trunc_normal_(tensor, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def patches(self, x: Tensor) -> Tensor:
        """Return the embedded patches (n, patches, width) of images in [0, 1], without positions."""
        if x.shape[-2:] != (self.image_size, self.image_size):
            raise ValueError(
                f"Expected images of {self.image_size} x {self.image_size} pixels, as this network has an embedding "
                f"for each position, but got {x.shape[-2]} x {x.shape[-1]}. Resize them, or build the network for them."
            )
        embedded: Tensor = self.patch_embed(self.normalise(x))
        return embedded

    def tokens(self, patches: Tensor) -> Tensor:
        """Put the class token before embedded patches and add the positions: (n, 1 + patches, width)."""
        return torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], 1) + self.pos_embed

    def run_blocks(self, tokens: Tensor) -> Tensor:
        """Return the normalised tokens of the last block (n, tokens, width), given those before the first one."""
        out: Tensor = self.norm(self.blocks(tokens))
        return out

    def classify(self, tokens: Tensor) -> Tensor:
        """Return the logits (n, classes), given the result of `run_blocks`: those of the class token."""
        logits: Tensor = self.head(tokens[:, 0])
        return logits

    def features(self, x: Tensor) -> Tensor:
        """Return the normalised tokens of the last block (n, 1 + patches, width) of images in [0, 1]."""
        return self.run_blocks(self.tokens(self.patches(x)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (n, classes) of images (n, channels, image_size, image_size) in [0, 1]."""
        return self.classify(self.features(x))

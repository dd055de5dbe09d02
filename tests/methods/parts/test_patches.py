from __future__ import annotations

import pytest
import torch
from torch import nn

from vcotta.methods.parts.patches import make_masked
from vcotta.models import Normalised, ViT


def chosen(count: int, patches: int) -> torch.Tensor:
    """Other patches hidden in every image."""
    return torch.stack([torch.arange(patches) % (2 + image) == 0 for image in range(count)])


@pytest.mark.parametrize("wrapped", [False, True])
def test_of_a_transformer_embeddings_are_replaced(wrapped, images) -> None:
    net = ViT(8, 4, depth=1, width=8, heads=2).eval()
    masked, x, hidden = make_masked(Normalised(net) if wrapped else net, 2), images(), chosen(6, 4)
    nn.init.normal_(masked.token)
    shown = (x - masked.net._mean) / masked.net._std if wrapped else x
    embedded = net.patches(shown)
    for image in range(6):
        for patch in range(4):
            if hidden[image, patch]:
                embedded[image, patch] = masked.token
    tokens = net.run_blocks(net.tokens(embedded))
    with masked.features(x) as caught:
        logits = masked(masked.cover(x, hidden))
    assert torch.allclose(logits, net.classify(tokens), atol=1e-6)
    assert torch.allclose(caught[0], tokens[:, 1:], atol=1e-6)
    assert (masked.patch, masked.channels, masked.width) == (4, 3, 8)
    assert torch.equal(net(shown), masked.net(x))  # nothing of the mask is left behind


class ChannelsLast(nn.Module):
    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.proj = embed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(x).permute(0, 2, 3, 1)


class Merging(nn.Module):
    """Patches of two pixels, and four of them merged into one, in channels before rows or after columns."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        embed, self.last = nn.Conv2d(3, 4, 2, 2), last
        self.patch_embed = ChannelsLast(embed) if last else embed
        self.merge, self.norm = nn.Conv2d(4, 6, 2, 2), nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch_embed(x)
        self.embedded = x if self.last else x.permute(0, 2, 3, 1)
        return self.norm(self.merge(self.embedded.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)).mean((1, 2))


@pytest.mark.parametrize("last", [False, True])
def test_tokens_may_be_a_map_that_is_merged(last, images) -> None:
    net, x, hidden = Merging(last), images(), chosen(6, 16)
    masked = make_masked(net, 4)
    nn.init.normal_(masked.token)
    plain = net(x)
    before = net.embedded.flatten(1, 2)
    with masked.features(x) as caught:
        changed = masked(masked.cover(x, hidden))
    expected = torch.where(hidden.unsqueeze(-1), masked.token, before)
    assert torch.equal(net.embedded.flatten(1, 2), expected)
    assert not torch.allclose(plain, changed)
    assert caught[0].shape == (6, 16, masked.width) == (6, 16, 6)
    features = caught[0].unflatten(1, (4, 4))
    assert torch.equal(features[:, 0, 0], features[:, 1, 1])  # merged into one


@pytest.mark.parametrize(("size", "patches"), [((8, 8), 4), ((11, 7), 6)])
def test_of_another_network_pixels_are_replaced(size, patches, tiny, images) -> None:
    net, x, hidden = tiny(), images(size=size), chosen(6, patches)
    masked = make_masked(net, 4)
    nn.init.uniform_(masked.token)
    columns = -(-size[1] // 4)
    covered = x.clone()
    for image in range(6):
        for row in range(size[0]):
            for column in range(size[1]):
                if hidden[image, row // 4 * columns + column // 4]:
                    covered[image, :, row, column] = masked.token[:, row % 4, column % 4]
    assert torch.equal(masked(masked.cover(x, hidden)), net(covered))


def test_features_are_averages_of_the_last_map(tiny, images) -> None:
    net, x = tiny(), images()
    masked = make_masked(net, 4)
    with masked.features(x) as caught:
        net(x)
    features = net.norm2(net.conv2(torch.relu(net.norm1(net.conv1(x)))))  # 4 x 4 for 2 x 2 patches
    expected = features.unflatten(2, (2, 2)).unflatten(4, (2, 2)).mean((3, 5)).flatten(2).mT
    assert torch.allclose(caught[0], expected, atol=1e-6)
    assert caught[0].shape == (6, 4, masked.width)
    caught[0].sum().backward()
    assert net.conv1.weight.grad is not None


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_the_last_layer_may_be_of_any_kind(norm, tiny, images) -> None:
    masked = make_masked(tiny(norm), 2)
    with masked.features(images()) as caught:
        masked.net(images())
    assert caught[0].shape == (6, 16, 8)


def test_without_hidden_patches_nothing_changes(tiny, images) -> None:
    for net in (tiny(), ViT(8, 4, depth=1, width=8, heads=2).eval()):
        masked, x = make_masked(net, 4), images()
        nn.init.normal_(masked.token)
        assert torch.equal(masked(masked.cover(x, torch.zeros(6, 4, dtype=torch.bool))), net(x))


def test_a_network_without_patches_is_refused() -> None:
    with pytest.raises(ValueError, match="a vision transformer or a network with two-dimensional convolutions"):
        make_masked(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), 4)

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from vcotta import Runtime, build_adapter
from vcotta.methods import ContinualMAE, ContinualMAEConfig, continual_mae
from vcotta.methods.parts.hog import hog_of_patches
from vcotta.methods.passes import new_notes

from .test_vida import transformer


@pytest.fixture
def views(monkeypatch) -> None:
    """Two views, the same for every batch."""
    monkeypatch.setattr(continual_mae, "random_views", lambda images, count, flip: torch.stack([images, images**2]))


def hidden_of(adapter: ContinualMAE, images: torch.Tensor) -> torch.Tensor:
    adapter._notes = new_notes()
    return adapter._most_uncertain(images)


def features_and_logits(net: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the network makes of each patch, (batch, patches, dimensions), and of the image."""
    if hasattr(net, "patches"):
        return of_tokens(net, net.patches(x))
    for norm in (net.norm1, net.norm2):
        norm.train()
    last = net.norm2(net.conv2(torch.relu(net.norm1(net.conv1(x)))))  # one value for two pixels
    return last.flatten(2).mT, net.fc(torch.relu(last).mean((2, 3)))


def of_tokens(net: nn.Module, patches: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = net.run_blocks(net.tokens(patches))
    return tokens[:, 1:], net.classify(tokens)


class Reference:
    """The step as its card describes it, for a transformer with patches of 4 pixels or a small network with 2."""

    def __init__(self, net: nn.Module, decoder: nn.Module, config: ContinualMAEConfig) -> None:
        self.config, self.net = config, copy.deepcopy(net).double()
        self.token, self.head = decoder.token.detach().clone().requires_grad_(), copy.deepcopy(decoder.head)
        weights = [p for name, p in self.net.named_parameters() if name.split(".")[-1] in ("weight", "bias")]
        trained = [*weights, self.token, *self.head.parameters()]
        self.optimizer = torch.optim.SGD(trained, lr=config.lr, momentum=0.9, nesterov=True)

    def step(self, x: torch.Tensor) -> tuple[torch.Tensor, float, float]:
        """Log-probabilities, cross-entropy and reconstruction error."""
        with torch.no_grad():
            means = torch.stack([features_and_logits(self.net, view)[0].mean(-1) for view in (x, x**2)])
            whole = features_and_logits(self.net, x)[1].softmax(1)
        order = means.var(0).argsort(1, descending=True)
        hidden = [row[: int(self.config.mask * len(row))].tolist() for row in order]
        features, logits = self.masked(x, hidden)
        fit = -(whole * logits.log_softmax(1)).sum(1).mean()
        target = hog_of_patches(x, 4 if hasattr(self.net, "patches") else 2)
        pairs = [(image, patch) for image, patches in enumerate(hidden) for patch in patches]
        errors = [(self.head(features[pair]) - target[pair]).square().mean() for pair in pairs]
        reconstruction = torch.stack(errors).mean()
        self.optimizer.zero_grad()
        (fit + self.config.hog * reconstruction).backward()
        self.optimizer.step()
        return whole.log(), fit.item(), reconstruction.item()

    def masked(self, x: torch.Tensor, hidden: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        if not hasattr(self.net, "patches"):
            x = x.clone()
            for image, patches in enumerate(hidden):
                for patch in patches:
                    row, column = divmod(patch, 4)
                    x[image, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = self.token
            return features_and_logits(self.net, x)
        patches = self.net.patches(x)
        for image, chosen in enumerate(hidden):
            patches[image, chosen] = self.token
        return of_tokens(self.net, patches)


@pytest.mark.parametrize("kind", ["transformer", "batch", "group"])
def test_its_steps_are_those_of_the_card(kind, tiny, images, views) -> None:
    net = transformer() if kind == "transformer" else tiny(kind)
    config = ContinualMAEConfig(lr=0.1, optimizer="sgd", views=2, restore=0.0, patch=2, hog=2.0)
    adapter = ContinualMAE(net, config, runtime=Runtime(precision="fp64"))
    reference = Reference(net, adapter.networks["decoder"], config)
    for seed in range(3):
        x = images(seed=seed).double()
        expected, fit, reconstruction = reference.step(x)
        assert torch.allclose(adapter(x), expected, atol=1e-10)
        assert adapter.last["fit"] == pytest.approx(fit, rel=1e-9)
        assert adapter.last["reconstruction"] == pytest.approx(reconstruction, rel=1e-9)
    for ours, theirs in zip(adapter.networks["model"].parameters(), reference.net.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-10)
    assert torch.allclose(adapter.networks["decoder"].token, reference.token, atol=1e-10)
    assert torch.allclose(adapter.networks["decoder"].head.weight, reference.head.weight, atol=1e-10)
    assert adapter.networks["decoder"].token.abs().max() > 0


def test_class_token_and_positions_of_a_transformer_are_not_trained(images) -> None:
    adapter = ContinualMAE(transformer(), ContinualMAEConfig(lr=0.1, views=2))
    adapter(images())
    source = dict(adapter.start.named_parameters())
    still = {name for name, p in adapter.networks["model"].named_parameters() if torch.equal(p, source[name])}
    assert {"cls_token", "pos_embed"} <= still
    assert "head.weight" not in still


@pytest.mark.parametrize("mask", [0.0, 0.3, 0.5, 1.0])
def test_the_share_of_hidden_patches_is_that_of_the_settings(mask, tiny, images) -> None:
    adapter = ContinualMAE(tiny(), ContinualMAEConfig(mask=mask, patch=2, views=2))
    hidden = hidden_of(adapter, images())
    assert hidden.sum(1).tolist() == [int(16 * mask)] * 6


def test_without_a_mask_and_without_reconstruction_the_loss_is_the_entropy(tiny, images) -> None:
    adapter = ContinualMAE(tiny(), ContinualMAEConfig(mask=0.0, hog=0.0, views=1))
    log_probs = adapter(images())
    assert adapter.last["loss"] == pytest.approx(-(log_probs.exp() * log_probs).sum(1).mean().item(), rel=1e-5)
    assert adapter.last["reconstruction"] == 0


def test_without_views_random_patches_are_hidden(tiny, images) -> None:
    adapter = ContinualMAE(tiny(), ContinualMAEConfig(views=0, patch=2))
    first, second = hidden_of(adapter, images()), hidden_of(adapter, images())
    assert not torch.equal(first, second)


def test_restoring_everything_keeps_the_network_at_the_source(tiny, images) -> None:
    adapter = ContinualMAE(tiny(), ContinualMAEConfig(restore=1.0, lr=0.1, views=1))
    adapter(images())
    for ours, source in zip(adapter.networks["model"].parameters(), adapter.start.parameters(), strict=True):
        assert torch.equal(ours, source)
    assert adapter.networks["decoder"].token.any()  # the decoder learns on


def test_token_and_decoder_can_be_trained_before_the_stream_without_the_network(tiny, images) -> None:
    model, source = tiny(), [(images(8, seed), torch.arange(8) % 4) for seed in range(20)]
    adapters = [
        build_adapter("continual-mae", model, source=source, views=2, warm_up_images=count, warm_up_lr=0.01)
        for count in (0, 160)
    ]
    first, trained = (adapter.networks["decoder"] for adapter in adapters)
    assert [adapter.uses_source for adapter in adapters] == [False, True]
    assert not first.token.any()
    assert trained.token.any()
    for name, tensor in adapters[1].networks["model"].state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
    for adapter in adapters:
        adapter(images(8, 3))
    assert adapters[1].last["reconstruction"] < adapters[0].last["reconstruction"]
    with pytest.raises(ValueError, match="to be prepared on source images, as `warm_up_images` is 160"):
        build_adapter("continual-mae", model, warm_up_images=160)(images())


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"mask": 1.5}, {"hog": -1.0}, {"patch": 0}, {"views": -1}, {"restore": 2.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ContinualMAEConfig(**wrong)

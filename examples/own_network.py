"""Adapt a network of your own.

A small convolutional network is trained on handwritten digits, then meets them in fog, noise and low contrast, one
after the other, while it keeps adapting without labels. The four places marked CHANGE are all that your own network
and data need. BN, which learns nothing but the statistics of each batch, is measured beside the method: what learns
must be better than that.

    python examples/own_network.py                     # some ten seconds
    python examples/own_network.py --method cotta      # any of vcotta.list_methods()
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import vcotta
from vcotta.data import Batches, batches, load_digits


class SmallNet(nn.Module):
    """CHANGE: any classifier with Conv or Linear layers that takes images in [0, 1]; normalisation belongs inside."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.classes = classes
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        )
        self.classifier = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images in, logits out."""
        return self.classifier(self.features((images - 0.5) / 0.5).mean((2, 3)))


def train(net: nn.Module, loader: Batches, epochs: int) -> None:
    """Training as everybody does it; nothing here is vcotta's."""
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    net.train()
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
    net.eval()


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, adapt, and return the error of the fixed and of the adapting network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="vcotta", help="one of vcotta.list_methods()")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--limit", type=int, default=300, help="images of each corruption")
    asked = parser.parse_args(arguments)

    torch.manual_seed(0)
    train_data, test_data = load_digits()
    source = batches(train_data.images, train_data.labels, 50, shuffle_seed=0)  # CHANGE: yields (images, labels)
    net = SmallNet()
    train(net, source, asked.epochs)

    # CHANGE: anything that yields images; here with labels, to measure the error
    stream = vcotta.make_stream(
        "continual", test_data, ("fog", "shot_noise", "contrast"), severity=4, batch_size=50, limit=asked.limit
    )
    errors = {}
    for method in dict.fromkeys(("source", "bn", asked.method)):
        # CHANGE: digits must not be mirrored, most photographs may; 32 views are the usual number
        options = {"flip": False, "views": 8}
        known = {name: value for name, value in options.items() if hasattr(vcotta.configure(method), name)}
        adapter = vcotta.build_adapter(method, net, source=source, **known)
        wrong = seen = 0
        for batch in stream.batches():
            log_probs = adapter(batch.images)  # predicts this batch, then adapts to it
            wrong += int((log_probs.argmax(1) != batch.labels).sum())
            seen += len(batch.labels)
        errors[method] = wrong / seen
        print(f"{method:10} {errors[method]:.1%} wrong of {seen} images")
    return errors


if __name__ == "__main__":
    main()

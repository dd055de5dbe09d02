"""Adapt a network of torchvision's or timm's (the extra ``vision``).

    python examples/vision.py --model torchvision:resnet18 --pretrained     # with its ImageNet weights
    python examples/vision.py --model timm:resnet18 --folder pictures       # your own pictures, in class folders
    python examples/vision.py --model timm:vit_tiny_patch16_224 --method cotta

Without ``--folder`` the pictures are random: enough to see that the network and the method go together. CoTTA and TENT
take it as it is; VCoTTA needs a warm-up on source data, see `vcotta warmup --model torchvision:resnet18`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import vcotta
from vcotta.data import class_folders
from vcotta.models import build_network


def pictures(folder: Path | None, size: int, batch_size: int, batches: int) -> list[Tensor]:
    """A few batches of images in [0, 1]."""
    if folder is None:
        generator = torch.Generator().manual_seed(0)
        return [torch.rand(batch_size, 3, size, size, generator=generator) for _ in range(batches)]
    images = class_folders(folder, size).images
    chunks = (
        images[start : start + batch_size] for start in range(0, min(len(images), batches * batch_size), batch_size)
    )
    return [torch.from_numpy(chunk).permute(0, 3, 1, 2) / 255 for chunk in chunks]


def main(arguments: Sequence[str] | None = None) -> vcotta.Adapter:
    """Build the network by its name, adapt it, and return the adapter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="torchvision:resnet18", help="torchvision:NAME or timm:NAME")
    parser.add_argument("--pretrained", action="store_true", help="the weights published with it")
    parser.add_argument("--method", default="tent", help="one of vcotta.list_methods()")
    parser.add_argument("--folder", type=Path, help="pictures, one sub-folder a class")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--batches", type=int, default=3)
    asked = parser.parse_args(arguments)
    net = build_network(asked.model, 1000, "pretrained" if asked.pretrained else None)  # its mean and std are inside
    adapter = vcotta.build_adapter(asked.method, net, dataset="imagenet")
    for images in pictures(asked.folder, asked.size, asked.batch_size, asked.batches):
        log_probs = adapter(images)
        print(
            f"{len(images)} images, mean confidence {log_probs.exp().amax(1).mean():.3f}, loss {adapter.last['loss']}"
        )
    return adapter


if __name__ == "__main__":
    main()

"""Benchmarks: data sets with their networks, trainings and warm-ups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vcotta._util.errors import unknown_name
from vcotta.bayes import WarmUpConfig
from vcotta.data import Batches, DomainData, ImageData, ImageSource, batches
from vcotta.data.image_files import ImageFiles
from vcotta.data.named import folder_and_size, load_domains, load_images
from vcotta.models import build_network, load_weights
from vcotta.models.wide_resnet import digits_network
from vcotta.nn.inputs import check_accepted
from vcotta.training.recipes import recipe_for
from vcotta.training.trainer import TrainConfig

__all__ = ["BENCHMARKS", "DIGITS_TRAINING", "Benchmark", "find_benchmark", "find_source", "find_training"]


@dataclass(frozen=True)
class Benchmark:
    """What is known of a data set before any run.

    Attributes:
        name: Name on the command line.
        network: The paper's network for it, a name for `build_network`.
        batch_size: Images in a batch of the test stream.
        classes: Number of classes, None if only the data tells.
        image_size: Side of its images in pixels.
        training: Settings of the training of its source network, None if there are none.
        long_epochs: Epochs of that training for networks that need more, such as vision transformers; None for as many.
        training_batch: Images in a batch of the training and the warm-up; methods that prepare on source data use
            ``batch_size``.
        warm_up: Settings of the warm-up.
        source_share: Share of the training images that are used, the first ones.
        source_limit: Number of the training images that are used, the first ones; None for all.
        domains: Of a folder, the sub-folders that are domains of a stream, in this order.
        is_source: Whether its images may be used as source data if it has no training images.
    """

    name: str
    network: str
    batch_size: int
    classes: int | None = None
    image_size: int = 224
    training: TrainConfig | None = None
    long_epochs: int | None = None
    training_batch: int = 200
    warm_up: WarmUpConfig = field(default_factory=WarmUpConfig)
    source_share: float = 1.0
    source_limit: int | None = None
    domains: tuple[str, ...] = ()
    is_source: bool = False

    @property
    def trains_itself(self) -> bool:
        """Whether the network is small enough to be trained for each run that needs it."""
        return self.name == "digits"

    def training_of(self, network: str | None) -> TrainConfig | None:
        """Return the settings of the training of a network, by default its own; None if there are none.

        Example:
            >>> find_benchmark("cifar10").training_of("vit-32px").optimizer
            'adamw'
        """
        if self.training is None:
            return None
        return recipe_for(network or self.network, self.training, self.long_epochs or self.training.epochs)

    def load(self, split: str = "test") -> ImageSource:
        """Return the ``train`` or ``test`` images."""
        return load_images(self.name, split)

    def load_stream(self) -> ImageSource | DomainData:
        """Return the images of a stream: the test images, or those of the domains."""
        return load_domains(self.name, self.domains) if self.domains else self.load()

    def _training_files(self) -> ImageData | ImageFiles:
        """The training images, not read yet; an error if there are none."""
        data = self.load("train") if self.training is not None or self.is_source else None
        if not isinstance(data, ImageData | ImageFiles):
            raise ValueError(
                f"Expected training images, but {self.name} has none here. Give source images of yours, --source "
                "folder:DIR with a folder for each class; or, for a variational method, warm a network up on them, "
                "`vcotta warmup --dataset folder:DIR`, and give that as `weights`."
            )
        return data

    def training_images(self) -> ImageData:
        """Return the training images; raises `ValueError` if there are none."""
        data, count = self._training_files(), self.source_count()
        labels = data.labels[:count]
        if isinstance(data, ImageFiles):  # only those that are used are read
            return replace(data, images=replace(data.images, files=data.images.files[:count]), labels=labels).read()
        return data if count == len(data) else replace(data, images=data.images[:count], labels=labels)

    def source_count(self) -> int:
        """Return the number of training images that are used, without reading them.

        Raises:
            ValueError: There are none, or fewer than ``source_limit``.
        """
        count = len(self._training_files())
        if self.source_limit is None:
            return max(1, round(self.source_share * count))
        if not 1 <= self.source_limit <= count:
            raise ValueError(
                f"Expected `source_limit` to be 1 to {count}, the number of source images, but got {self.source_limit}."
                " Leave it out to use all."
            )
        return self.source_limit

    def check_classes(self, names: Sequence[str]) -> None:
        """Raise `ValueError` unless the training images have the classes of a stream, in the same order."""
        pairs = zip_longest(self._training_files().class_names, names, fillvalue="nothing")
        if odd := next(((here, there) for here, there in pairs if here != there), None):
            raise ValueError(
                f"Expected the source, {self.name}, to have the classes of the stream in the same order, but got "
                f"{odd[0]} in place of {odd[1]}."
            )

    def source(self, seed: int, device: str = "cpu", batch_size: int | None = None) -> Batches:
        """Return a shuffled loader over the training images, by default in batches of ``training_batch``."""
        data = self.training_images()
        images, labels = np.asarray(data.images), data.labels
        return batches(images, labels, batch_size or self.training_batch, shuffle_seed=seed, device=device)

    def build(
        self, network: str | None, weights: Path | None = None, *, seed: int = 0, new_classifier: bool = False
    ) -> nn.Module:
        """Make the benchmark's network, or another one, for its number of classes; weights as in `build_network`.

        Raises:
            ValueError: If there is no such network, or its outputs are not the data's classes.
        """
        if self.name == "digits" and network in (None, self.network):
            digits = digits_network(seed)
            if weights is not None:
                load_weights(digits, weights, new_classifier=new_classifier)
            return digits.eval()
        if not (network or self.network):
            raise ValueError(
                f"Expected `model` for {self.name}, but got none. Give a network, as in --model resnet-50."
            )
        classes = self.classes or len(self.load_stream().class_names)
        model = build_network(network or self.network, classes, weights, seed=seed, new_classifier=new_classifier)
        self._check_outputs(model, classes)
        return model

    def network_options(self, network: str | None) -> tuple[str, dict[str, int]]:
        """Return the name and options with which `build_network` makes the benchmark's network, or another one.

        Example:
            >>> find_benchmark("digits").network_options(None)
            ('wrn-10-1', {'stem_stride': 2, 'base': 8})
        """
        name = network or self.network
        return ("wrn-10-1", {"stem_stride": 2, "base": 8}) if name == "digits" else (name, {})

    @torch.no_grad()
    def _check_outputs(self, model: nn.Module, classes: int) -> None:
        """Give a network one image, to find mistakes before training."""
        outputs = check_accepted(model, torch.zeros(1, 3, self.image_size, self.image_size))
        if outputs != classes:
            raise ValueError(
                f"Expected a network with {classes} outputs, one for each class of {self.name}, but got {outputs}."
            )


def training_for(size: int, **settings: Any) -> TrainConfig:
    """Return settings for photographs: mirrored at random, and shifted by up to an eighth of their side.

    Example:
        >>> training_for(64, epochs=40).shift
        8
    """
    return TrainConfig(**{"shift": size // 8, "flip": True, **settings})


DIGITS_TRAINING = TrainConfig(epochs=20, lr=0.1, shift=2)
"""Training of the digits network: about six seconds on one CPU thread."""

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        # Warm-up and settings of the digits were chosen on the four extra corruptions at severities 3 to 5 with the
        # constants of ImageNet-C, about as hard for digits as the fifteen: vcotta tune --severities 3,4,5 --table 224.
        Benchmark(
            "digits",
            "digits",
            batch_size=50,
            classes=10,
            image_size=32,
            training=DIGITS_TRAINING,
            long_epochs=40,
            training_batch=50,
            warm_up=WarmUpConfig(epochs=10, flip=False),
        ),
        Benchmark(
            "cifar10",
            "wrn-28-10",
            batch_size=200,
            classes=10,
            image_size=32,
            training=TrainConfig(epochs=30, lr=0.2, shift=4, flip=True),
            long_epochs=150,
            training_batch=256,
            # By the held-out corruptions (studies/posterior/page.md). Results from before took five epochs.
            warm_up=WarmUpConfig(epochs=10),
        ),
        Benchmark(
            "cifar100",
            "resnext-29-4x32d",
            batch_size=200,
            classes=100,
            image_size=32,
            training=TrainConfig(epochs=100, lr=0.2, shift=4, flip=True, augmix=True),
            long_epochs=150,
            training_batch=256,
            # The warm-up of the reported results, which learns no widths: 10 epochs beat 5 (studies/headline/page.md,
            # section 8). The default has not been tried on this network, which takes a GPU.
            warm_up=WarmUpConfig(epochs=10, lr=3e-4, relative=False, sigma_travel=None, kl_weight=0.7, held_back=0.0),
        ),
        Benchmark("imagenet", "resnet-50", batch_size=64, classes=1000),
        # Not tuned; 40 epochs are meant to fit into twelve minutes of a fast GPU.
        Benchmark(
            "tiny-imagenet",
            "resnet-18-64px",
            batch_size=200,
            classes=200,
            image_size=64,
            training=training_for(64, epochs=40, lr=0.2),
            long_epochs=100,
            training_batch=256,
        ),
    )
}


def find_benchmark(name: str, domains: Sequence[str] = ()) -> Benchmark:
    """Return the benchmark of a data set; ``folder:DIR`` is a folder of yours with a folder of images for each class.

    Its images are resized to 224 x 224 pixels, or to another size with ``folder:DIR@SIZE``. With ``domains`` these are
    sub-folders of it, with a folder for each class.

    Example:
        >>> find_benchmark("cifar10").network
        'wrn-28-10'
    """
    if name.startswith("folder:"):
        return Benchmark(name, "", batch_size=64, image_size=folder_and_size(name)[1], domains=tuple(domains))
    if name not in BENCHMARKS:
        raise unknown_name("dataset", name, (*BENCHMARKS, "folder:DIR"))
    return BENCHMARKS[name]


def find_source(name: str, tested: Benchmark | None = None) -> Benchmark:
    """Return a benchmark for source data: the training images of a data set, or all images of a folder.

    The source takes its batch size, its warm-up and, unless the name gives it, its image size from the benchmark that
    it is for, ``tested``.

    Example:
        >>> find_source("digits", find_benchmark("digits")).batch_size
        50
    """
    if name.startswith("folder:"):
        folder, size = folder_and_size(name, 224 if tested is None else tested.image_size)
        name = f"folder:{folder}@{size}"
    source = replace(find_benchmark(name), is_source=name.startswith("folder:"))
    if tested is None:
        return source
    return replace(source, batch_size=tested.batch_size, warm_up=tested.warm_up)


def find_training(name: str, fine_tuning: bool = False) -> Benchmark:
    """Return a benchmark to train a network on: a data set with its own settings, or all images of a folder.

    Args:
        name: Name of the data set, or ``folder:DIR``.
        fine_tuning: Whether the network comes from another data set; on a folder it is then trained less.

    Example:
        >>> find_training("folder:pets", fine_tuning=True).training.lr
        0.01
    """
    source = find_source(name)
    if not name.startswith("folder:"):
        return source
    length = {"epochs": 20, "lr": 0.01} if fine_tuning else {"epochs": 60, "lr": 0.1}
    training = training_for(source.image_size, **length)
    return replace(source, training=training, long_epochs=None if fine_tuning else 150, training_batch=64)

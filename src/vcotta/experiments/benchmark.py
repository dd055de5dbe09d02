"""A benchmark: a data set with its network, its protocol and every method's settings."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
from torch import nn

from vcotta._messages import unknown_name
from vcotta.bayes import WarmUpConfig
from vcotta.data import Batches, ImageData, ImageSource, batches
from vcotta.data.class_folders import class_folders
from vcotta.data.digits import DIGITS_TRAINING, digits_network, load_digits
from vcotta.data.image_files import ImageFiles
from vcotta.data.prepared import load_source
from vcotta.inputs import check_accepted
from vcotta.models import build_network, load_weights
from vcotta.training import TrainConfig

__all__ = ["BENCHMARKS", "Benchmark", "find_benchmark", "find_source"]


@dataclass(frozen=True)
class Benchmark:
    """What is known of a data set before any run.

    Attributes:
        name: As given on the command line.
        network: The network of the paper on it, as for `build_network`.
        batch_size: Images in a batch of the test stream.
        classes: Number of classes, None where only the data itself tells.
        image_size: Side of its images, in pixels.
        training: How its source network is trained, None where that is not ours to do.
        training_batch: Images in a batch of the training and the warm-up; what else methods learn from source data
            they learn in batches of ``batch_size``.
        warm_up: Settings of the warm-up.
        source_share: Share of the training images that are used, the first ones.
        settings: Name of the data set whose settings the methods use, one of `vcotta.methods.DATASETS`.
        is_source: Whether its images may be taken for source data, where it has no training images of its own.
    """

    name: str
    network: str
    batch_size: int
    classes: int | None = None
    image_size: int = 224
    training: TrainConfig | None = None
    training_batch: int = 200
    warm_up: WarmUpConfig = field(default_factory=WarmUpConfig)
    source_share: float = 1.0
    settings: str = "imagenet"
    is_source: bool = False

    @property
    def trains_itself(self) -> bool:
        """Whether the network is small enough to be trained on the spot."""
        return self.name == "digits"

    def load(self, split: str = "test") -> ImageSource:
        """Return the ``train`` or ``test`` images."""
        if self.name == "digits":
            return load_digits()[("train", "test").index(split)]
        if self.name.startswith("folder:"):
            return self._folder()
        return load_source(self.name, split)

    def _folder(self) -> ImageFiles:
        """The images of a folder; that small ones are enlarged is told."""
        folder, size = _folder_and_size(self.name)
        files = class_folders(folder, size)
        width, height = files.images.first_size()
        if min(width, height) < size:
            warnings.warn(
                f"The images of {folder} are enlarged to {size} x {size} pixels; the first is {width} x {height}. "
                f"Another size is asked for by folder:{folder}@{min(width, height)}.",
                stacklevel=2,
            )
        return files

    def _training_files(self) -> ImageData | ImageFiles:
        """The training images where they are, or an error that says that there are none to train or warm up on."""
        data = self.load("train") if self.training is not None or self.is_source else None
        if not isinstance(data, ImageData | ImageFiles):
            raise ValueError(
                f"Expected training images, but {self.name} has none here. Name source images of yours, --source "
                "folder:DIR with a folder for each class; or warm a network up on them for a variational method, "
                "`vcotta warmup --dataset folder:DIR`, and give that as `weights`."
            )
        return data

    def training_images(self) -> ImageData:
        """Return the training images, or say that there are none to train or warm up on."""
        data = self._training_files()
        if isinstance(data, ImageFiles):
            data = data.read()
        if self.source_share == 1:
            return data
        count = max(1, round(self.source_share * len(data)))
        return replace(data, images=data.images[:count], labels=data.labels[:count])

    def check_classes(self, names: Sequence[str]) -> None:
        """Raise unless the training images have the classes that a stream has, in their order."""
        pairs = zip_longest(self._training_files().class_names, names, fillvalue="nothing")
        if odd := next(((here, there) for here, there in pairs if here != there), None):
            raise ValueError(
                f"Expected the source, {self.name}, to have the classes of the stream in their order, but got "
                f"{odd[0]} where {odd[1]} should be."
            )

    def source(self, seed: int, device: str = "cpu", batch_size: int | None = None) -> Batches:
        """Return a shuffled loader over the training images, kept on the device, by default in batches to train on."""
        data = self.training_images()
        images, labels = np.asarray(data.images), data.labels
        return batches(images, labels, batch_size or self.training_batch, shuffle_seed=seed, device=device)

    def build(self, network: str | None, weights: Path | None = None, *, seed: int = 0) -> nn.Module:
        """Make the benchmark's network, or another one, for its number of classes.

        Raises:
            ValueError: If there is no such network, or its outputs are not the data's classes.
        """
        if self.name == "digits" and network in (None, self.network):
            digits = digits_network(seed)
            if weights is not None:
                load_weights(digits, weights)
            return digits.eval()
        if not (network or self.network):
            raise ValueError(
                f"Expected `model` for {self.name}, but got none. Name a network, as in --model resnet-50."
            )
        classes = self.classes or len(self.load().class_names)
        model = build_network(network or self.network, classes, weights, seed=seed)
        self._check_outputs(model, classes)
        return model

    def network_facts(self, network: str | None) -> tuple[str, dict[str, int]]:
        """Return the name and options by which `build_network` makes the benchmark's network, or another one.

        Example:
            >>> find_benchmark("digits").network_facts(None)
            ('wrn-10-1', {'stem_stride': 2, 'base': 8})
        """
        name = network or self.network
        return ("wrn-10-1", {"stem_stride": 2, "base": 8}) if name == "digits" else (name, {})

    @torch.no_grad()
    def _check_outputs(self, model: nn.Module, classes: int) -> None:
        """Show a network one image: what does not fit is told now, not after an hour of training."""
        outputs = check_accepted(model, torch.zeros(1, 3, self.image_size, self.image_size))
        if outputs != classes:
            raise ValueError(
                f"Expected a network with {classes} outputs, one for each class of {self.name}, but got {outputs}."
            )


_CIFAR_TRAINING = TrainConfig(epochs=30, lr=0.2, shift=4, flip=True)

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
            training_batch=50,
            warm_up=WarmUpConfig(epochs=10, lr=4e-3, flip=False),
            settings="digits",
        ),
        Benchmark(
            "cifar10",
            "wrn-28-10",
            batch_size=200,
            classes=10,
            image_size=32,
            training=_CIFAR_TRAINING,
            training_batch=256,
            settings="cifar10",
        ),
        Benchmark(
            "cifar100",
            "resnext-29-4x32d",
            batch_size=200,
            classes=100,
            image_size=32,
            training=TrainConfig(epochs=100, lr=0.2, shift=4, flip=True, augmix=True),
            training_batch=256,
            warm_up=WarmUpConfig(epochs=10, augmix=True),  # as it was trained; 10 beat 5: section 8 of docs/headline.md
            settings="cifar100",
        ),
        Benchmark(
            "imagenet",
            "resnet-50",
            batch_size=64,
            classes=1000,
        ),
    )
}


def find_benchmark(name: str) -> Benchmark:
    """Return the benchmark of a data set, ``folder:DIR`` being anybody's images in class folders.

    These are brought to 224 x 224 pixels, or to another size by ``folder:DIR@SIZE``.

    Example:
        >>> find_benchmark("cifar10").network
        'wrn-28-10'
    """
    if name.startswith("folder:"):
        return Benchmark(name, "", batch_size=64, image_size=_folder_and_size(name)[1])
    if name not in BENCHMARKS:
        raise unknown_name("dataset", name, (*BENCHMARKS, "folder:DIR"))
    return BENCHMARKS[name]


def find_source(name: str, tested: Benchmark | None = None) -> Benchmark:
    """Return the benchmark whose images are source data: its training images, or all of a folder.

    Args:
        name: As for `find_benchmark`.
        tested: What the source is for: its size of images, if the folder's name does not tell it, of batches, and its
            warm-up are then the source's, too.

    Example:
        >>> find_source("digits", find_benchmark("digits")).batch_size
        50
    """
    if name.startswith("folder:"):
        folder, size = _folder_and_size(name, 224 if tested is None else tested.image_size)
        name = f"folder:{folder}@{size}"
    source = replace(find_benchmark(name), is_source=name.startswith("folder:"))
    if tested is None:
        return source
    return replace(source, batch_size=tested.batch_size, warm_up=tested.warm_up)


def _folder_and_size(name: str, usual: int = 224) -> tuple[Path, int]:
    """What ``folder:DIR`` and ``folder:DIR@SIZE`` stand for.

    Example:
        >>> _folder_and_size("folder:pets@32")[1], _folder_and_size("folder:me@home")[1]
        (32, 224)
    """
    text = name.removeprefix("folder:")
    folder, _, size = text.rpartition("@")
    if folder and size.isdecimal() and not Path(text).expanduser().is_dir():
        if int(size) < 1:
            raise ValueError(f"Expected a size of at least 1 pixel after the @, but got {name!r}.")
        return Path(folder).expanduser(), int(size)
    return Path(text).expanduser(), usual

"""What families of networks change in the training of a data set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vcotta.training.trainer import TrainConfig

__all__ = ["RECIPES", "Recipe", "recipe_for"]


@dataclass(frozen=True)
class Recipe:
    """Changes of a `TrainConfig` for networks that do not train well with a data set's own settings.

    Attributes:
        networks: Pattern that the whole name of such a network matches, as on the command line.
        lr: Factor of the data set's peak learning rate, so that fine-tuning keeps its small steps.
        long: Whether the training takes the data set's number of epochs for long trainings.
        settings: Settings in place of the data set's.
    """

    networks: str
    lr: float
    long: bool
    settings: Mapping[str, Any]


TRANSFORMER = Recipe(
    r"vit-.*|timm:(.*_)?(vit|deit|swin|convnext).*|torchvision:(vit|swin|convnext).*",
    lr=0.005,
    long=True,
    settings={
        "optimizer": "adamw",
        "weight_decay": 0.05,
        "rise": 0.1,
        "augmix": False,
        "operations": 2,
        "mixing": 0.5,
        "label_smoothing": 0.1,
    },
)
"""On CIFAR-10 AdamW with a peak of 1e-3, reached in a tenth of the steps, a decay of 0.05, label smoothing, and CutMix
or mixup on half of the images: the settings with which Lee et al. (2021, "Vision Transformer for Small-Size Datasets")
train small vision transformers, for 100 epochs in batches of 128. Random operations replace their AutoAugment; repeated
augmentation, random erasing and stochastic depth are left out. It has not been measured on CIFAR-10 yet."""

RECIPES = (TRANSFORMER,)


def recipe_for(network: str, config: TrainConfig, long_epochs: int) -> TrainConfig:
    """Return the settings of a data set's training with the changes that a network needs.

    Args:
        network: Its name, as for `vcotta.models.build_network`.
        config: The data set's settings.
        long_epochs: Its number of epochs for long trainings.

    Example:
        >>> changed = recipe_for("vit-32px", TrainConfig(epochs=30, lr=0.2), long_epochs=150)
        >>> changed.optimizer, changed.lr, changed.epochs
        ('adamw', 0.001, 150)
        >>> recipe_for("resnet-20", TrainConfig(epochs=30), long_epochs=150).epochs
        30
    """
    name = network.strip().lower().replace("_", "-") if ":" not in network else network.strip()
    for recipe in RECIPES:
        if re.fullmatch(recipe.networks, name):
            epochs = long_epochs if recipe.long else config.epochs
            return replace(config, epochs=epochs, lr=recipe.lr * config.lr, **recipe.settings)
    return config

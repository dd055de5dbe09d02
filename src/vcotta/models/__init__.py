"""Networks to adapt; each normalises its input itself, so all of them take images in [0, 1]."""

from vcotta.models.files import LoadedWeights, load_weights, save_weights
from vcotta.models.keras_resnet import fetch_resnet50
from vcotta.models.normalised import Normalised, NormalisedNetwork
from vcotta.models.resnet import CifarResNet, ResNet
from vcotta.models.resnext import ResNeXt
from vcotta.models.vit import ViT
from vcotta.models.wide_resnet import WideResNet
from vcotta.models.zoo import build_network, expected_error, list_networks

__all__ = [
    "CifarResNet",
    "LoadedWeights",
    "Normalised",
    "NormalisedNetwork",
    "ResNeXt",
    "ResNet",
    "ViT",
    "WideResNet",
    "build_network",
    "expected_error",
    "fetch_resnet50",
    "list_networks",
    "load_weights",
    "save_weights",
]

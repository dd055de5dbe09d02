"""The networks that are adapted; normalisation is part of each, so all of them take images in [0, 1]."""

from vcotta.models.wide_resnet import WideResNet

__all__ = ["WideResNet"]

"""The version, kept apart so that building the package need not import torch."""

__version__ = "0.3.0"

"""Training a source network, and checking one that was trained elsewhere."""

from vcotta.training.trainer import TrainConfig, train

__all__ = ["TrainConfig", "train"]

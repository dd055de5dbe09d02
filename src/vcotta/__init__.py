"""Continual test-time adaptation: VCoTTA and its rivals.

Example:
    >>> import torch, vcotta
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 10))  # your classifier
    >>> source = [(torch.rand(8, 3, 4, 4), torch.randint(10, (8,)))]  # its training data
    >>> adapter = vcotta.build_adapter("vcotta", model, source=source, views=2)
    >>> adapter(torch.rand(8, 3, 4, 4)).shape  # predicts, then adapts
    torch.Size([8, 10])
"""

from vcotta._version import __version__
from vcotta.bayes import (
    WarmUpConfig,
    kl_divergence,
    load_warmed,
    sampling,
    save_warmed,
    to_point,
    to_variational,
    warm_up,
)
from vcotta.checkpoint import load, save
from vcotta.corruptions import corrupt
from vcotta.evaluate import run_stream
from vcotta.guard import Guard
from vcotta.methods import (
    BN,
    TENT,
    Adapter,
    BNConfig,
    CoTTA,
    CoTTAConfig,
    Source,
    SourceConfig,
    TENTConfig,
    VCoTTA,
    VCoTTAConfig,
    build_adapter,
    list_methods,
)
from vcotta.prediction import Prediction
from vcotta.runs import Run
from vcotta.runtime import Runtime
from vcotta.streams import Batch, ContinualStream

__all__ = [
    "BN",
    "TENT",
    "Adapter",
    "BNConfig",
    "Batch",
    "CoTTA",
    "CoTTAConfig",
    "ContinualStream",
    "Guard",
    "Prediction",
    "Run",
    "Runtime",
    "Source",
    "SourceConfig",
    "TENTConfig",
    "VCoTTA",
    "VCoTTAConfig",
    "WarmUpConfig",
    "__version__",
    "build_adapter",
    "corrupt",
    "kl_divergence",
    "list_methods",
    "load",
    "load_warmed",
    "run_stream",
    "sampling",
    "save",
    "save_warmed",
    "to_point",
    "to_variational",
    "warm_up",
]

"""An optimiser's state on its way back from a file."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["load_optimizer"]


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Restore an optimiser from its ``state_dict``, with every moment laid out in memory as its parameter is.

    Files hold tensors row by row, while weights of convolutions may be kept in another order (``channels_last``). A
    fused optimiser goes through weight, gradient and moments by their places in memory: given another order it would
    pair the wrong numbers, or refuse to step on a GPU.

    Example:
        >>> weight = torch.ones(2, 3, 2, 2).contiguous(memory_format=torch.channels_last).requires_grad_()
        >>> adam = torch.optim.Adam([weight], fused=True)
        >>> weight.sum().backward(), adam.step()
        (None, None)
        >>> state = adam.state_dict()
        >>> state["state"][0]["exp_avg"] = state["state"][0]["exp_avg"].contiguous()
        >>> load_optimizer(adam, state)
        >>> adam.state[weight]["exp_avg"].stride() == weight.stride()
        True
    """
    optimizer.load_state_dict(state)
    for parameter, moments in optimizer.state.items():
        for name, moment in moments.items():
            if isinstance(moment, Tensor) and moment.shape == parameter.shape and moment.stride() != parameter.stride():
                moments[name] = torch.empty_like(parameter, dtype=moment.dtype, requires_grad=False).copy_(moment)

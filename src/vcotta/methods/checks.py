"""What an adapter refuses, and the words it uses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["check_images", "check_state"]


def check_images(images: Tensor) -> None:
    """Raise unless ``images`` is a non-empty float batch (batch, channels, height, width) with values in [0, 1]."""
    if not isinstance(images, Tensor):
        raise TypeError(
            f"Expected `images` to be a torch.Tensor, but got {type(images).__name__}. Try torch.from_numpy."
        )
    if not images.is_floating_point():
        hint = " Scale bytes first: images.float() / 255." if images.dtype == torch.uint8 else ""
        raise TypeError(f"Expected `images` to be floats in [0, 1], but got {images.dtype}.{hint}")
    if images.ndim != 4:
        hint = " Add the batch dimension: images.unsqueeze(0)." if images.ndim == 3 else ""
        raise ValueError(
            f"Expected `images` of shape (batch, channels, height, width), but got {tuple(images.shape)}.{hint}"
        )
    if images.numel() == 0:
        raise ValueError(f"Expected at least one image, but got an empty batch of shape {tuple(images.shape)}.")
    low, high = torch.stack(torch.aminmax(images.detach())).tolist()
    if not (low >= -1e-6 and high <= 1 + 1e-6):  # also catches not-a-number
        if high != high or low != low or max(abs(low), abs(high)) == float("inf"):
            raise ValueError("Expected `images` to be finite, but they hold NaN or infinity.")
        hint = "Divide by 255." if high > 2 else "Undo the mean and std normalisation: it belongs inside the model."
        raise ValueError(f"Expected `images` to lie in [0, 1], but got values from {low:.4g} to {high:.4g}. {hint}")


def check_state(
    state: dict[str, Any],
    name: str,
    config: dict[str, Any],
    networks: dict[str, nn.Module],
    optimizer: torch.optim.Optimizer | None,
) -> None:
    """Raise unless ``state`` belongs to an adapter of this method, these settings and this network."""
    missing = {"method", "config", "seed", "networks", "optimizer", "rng", "counters"} - set(state)
    if missing:
        raise ValueError(f"Expected an adapter's state, but {', '.join(sorted(missing))} is missing from it.")
    if state["method"] != name:
        raise ValueError(f"Expected a state of {name}, but got one of {state['method']}.")
    for key, ours in config.items():
        theirs = state["config"].get(key)
        if theirs != ours:
            raise ValueError(
                f"The state was made with {key}={theirs!r}, this adapter has {key}={ours!r}. "
                "Build it with the same settings."
            )
    for role, net in networks.items():
        ours = {key: tuple(tensor.shape) for key, tensor in net.state_dict().items()}
        theirs = {key: tuple(tensor.shape) for key, tensor in state["networks"].get(role, {}).items()}
        if ours != theirs:
            odd = next(key for key in (*ours, *theirs) if ours.get(key) != theirs.get(key))
            raise ValueError(
                f"The state belongs to another network: {role} has {odd!r} of shape {ours.get(odd)} here "
                f"and {theirs.get(odd)} in the state."
            )
    if (optimizer is None) != (state["optimizer"] is None):
        raise ValueError("The state's optimiser does not fit this adapter.")
    if optimizer is not None:
        ours = [len(group["params"]) for group in optimizer.param_groups]
        theirs = [len(group["params"]) for group in state["optimizer"]["param_groups"]]
        if ours != theirs:
            raise ValueError(f"The state's optimiser has {theirs} parameters by group, this adapter's has {ours}.")

"""Checks of images, labels and source data, with errors that name the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from vcotta.nn.runtime import Runtime

__all__ = [
    "SourceBatches",
    "check_accepted",
    "check_gradient",
    "check_images",
    "check_labels",
    "check_learned",
    "check_network",
    "labelled_batches",
    "other_shape",
]


def check_images(images: Tensor) -> None:
    """Raise unless ``images`` is a non-empty float batch (batch, channels, height, width) with values in [0, 1]."""
    if not isinstance(images, Tensor):
        raise TypeError(
            f"Expected `images` to be a torch.Tensor, but got {type(images).__name__}. {_images_in(images)}"
        )
    if not images.is_floating_point():
        hint = " Scale bytes first: images.float() / 255." if images.dtype == torch.uint8 else ""
        raise TypeError(f"Expected `images` to be floats in [0, 1], but got {images.dtype}.{hint}")
    if images.ndim != 4:
        hint = f" {_missing_dimension(tuple(images.shape))}" if images.ndim == 3 else ""
        raise ValueError(
            f"Expected `images` of shape (batch, channels, height, width), but got {tuple(images.shape)}.{hint}"
        )
    if images.numel() == 0:
        raise ValueError(f"Expected at least one image, but got an empty batch of shape {tuple(images.shape)}.")
    low, high = torch.stack(torch.aminmax(images.detach())).tolist()
    if not (low >= -1e-6 and high <= 1 + 1e-6):  # also catches not-a-number
        if high != high or low != low or max(abs(low), abs(high)) == float("inf"):
            raise ValueError("Expected `images` to be finite, but they hold NaN or infinity.")
        raise ValueError(
            f"Expected `images` to lie in [0, 1], but got values from {low:.7g} to {high:.7g}. {_remedy(low, high)}"
        )


def _missing_dimension(shape: tuple[int, ...]) -> str:
    """How to make a batch of three dimensions, by their sizes, as advice."""
    if shape[0] in (1, 3, 4):
        return "Add the batch dimension: images.unsqueeze(0)."
    if shape[-1] in (1, 3, 4):
        return "Of one image with the channels last make a batch: images.permute(2, 0, 1).unsqueeze(0)."
    return "Of images without channels: images.unsqueeze(1), if the network takes one channel."


def _remedy(low: float, high: float) -> str:
    """The likely reason why images do not lie in [0, 1], as advice."""
    if low > -0.1 and high < 1.1:
        return "Resizing overshoots a little: images.clamp(0, 1)."
    if low < 0 or high <= 20:  # bytes are never negative, and seldom all so dark
        return "Undo the mean and std normalisation: it belongs inside the model."
    return "Divide by 255."


def check_accepted(net: nn.Module, images: Tensor) -> int:
    """Raise ValueError unless a network turns two images into logits, and return the number of classes."""
    try:
        output = net(images[:2])
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shape = tuple(images.shape[1:])
        last = shape[-1] in (1, 3, 4) and shape[0] not in (1, 3, 4)
        hint = " The channels seem to come last: put them first with images.permute(0, 3, 1, 2)." if last else ""
        raise ValueError(
            f"The network does not take images of shape {shape} (channels, height, width): {error}{hint and '.'}{hint}"
        ) from error
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(images[:2]):
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"Expected the network to return logits of shape (batch, classes), but got {got}.")
    if output.shape[1] == 1:
        raise ValueError(
            "Expected the network to return logits of two classes or more, but it returns one number for an image. "
            "For a yes or no with logit z give two: torch.cat([torch.zeros_like(z), z], 1)."
        )
    constant = len(output) > 1 and torch.equal(output[0], output[1])
    if output.min() >= 0 and (output.sum(1) - 1).abs().max() < 1e-3 and not constant:
        raise ValueError(
            "Expected the network to return logits, but its outputs are probabilities: none is negative, and those of "
            "an image sum to 1. Remove its softmax."
        )
    return output.shape[1]


def check_gradient(net: nn.Module, output: Tensor) -> None:
    """Raise ValueError if parameters of a network are to be trained, but its output does not depend on them."""
    if torch.is_grad_enabled() and not output.requires_grad and any(p.requires_grad for p in net.parameters()):
        raise ValueError(
            f"Expected the outputs of {type(net).__name__} to have a gradient, but they have none. Remove "
            "torch.no_grad() and detach() from its forward."
        )


def other_shape(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> str | None:
    """Describe the first tensor whose name or shape differs between a network and a file; None if all agree.

    Example:
        >>> other_shape(nn.Linear(2, 1).state_dict(), nn.Linear(3, 1).state_dict())
        "'weight' has shape (1, 3) there and (1, 2) in the network"
    """
    here, there = ({name: tuple(getattr(t, "shape", ())) for name, t in side.items()} for side in (ours, theirs))
    for name in dict.fromkeys((*here, *there)):
        if here.get(name) != there.get(name):
            return f"{name!r} has shape {there.get(name)} there and {here.get(name)} in the network"
    return None


def check_labels(labels: Tensor, images: int, classes: int) -> None:
    """Raise unless ``labels`` holds one whole number from 0 to ``classes - 1`` for each image."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"Expected `labels` to be a tensor of whole numbers, but got {got}.")
    if labels.shape != (images,):
        raise ValueError(f"Expected `labels` of shape ({images},), one per image, but got {tuple(labels.shape)}.")
    low, high = torch.stack(torch.aminmax(labels)).tolist()
    if low < 0 or high >= classes:
        raise ValueError(
            f"Expected `labels` to be 0 to {classes - 1}, one for each output of the network, but got {low} to {high}."
        )


def labelled_batches(source: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (images, labels) of source data, and raise TypeError if it yields anything else."""
    if not (hasattr(source, "__iter__") or hasattr(source, "__getitem__")):
        made = " Make one: vcotta.data.batches(data.images, data.labels, 50)." if hasattr(source, "labels") else ""
        raise TypeError(
            f"Expected source data to be a loader that yields (images, labels), but got {type(source).__name__}.{made}"
        )
    for batch in source:
        if isinstance(batch, tuple | list) and len(batch) == 2 and not all(isinstance(x, Tensor) for x in batch):
            kinds = [type(x).__name__ for x in batch]
            made = "torch.from_numpy(array)" if "ndarray" in kinds else "torch.tensor(labels)"
            raise TypeError(
                "Expected source data to yield pairs of torch tensors, (images, labels), but got "
                f"({', '.join(kinds)}). Make tensors of them: {made}."
            )
        if not _is_pair(batch) or batch[0].ndim != 4:
            raise TypeError(
                f"Expected source data to yield batches, (images of shape (batch, channels, height, width), labels), "
                f"but got {_kind(batch)}. {_as_pairs(batch)}"
            )
        yield batch[0], batch[1]


def _is_pair(batch: object) -> bool:
    return isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[0], Tensor)


def _is_longer(batch: object) -> bool:
    """Whether it is images with more than labels, as (images, labels, indices)."""
    return isinstance(batch, tuple | list) and len(batch) > 2 and isinstance(batch[0], Tensor) and batch[0].ndim == 4


def _images_in(batch: Any) -> str:
    """How to get at the images of what was given in their place."""
    if isinstance(batch, Mapping):
        return f"Of a batch of a loader pass the images: batch[{next(iter(batch), 'image')!r}]."
    if _is_pair(batch) or _is_longer(batch):
        return "Of a batch of a loader pass the images: batch[0]."
    return "Try torch.from_numpy."


def _as_pairs(batch: Any) -> str:
    """How to make pairs of batches of another form."""
    if (isinstance(batch, Mapping) and len(batch) > 1) or _is_longer(batch):
        images, labels = list(batch)[:2] if isinstance(batch, Mapping) else (0, 1)
        pairs = f"[(b[{images!r}], b[{labels!r}]) for b in loader]"
        return f"Make pairs of them: DataLoader(..., collate_fn=...), or {pairs}."
    return "Wrap it: torch.utils.data.DataLoader(TensorDataset(images, labels), batch_size=64)."


def _kind(batch: Any) -> str:
    """Describe what was yielded in place of a batch."""
    if isinstance(batch, Mapping):
        return f"a {type(batch).__name__} of {', '.join(map(str, batch)) or 'nothing'}"
    if _is_pair(batch):
        return f"images of shape {tuple(batch[0].shape)}"
    if isinstance(batch, Tensor):
        return f"a tensor of shape {tuple(batch.shape)}"
    return f"a {type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, tuple | list) else "")


class SourceBatches:
    """Source data on the device, its images checked; ``accept`` raises for images that the network does not take."""

    def __init__(
        self, source: Iterable[tuple[Tensor, Tensor]], runtime: Runtime, accept: Callable[[Tensor], object]
    ) -> None:
        self.source, self.runtime, self.accept = source, runtime, accept

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        empty = True
        for images, labels in labelled_batches(self.source):
            check_images(images)
            empty = False
            images, labels = (x.clone() if x.is_inference() else x for x in (images, labels))
            images = self.runtime.place_images(images)
            self.accept(images)
            yield images, labels.to(self.runtime.device)
        if empty:
            raise ValueError(
                "Expected `source` to yield images, but it is empty. A generator can be read only once: give a loader."
            )


def check_learned(method: str, learned: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless what a method learned from source data is finite."""
    for name, tensor in learned.items():
        if not tensor.isfinite().all():
            raise ValueError(
                f"Expected what {method} learns from source data to be finite, but its {name} hold NaN or infinity. "
                "Check the network's outputs on the source images."
            )


def check_network(model: nn.Module) -> None:
    """Raise unless ``model`` is a network with real, finite weights that can be copied and trained."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"Expected `model` to be a torch.nn.Module, but got {type(model).__name__}.")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise TypeError(
            "Expected a network of Python modules, but got a scripted or traced one (torch.jit), which cannot be "
            "adapted. Give the nn.Module it was made from."
        )
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    if lazy := next((name for name, tensor in tensors.items() if is_lazy(tensor)), None):
        raise ValueError(
            f"Expected a network with weights, but {lazy!r} is a lazy parameter without a shape. Call the network "
            "once on images of the right size first."
        )
    statistics = ("running_mean", "running_var")  # other buffers may hold infinity, as masks of attention do
    tensors |= {name: buffer for name, buffer in model.named_buffers() if name.endswith(statistics)}
    if meta := next((name for name, tensor in tensors.items() if tensor.is_meta), None):
        raise ValueError(
            f"Expected a network with weights, but {meta!r} is on the meta device and has none. Make the network on "
            "the CPU or call model.to_empty(device='cpu'), and load its weights."
        )
    if odd := next((name for name, tensor in tensors.items() if not tensor.detach().isfinite().all()), None):
        raise ValueError(
            f"Expected a network with finite weights, but {odd!r} holds NaN or infinity. Load a sound checkpoint."
        )

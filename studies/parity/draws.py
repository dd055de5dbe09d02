"""The random draws of our method, written down while it runs and played back to the official code.

Both sides then see the same views, restore the same weights and choose the same images, in whatever order and type each
asks for them. A draw of another kind or shape than ours is an error, so a method cannot pass with draws of its own.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

_VIEWS = ("random_view", "random_views", "weak_view", "strong_view")


class Tape:
    """What one step of our method drew.

    Attributes:
        views: Images and the view of each, in the order they were drawn.
        uniform: What ``torch.rand`` and ``torch.rand_like`` gave outside of views.
        permutations: What ``torch.randperm`` gave outside of views.
    """

    def __init__(self) -> None:
        self.views: deque[tuple[Tensor, Tensor]] = deque()
        self.uniform: deque[Tensor] = deque()
        self.permutations: deque[Tensor] = deque()
        self._in_view = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Write down what our methods draw inside the block, in place of what was there before."""
        self.views, self.uniform, self.permutations = deque(), deque(), deque()
        with ExitStack() as patches:
            for name, module in list(sys.modules.items()):
                if not name.startswith("vcotta.methods"):
                    continue
                for view in _VIEWS:
                    if hasattr(module, view):
                        patches.enter_context(patch.object(module, view, self._viewed(getattr(module, view))))
            for name, kept in (("rand", "uniform"), ("rand_like", "uniform"), ("randperm", "permutations")):
                patches.enter_context(patch.object(torch, name, self._kept(getattr(torch, name), kept)))
            yield

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Give what was written down to whoever draws inside the block."""
        with (
            patch.object(torch, "rand", self._rand),
            patch.object(torch, "randperm", self._randperm),
            patch.object(np.random, "choice", self._choice),
        ):
            yield

    def view(self, images: Tensor) -> Tensor:
        """Return our next view of these images; of a part of the batch, in any order, its rows.

        Without a view left the images come back: some official code draws views and then does not use them.
        """
        if not self.views:
            return images
        before, after = self.views.popleft()
        if images.shape == before.shape and torch.equal(images, before.to(images.dtype)):
            return after.to(images.dtype)
        same = (images.flatten(1).unsqueeze(1) == before.to(images.dtype).flatten(1).unsqueeze(0)).all(-1)
        if not same.any(1).all():
            raise ValueError("Expected views of the images that our method augmented, but got others.")
        return after[same.int().argmax(1)].to(images.dtype)

    def _viewed(self, draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def drawn(images: Tensor, *args: Any, **options: Any) -> Tensor:
            self._in_view = True
            try:
                result = draw(images, *args, **options)
            finally:
                self._in_view = False
            for view in result if result.ndim > images.ndim else [result]:
                self.views.append((images.detach().clone(), view.detach().clone()))
            return result

        return drawn

    def _kept(self, draw: Callable[..., Tensor], kept: str) -> Callable[..., Tensor]:
        def drawn(*args: Any, **options: Any) -> Tensor:
            result = draw(*args, **options)
            if not self._in_view:
                getattr(self, kept).append(result.clone())
            return result

        return drawn

    def _rand(self, *shape: Any, **options: Any) -> Tensor:
        drawn = self.uniform.popleft() if self.uniform else torch.empty(0)
        wanted = torch.Size(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        if drawn.shape != wanted and not drawn.numel() == wanted.numel() == 1:
            raise ValueError(f"Expected draws of shape {tuple(drawn.shape)}, as ours, but got {tuple(wanted)}.")
        return drawn.to(torch.get_default_dtype()).view(wanted)

    def _randperm(self, count: int, **options: Any) -> Tensor:
        while self.permutations:
            drawn = self.permutations.popleft()
            if len(drawn) == count:
                return drawn
        raise ValueError(f"Expected a permutation that our method drew, too, but got one of {count}.")

    def _choice(self, count: int, size: int, replace: bool = True) -> np.ndarray:
        if replace:
            raise ValueError("Expected a choice without replacement, but got one with it.")
        return self._randperm(count)[:size].numpy()

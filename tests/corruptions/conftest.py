"""Reference arrays, and a cache folder without photographs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vcotta.corruptions import frost as textures

Pixels = NDArray[np.uint8]


@pytest.fixture(scope="session", autouse=True)
def _empty_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test here sees the photographs of the machine it runs on, nor repeats the notice that they are missing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VCOTTA_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(textures, "_notices", {"procedural"})
        yield


@pytest.fixture(scope="session")
def reference() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parents[1] / "fixtures" / "corruptions_ref.npz") as file:
        return dict(file)


@pytest.fixture(scope="session")
def smooth() -> Callable[..., Pixels]:
    """A factory of seeded images with soft shapes and some noise."""

    def make(count: int = 4, height: int = 32, width: int = 32, seed: int = 0) -> Pixels:
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.rand(count, 3, 5, 5, generator=generator)
        fine = torch.rand(count, 3, height, width, generator=generator)
        large = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
        return (large * 230 + fine * 25).to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()

    return make

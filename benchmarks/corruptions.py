"""How long corrupting takes: `vcotta.corruptions` beside the PyPI package imagecorruptions-imaug, on the same images.

What: milliseconds an image for each of the fifteen standard corruptions, both ways, and their sum; then the wall time
of all fifteen on 10 000 images with two worker processes.
How: 32 x 32 images, severity 5, one thread, one process, all images in one array. Ours takes the array; the rival takes
an image at a time, as its interface wants. Each is warmed up untimed (numba compiles, textures load), then the best of
``--repeats`` runs counts, the two taking turns so that a busy machine hurts both. The rival always uses the frost
photographs; ours uses them if they were fetched (`vcotta data fetch frost`), and the header says which.
The rival knows only the constants of ImageNet-C, whatever the image size. So ours is timed twice: with the constants of
CIFAR-10-C, its default at this size, and with those of ImageNet-C (``table=224``), the same work as the rival's.

    OMP_NUM_THREADS=1 python -m benchmarks.corruptions --json benchmarks/results/corruptions.json

The rival is optional: python -m pip install imagecorruptions-imaug (best in an environment of its own).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"  # before the libraries read it

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks.steps import processor  # noqa: E402
from vcotta._util.files import write_json  # noqa: E402
from vcotta.corruptions import STANDARD, corrupt, frost_source  # noqa: E402

SEVERITY = 5


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def smooth_images(count: int) -> np.ndarray:
    """Return seeded 32 x 32 images with soft shapes and some noise."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 6, 6, generator=generator)
    fine = torch.rand(count, 3, 32, 32, generator=generator)
    large = torch.nn.functional.interpolate(coarse, (32, 32), mode="bicubic").clamp(0, 1)
    return (large * 225 + fine * 30).to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def load_images(path: Path | None, count: int) -> np.ndarray:
    if path is None:
        return smooth_images(count)
    images = np.load(path, allow_pickle=False)
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3):
        raise SystemExit(f"Expected {path} to hold uint8 (N, 32, 32, 3), but got {images.dtype} {images.shape}.")
    return images[np.arange(count) % len(images)]


def load_rival() -> Callable[..., np.ndarray] | None:
    try:
        module = importlib.import_module("imagecorruptions")
    except ImportError as error:
        print(f"The rival cannot be imported ({error}); timing ours alone.")
        print("To compare: python -m pip install imagecorruptions-imaug\n")
        return None
    return module.corrupt


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def compare(images: np.ndarray, rival: Callable[..., np.ndarray] | None, rival_count: int, repeats: int) -> dict:
    """Return milliseconds an image, for each corruption and for all together."""

    def theirs(name: str) -> None:
        for image in images[:rival_count]:
            rival(image, corruption_name=name, severity=SEVERITY)

    runs: dict[str, tuple[Callable[[str], object], int]] = {
        "ours": (lambda name: corrupt(images, name, SEVERITY), len(images)),
        "ours_224": (lambda name: corrupt(images, name, SEVERITY, table=224), len(images)),
    }
    if rival:
        runs["rival"] = (theirs, rival_count)
    print(f"{'ms an image':20}" + "".join(f"{key:>10}" for key in runs))
    table = {}
    for name in STANDARD:
        best = dict.fromkeys(runs, float("inf"))
        for repeat in range(repeats + 1):
            for key, (run, count) in runs.items():
                taken = 1000 * seconds(lambda run=run, name=name: run(name)) / count
                if repeat:  # the first is the warm-up
                    best[key] = min(best[key], taken)
        table[name] = best
        print(line(name, best), flush=True)
    total = {key: sum(row[key] for row in table.values()) for key in runs}
    print(line("all 15", total))
    return {"milliseconds_an_image": table, "sum": total}


def line(name: str, row: dict[str, float]) -> str:
    cells = [f"{value:>10.3f}" for value in row.values()]
    cells += [f"{row['rival'] / row[key]:>10.1f} x" for key in ("ours", "ours_224") if "rival" in row]
    return f"{name:20}" + "".join(cells)


def corrupt_share(share: tuple[np.ndarray, int]) -> int:
    images, offset = share
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sum(int(corrupt(images, name, SEVERITY, offset=offset)[0, 0, 0, 0]) for name in STANDARD)


def whole_set(images: np.ndarray, count: int, workers: int) -> float:
    """Return the seconds that all fifteen take on ``count`` images; the workers' start is not counted."""
    large = images[np.arange(count) % len(images)]
    bounds = [count * k // workers for k in range(workers + 1)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(corrupt_share, [(large[:64], 0)] * workers))
        shares = [(large[a:b], a) for a, b in pairwise(bounds)]
        return seconds(lambda: list(pool.map(corrupt_share, shares)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--images", type=Path, help="a .npy file of uint8 (N, 32, 32, 3); default: seeded smooth images"
    )
    parser.add_argument("--count", type=int, default=1000, help="images for ours (default 1000)")
    parser.add_argument("--rival-count", type=int, default=200, help="images for the rival (default 200)")
    parser.add_argument("--repeats", type=int, default=3, help="runs, of which the best counts (default 3)")
    parser.add_argument("--set-size", type=int, default=10_000, help="images in the second part (default 10000)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")

    images, rival = load_images(arguments.images, arguments.count), load_rival()
    packages = ("torch", "numpy", "pillow", "imagecorruptions-imaug", "opencv-python", "scikit-image", "scipy", "numba")
    setting = {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "threads": torch.get_num_threads(),
        "severity": SEVERITY,
        "image_size": 32,
        "images": "given" if arguments.images else "seeded smooth images",
        "count": arguments.count,
        "rival_count": arguments.rival_count,
        "repeats": arguments.repeats,
        "frost_textures": frost_source(),
    }
    for key, value in setting.items():
        print(f"{key}: {value}")
    print()
    results = compare(images, rival, min(arguments.rival_count, len(images)), arguments.repeats)
    wall = whole_set(images, arguments.set_size, workers=2)
    print(f"\n15 x {arguments.set_size} images, two processes of one thread: {wall:.1f} s")
    if arguments.json:
        results |= {"whole_set": {"images": arguments.set_size, "workers": 2, "seconds": wall}}
        write_json(arguments.json, {"setting": setting, **results})


if __name__ == "__main__":
    main()

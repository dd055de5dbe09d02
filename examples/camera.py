"""A camera that drops its pictures into a folder: label each one, and adapt to the view as it changes.

New files are read in the order of their names, a batch at a time, and one line a file is printed: its name, the class
and the confidence. After each batch the adapter is saved, so that the script continues where it was
stopped.

    python examples/camera.py foggy-day --demo        # make a folder with digits in fog, and watch it
    python examples/camera.py pictures --weights warmed.safetensors --model resnet-50 --size 224 --classes names.txt

The network is one from `vcotta warmup`. Write a picture under a name that begins with a dot and rename it when it is
whole, as this script's own demo does: half a file is no picture.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

import vcotta
from vcotta.bayes import load_warmed
from vcotta.data import Batches, FilePixels, batches, image_suffixes, load_digits
from vcotta.models import build_network

STATE, SEEN = "adapter.vcotta", "seen.json"


def new_pictures(folder: Path, seen: set[str]) -> list[str]:
    """Return the names of new pictures, in order."""
    found = (path.name for path in folder.iterdir() if path.suffix.lower() in image_suffixes())
    return sorted(name for name in found if not name.startswith(".") and name not in seen)


def watch(
    folder: Path, seen: set[str], batch_size: int, size: int, patience: float
) -> Iterator[tuple[list[str], Tensor]]:
    """Yield the names and pixels of new pictures, a batch at a time; fewer if none came for a while, then stop."""
    waited = 0.0
    while True:
        names = new_pictures(folder, seen)
        if len(names) >= batch_size or (names and waited >= patience):
            names, waited = names[:batch_size], 0.0
            pixels = FilePixels(folder, tuple(names), size, "resize")[:]
            yield names, torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
        elif waited >= patience:
            return
        else:
            time.sleep(0.1)
            waited += 0.1


def follow(
    folder: Path,
    state: Path,
    make: Callable[[], vcotta.Adapter],
    class_names: Sequence[str],
    *,
    batch_size: int = 16,
    size: int = 32,
    patience: float = 2.0,
) -> list[tuple[str, str, float]]:
    """Label the pictures of a folder until none come any more, and return what was said of each."""
    state.mkdir(parents=True, exist_ok=True)
    adapter, seen = make(), set()
    if (state / SEEN).exists():
        memory = json.loads((state / SEEN).read_text())
        seen = set(memory["names"])
        adapter = vcotta.load(state / memory["adapter"], adapter.start)
    said = []
    for names, images in watch(folder, seen, batch_size, size, patience):
        sure, best = adapter(images).exp().max(1)  # predicts, then adapts
        for name, label, value in zip(names, best.tolist(), sure.tolist(), strict=True):
            said.append((name, class_names[label], value))
            print(f"{name}\t{class_names[label]}\t{value:.2f}", flush=True)
        seen |= set(names)
        remember(adapter, seen, state)
    if not said:
        print(f"Nothing new in {folder}: its {len(seen)} pictures were labelled before.", file=sys.stderr)
    return said


def remember(adapter: vcotta.Adapter, seen: set[str], state: Path) -> None:
    """Keep adapter and names together: the second file names the first, so a kill in between leaves the old pair."""
    path = state / f"{len(seen)}-{STATE}"
    vcotta.save(adapter, path)
    aside = state / f"{SEEN}.new"
    aside.write_text(json.dumps({"names": sorted(seen), "adapter": path.name}))
    aside.replace(state / SEEN)
    for old in set(state.glob(f"*-{STATE}")) - {path}:
        old.unlink()


def foggy_day(folder: Path, count: int = 96) -> tuple[list[str], Callable[[], vcotta.Adapter]]:
    """Fill a folder with digits in ever thicker fog, and return their classes and an adapter that knows digits."""
    folder.mkdir(parents=True, exist_ok=True)
    train_data, data = load_digits()
    for place in range(count):
        severity = 1 + 5 * place // count
        pixels = vcotta.corrupt(data.images[place : place + 1], "fog", severity, seed=place)[0]
        aside = folder / f".{place:04d}.png"
        Image.fromarray(pixels).save(aside)
        aside.rename(folder / f"{place:04d}.png")
    torch.manual_seed(0)
    source = batches(train_data.images, train_data.labels, 50, shuffle_seed=0)
    net = vcotta.warm_up(trained(build_network("wrn-10-1", 10), source), source, vcotta.WarmUpConfig(flip=False))
    return list(data.class_names), partial(vcotta.build_adapter, "vcotta", net, dataset="digits", views=4)


def trained(net: nn.Module, source: Batches, epochs: int = 8) -> nn.Module:
    """Train a network on source images, as you would without vcotta."""
    optimizer = torch.optim.Adam(net.train().parameters(), 3e-3)
    for _ in range(epochs):
        for images, labels in source:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
    return net.eval()


def main(arguments: Sequence[str] | None = None) -> list[tuple[str, str, float]]:
    """Watch the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--demo", action="store_true", help="fill the folder with digits in fog first")
    parser.add_argument("--state", type=Path, help="where the adapter is kept; by default FOLDER/.state")
    parser.add_argument("--weights", type=Path, help="a network from `vcotta warmup`")
    parser.add_argument("--model", default="resnet-50", help="its name, as for `vcotta run`")
    parser.add_argument("--classes", type=Path, help="a text file with one class name a line")
    parser.add_argument("--batch-size", type=int, default=16, help="pictures to wait for; more adapt more steadily")
    parser.add_argument("--size", type=int, default=32, help="side of the images the network takes")
    parser.add_argument("--patience", type=float, default=2.0, help="seconds without a picture after which to stop")
    asked = parser.parse_args(arguments)
    if asked.demo:
        class_names, make = foggy_day(asked.folder)
    elif not asked.folder.is_dir():
        parser.error(f"there is no folder {asked.folder}")
    elif asked.weights is None or asked.classes is None:
        parser.error("--weights and --classes are needed, or --demo")
    else:
        class_names = [name for name in asked.classes.read_text(encoding="utf-8").splitlines() if name]
        net = load_warmed(build_network(asked.model, len(class_names)), asked.weights)
        make = partial(vcotta.build_adapter, "vcotta", net)
    return follow(
        asked.folder,
        asked.state or asked.folder / ".state",
        make,
        class_names,
        batch_size=asked.batch_size,
        size=asked.size,
        patience=asked.patience,
    )


if __name__ == "__main__":
    main()

"""PACS: photographs to learn from and to be tested on, and a network that is fine-tuned on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vcotta._util.files import replaced_folder
from vcotta._util.progress import display
from vcotta.data.folders import list_class_folders
from vcotta.experiments.benchmarks import find_training
from vcotta.experiments.build import train_network
from vcotta.models import save_weights
from vcotta.nn.runtime import Runtime

PHOTO = "photo"
DOMAINS = ("art_painting", "cartoon", "sketch", PHOTO)
"""The domains of the stream, in order; the photographs are those that were held back."""
HELD_BACK = 5
"""One photograph in this many is held back."""


def split(root: Path, out: Path) -> Path:
    """Make ``out``/train, photographs to learn from, and ``out``/stream, the domains, with links to the images."""
    root = root.resolve()
    if out.exists():
        return out
    found = {domain: list_class_folders(root / domain)[1] for domain in DOMAINS}
    with replaced_folder(out) as aside:
        for domain, files in found.items():
            for number, file in enumerate(files):
                held_back = domain != PHOTO or number % HELD_BACK == 0
                link = aside / ("stream" if held_back else "train") / (domain if held_back else "") / file
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(root / domain / file)
    return out


def fine_tuned(
    place: Path, network: str, weights: Path, out: Path, seed: int, device: str, epochs: int | None = None
) -> None:
    """Fine-tune a network on the photographs as `vcotta train --init` does, and write it to a file."""
    data = f"folder:{place / 'train'}"
    benchmark = find_training(data, fine_tuning=True)
    assert benchmark.training is not None
    config = benchmark.training if epochs is None else replace(benchmark.training, epochs=epochs)
    with display() as task:
        model = train_network(
            benchmark, network, seed=seed, config=config, runtime=Runtime(device), task=task, init=weights
        )
    save_weights(model, out, network=network, dataset="pacs-photo", classes=len(benchmark.load().class_names))

"""Guards: what streams that are none leave of an adapter, with and without its guard.

What: VCoTTA (``preset="best"``) on the digits adapts to two corruptions, then gets 200 batches of something that no
stream should hold, then one ordinary corruption, whose error is measured. Beside it BN, the plain method on the same
warmed network, which nothing can ruin, as it learns nothing. The ordinary stream of fifteen corruptions is run with and
without a guard as well: its records must be the same.
How: every cell is one network (seed), one attack and one corruption after it; all corruptions start from the state that
the attack left. Errors are means over the seeds.

    python benchmarks/guards.py                      # about 15 minutes on two cores, writes docs/results/guards.json
    python benchmarks/guards.py --seeds 0 --batches 40 --no-ordinary --out try.json
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta import Adapter, __version__, run_stream
from vcotta.corruptions import frost_source
from vcotta.experiments.benchmark import BENCHMARKS
from vcotta.experiments.setup import adapter_for, stream_for, train_network, warm_network
from vcotta.files import write_json

DIGITS = BENCHMARKS["digits"]
BATCH = 40
ATTACK_BATCH = 20
BEFORE = ("gaussian_noise", "fog")
AFTER = ("motion_blur", "brightness", "jpeg_compression")
ROOT = Path(__file__).parents[1]


def _draw(images: Tensor, labels: Tensor, size: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    chosen = torch.randint(len(images), (size,), generator=draws)
    return images[chosen], labels[chosen]


def noise(images: Tensor, labels: Tensor, net: nn.Module, size: int, draws: torch.Generator) -> Tensor:
    """Uniform noise, pixel by pixel."""
    return torch.rand(size, *images.shape[1:], generator=draws)


def constant(images: Tensor, labels: Tensor, net: nn.Module, size: int, draws: torch.Generator) -> Tensor:
    """Grey, the same in every pixel of every image."""
    return torch.full((size, *images.shape[1:]), 0.5)


def one_image(images: Tensor, labels: Tensor, net: nn.Module, size: int, draws: torch.Generator) -> Tensor:
    """One and the same digit: a camera that has stopped."""
    return images[:1].repeat(size, 1, 1, 1)


def one_class(images: Tensor, labels: Tensor, net: nn.Module, size: int, draws: torch.Generator) -> Tensor:
    """Digits of one class."""
    return _draw(images[labels == 3], labels[labels == 3], size, draws)[0]


@torch.no_grad()
def flipped_contrast(images: Tensor, labels: Tensor, net: nn.Module, size: int, draws: torch.Generator) -> Tensor:
    """Digits turned into their negative wherever that makes the source network more wrong: an adversary with labels."""
    plain, labels = _draw(images, labels, size, draws)
    losses = [F.cross_entropy(net(x), labels, reduction="none") for x in (plain, 1 - plain)]
    return torch.where((losses[1] > losses[0])[:, None, None, None], 1 - plain, plain)


ATTACKS: dict[str, Callable[..., Tensor]] = {
    "noise": noise,
    "constant image": constant,
    "one image": one_image,
    "one class": one_class,
    "flipped contrast": flipped_contrast,
}


def attacked(name: str, net: nn.Module, batches: int, size: int = ATTACK_BATCH) -> Iterator[Tensor]:
    """Yield the batches of an attack on a source network."""
    whole = next(iter(stream_for(DIGITS, corruptions=("none",), batch_size=10_000).batches()))
    draws = torch.Generator().manual_seed(1)
    return (ATTACKS[name](whole.images, whole.labels, net, size, draws) for _ in range(batches))


def error(adapter: Adapter, corruption: str, seed: int) -> float:
    """Error in per cent on all test digits of one corruption, adapting on the way."""
    stream = stream_for(DIGITS, corruptions=(corruption,), seed=seed, batch_size=BATCH)
    return 100 * float(run_stream(adapter, stream).summary()["mean"]["error"])


def lived(adapter: Adapter, attack: str, warmed: nn.Module, batches: int) -> dict[str, Any]:
    """Let an adapter live through an attack, and say what its guard did."""
    actions: list[str | None] = []
    for images in attacked(attack, warmed, batches):
        adapter(images)
        actions.append(adapter.last.get("guard", {}).get("action"))
    counts = Counter(action for action in actions if action is not None)
    return {"actions": dict(counts), "first_action": next((n for n, action in enumerate(actions) if action), None)}


def of_seed(seed: int, batches: int, ordinary: bool, guards: Sequence[bool] = (True, False)) -> dict[str, Any]:
    """All trials of one network and, if asked for, its ordinary stream with and without a guard."""
    torch.set_num_threads(1)
    warmed = warm_network(DIGITS, train_network(DIGITS, seed=seed), seed=seed)
    bn = {name: error(adapter_for(DIGITS, "bn", warmed, seed=seed), name, seed) for name in AFTER}
    rows = []
    for guard in guards:
        adapter = adapter_for(DIGITS, "vcotta", warmed, seed=seed, guard=guard)
        for corruption in BEFORE:
            error(adapter, corruption, seed)
        before = adapter.state_dict()
        for attack in (None, *ATTACKS):
            adapter.load_state_dict(before)
            facts = {"seed": seed, "attack": attack, "guard": guard}
            facts |= lived(adapter, attack, warmed, batches) if attack else {}
            left = adapter.state_dict()
            for corruption in AFTER:
                adapter.load_state_dict(left)
                after = {"corruption": corruption, "error": error(adapter, corruption, seed), "bn": bn[corruption]}
                rows.append(facts | after)
            print(f"seed {seed}, {attack}, guard {guard}: {[round(row['error'], 2) for row in rows[-3:]]}", flush=True)
    return {"rows": rows, "ordinary": compared(warmed, seed) if ordinary else None}


def compared(warmed: nn.Module, seed: int) -> dict[str, Any]:
    """Whether the records of the fifteen corruptions are the same with and without a guard."""
    adapters = [adapter_for(DIGITS, "vcotta", warmed, seed=seed, guard=guard) for guard in (False, True)]
    free, guarded = (run_stream(adapter, stream_for(DIGITS, seed=seed)).records for adapter in adapters)
    return {"seed": seed, "same_records": free == guarded}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="networks and streams")
    parser.add_argument("--batches", type=int, default=200, help="length of an attack")
    parser.add_argument("--ordinary", action=argparse.BooleanOptionalAction, default=True, help="run that stream, too")
    parser.add_argument("--workers", type=int, default=2, help="processes, one network each")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "guards.json", help="file to write")
    asked = parser.parse_args(arguments)
    with ProcessPoolExecutor(asked.workers, multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(of_seed, asked.seeds, repeat(asked.batches), repeat(asked.ordinary)))
    setting = {
        "batches": asked.batches,
        "batch_size": BATCH,
        "attack_batch_size": ATTACK_BATCH,
        "before": BEFORE,
        "seeds": asked.seeds,
        "frost": frost_source(),
        "torch": str(torch.__version__),
        "vcotta": __version__,
    }
    rows = [row for one in found for row in one["rows"]]
    ordinary = [one["ordinary"] for one in found if one["ordinary"]]
    write_json(asked.out, {"setting": setting, "ordinary": ordinary, "rows": rows})
    print(f"Written: {asked.out}")


if __name__ == "__main__":
    main()

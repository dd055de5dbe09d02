"""What attacks leave of an adapter, with and without its guard.

What: VCoTTA (``preset="best"``) on digits adapts to two corruptions, then gets 200 batches of something that no stream
should hold, then one ordinary corruption, whose error is measured. Beside it BN on the same warmed network, which no
attack can ruin, as it learns nothing. The ordinary stream of fifteen corruptions is run with and without a guard as
well: its records must be the same.
How: every row is one network (seed), one attack and one corruption after it; all corruptions start from the state that
the attack left. Errors are means over the seeds. One torch thread, CPU.

    python -m studies.guards.run                      # about 15 minutes on two cores, writes results/guards.json
    python -m studies.guards.run --seeds 0 --batches 40 --no-ordinary --out try.json
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

from studies.files import results_of
from vcotta import Adapter, __version__, run_stream
from vcotta._util.files import write_json
from vcotta.experiments.build import adapter_for_spec, start_network, stream_for
from vcotta.experiments.grid import run_spec
from vcotta.runs.spec import RunSpec

BATCH = 40
ATTACK_BATCH = 20
BEFORE = ("gaussian_noise", "fog")
AFTER = ("motion_blur", "brightness", "jpeg_compression")


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
    """Digits turned into their negative wherever that raises the source network's loss: an adversary with labels."""
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
    whole = next(iter(stream_for(RunSpec("source", corruptions=("none",), batch_size=10_000)).batches()))
    draws = torch.Generator().manual_seed(1)
    return (ATTACKS[name](whole.images, whole.labels, net, size, draws) for _ in range(batches))


def spec_of(method: str, seed: int, *corruptions: str, guard: bool | None = None) -> RunSpec:
    """Return the run of a method through some corruptions, on the network and the stream of a seed."""
    return RunSpec(
        method, start="warmed", corruptions=corruptions, batch_size=BATCH, seed=seed, stream_seed=seed, guard=guard
    )


def error(adapter: Adapter, corruption: str, seed: int) -> float:
    """Return the error in per cent on all test digits of one corruption, adapting on the way."""
    stream = stream_for(spec_of(adapter.name, seed, corruption))
    return 100 * float(run_stream(adapter, stream).summary()["mean"]["error"])


def under_attack(adapter: Adapter, attack: str, warmed: nn.Module, batches: int) -> dict[str, Any]:
    """Send an attack to an adapter, and return what its guard did."""
    actions: list[str | None] = []
    for images in attacked(attack, warmed, batches):
        adapter(images)
        actions.append(adapter.last.get("guard", {}).get("action"))
    counts = Counter(action for action in actions if action is not None)
    return {"actions": dict(counts), "first_action": next((n for n, action in enumerate(actions) if action), None)}


def of_seed(seed: int, batches: int, ordinary: bool, guards: Sequence[bool] = (True, False)) -> dict[str, Any]:
    """Return all rows of one network and, if asked for, its ordinary stream with and without a guard."""
    torch.set_num_threads(1)
    warmed = start_network(spec_of("vcotta", seed, *AFTER))
    bn = {name: error(adapter_for_spec(spec_of("bn", seed, name), model=warmed), name, seed) for name in AFTER}
    rows = []
    for guard in guards:
        adapter = adapter_for_spec(spec_of("vcotta", seed, *AFTER, guard=guard), model=warmed)
        for corruption in BEFORE:
            error(adapter, corruption, seed)
        before = adapter.state_dict()
        for attack in (None, *ATTACKS):
            adapter.load_state_dict(before)
            facts = {"seed": seed, "attack": attack, "guard": guard}
            facts |= under_attack(adapter, attack, warmed, batches) if attack else {}
            left = adapter.state_dict()
            for corruption in AFTER:
                adapter.load_state_dict(left)
                after = {"corruption": corruption, "error": error(adapter, corruption, seed), "bn": bn[corruption]}
                rows.append(facts | after)
            print(f"seed {seed}, {attack}, guard {guard}: {[round(row['error'], 2) for row in rows[-3:]]}", flush=True)
    return {"rows": rows, "ordinary": compared(warmed, seed) if ordinary else None}


def compared(warmed: nn.Module, seed: int) -> dict[str, Any]:
    """Return whether the records of the fifteen corruptions are the same with and without a guard."""
    specs = [RunSpec("vcotta", seed=seed, stream_seed=seed, guard=guard) for guard in (False, True)]
    free, guarded = (run_spec(spec, model=warmed).records for spec in specs)
    return {"seed": seed, "same_records": free == guarded}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of networks and streams")
    parser.add_argument("--batches", type=int, default=200, help="length of an attack")
    parser.add_argument("--ordinary", action=argparse.BooleanOptionalAction, default=True, help="run the fifteen, too")
    parser.add_argument("--workers", type=int, default=2, help="processes, one network each")
    parser.add_argument("--out", type=Path, default=results_of("guards") / "guards.json", help="file to write")
    options = parser.parse_args(arguments)
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(of_seed, options.seeds, repeat(options.batches), repeat(options.ordinary)))
    setting = {
        "batches": options.batches,
        "batch_size": BATCH,
        "attack_batch_size": ATTACK_BATCH,
        "before": BEFORE,
        "seeds": options.seeds,
        "frost": stream_for(RunSpec("source")).describe()["frost"],
        "torch": str(torch.__version__),
        "vcotta": __version__,
    }
    rows = [row for one in found for row in one["rows"]]
    ordinary = [one["ordinary"] for one in found if one["ordinary"]]
    write_json(options.out, {"setting": setting, "ordinary": ordinary, "rows": rows})
    print(f"Written: {options.out}")


if __name__ == "__main__":
    main()

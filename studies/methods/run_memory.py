"""Count the activations that a step stores for its backward pass: TENT, CoTTA and EcoTTA on one network.

What: for each method the largest number of bytes that wait for a backward pass of one step, without weights, per image.
EcoTTA's backward pass runs the parts of the network again, one after another; ``again`` is what the largest of them
stores while it does, beside the rest.
How: hooks of autograd see every tensor that is stored; each storage counts once. Random weights and images, on the CPU
in float32; CoTTA without views, which need no backward pass. Bytes are the same on any machine, GPU libraries' own
memory comes on top.

    OMP_NUM_THREADS=1 python -m studies.methods.run_memory --json studies/methods/results/memory.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vcotta
from vcotta._util.files import write_json
from vcotta.methods import Adapter, ECoTTA
from vcotta.models import build_network

METHODS: dict[str, dict[str, Any]] = {
    "tent": {},
    "cotta": {"threshold": 0.0},
    "ecotta": {"warm_up_epochs": 1},
}


def stored_bytes(adapter: Adapter, act: Callable[[], object]) -> int:
    """Return the bytes of the activations that ``act`` stores for backward passes; weights do not count."""
    weights = {t.data_ptr() for net in (adapter.start, *adapter.networks.values()) for t in net.parameters()}
    seen: dict[int, Tensor] = {}  # which keeps them, so that no address is used again

    def keep(tensor: Tensor) -> Tensor:
        if (place := tensor.untyped_storage().data_ptr()) not in weights:
            seen[place] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        act()
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())


def bytes_of_largest_part(adapter: ECoTTA, images: Tensor) -> int:
    """Return the bytes that the part which stores most stores while the backward pass runs it again."""
    inputs: list[Tensor] = []
    hooks = [part.register_forward_pre_hook(lambda part, given: inputs.append(given[0])) for part in adapter.parts]
    with torch.no_grad():
        adapter.logits(adapter.networks["model"], images)
    for hook in hooks:
        hook.remove()
    again = []
    for place, (part, x) in enumerate(zip(adapter.parts, inputs, strict=True)):
        wanted = x.requires_grad_(place > 0)  # images need no gradient
        again.append(stored_bytes(adapter, lambda part=part, x=wanted: part._with_distance(x)))  # type: ignore[misc]
    return max(again)


def measure(network: str, batch: int, side: int) -> list[dict[str, Any]]:
    """Return a row for each method, in bytes per image."""
    torch.manual_seed(0)
    model, images = build_network(network), torch.rand(batch, 3, side, side)
    source, rows = [(images, torch.arange(batch) % 10)], []
    for name, options in METHODS.items():
        adapter = vcotta.build_adapter(name, model, source=source, guard=False, **options)
        row = {"method": name, "stored": stored_bytes(adapter, lambda one=adapter: one(images)) // batch}
        if isinstance(adapter, ECoTTA):
            row["again"] = bytes_of_largest_part(adapter, images) // batch
        rows.append(row)
        print(row, flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="wrn-28-10")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--side", type=int, default=32, help="pixels of an image's side")
    parser.add_argument("--json", type=Path, required=True, help="result file")
    options = parser.parse_args(arguments)
    setting = {"network": options.network, "batch": options.batch, "side": options.side, "torch": torch.__version__}
    write_json(options.json, {"setting": setting, "rows": measure(options.network, options.batch, options.side)})


if __name__ == "__main__":
    main()

"""What merging the adapters of several streams gives: halves of a stream, streams of different weather, poisoned ones.

What: digits under the four extra corruptions at severity 5, one after another. One adapter learns from all of it, two
from its halves, four from one corruption each; others from digits upside down, from noise and from one and the same
batch of a single class. The errors are of each alone and of what is merged, on all images of the stream, without
adapting and without the stream's own memory (statistics, label prior).
How: 2 views, with the guard, one network, warm-up and stream a seed; a poisoned stream is merged with the four good
ones, by `vcotta.methods.merge_states` as it is, and with ``limit=None``, which refuses none.

    python -m studies.merging.run                                  # some ten minutes, adds to results/merging.json
    python -m studies.merging.run --seeds 0 --trains all --limit 50 --out try.json
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from studies.files import results_of
from vcotta import __version__
from vcotta._util.files import write_json
from vcotta.corruptions import EXTRA
from vcotta.experiments.build import adapter_for_spec, start_network, stream_for
from vcotta.methods import merge_states
from vcotta.methods.guard import DiversityWarning
from vcotta.runs.spec import RunSpec

RULES = ("pool", "product")
TURNED, NOISE, ONE = 40, 30, 30
"""Batches of the poisoned streams."""
CLASS = 3
"""That of the stream of one class."""


def trial(spec: RunSpec, model: nn.Module) -> list[dict[str, Any]]:
    """Return a row for each adapter and merge of one network."""
    batches = [(batch.images, batch.labels) for batch in stream_for(spec).batches()]
    images, truth = [some for some, _ in batches], torch.cat([labels for _, labels in batches])
    rows: list[dict[str, Any]] = []

    def learned(stream: Sequence[Tensor]) -> dict[str, Any]:
        adapter = adapter_for_spec(spec, model=model)
        for some in stream:
            adapter(some)
        return adapter.state_dict()

    def add(name: str, state: dict[str, Any], **more: Any) -> None:
        adapter = adapter_for_spec(spec, model=model)
        adapter.load_state_dict(state)
        guesses = [adapter.predict(some, samples=1).probabilities.argmax(1) for some in images]
        error = 100 * float((torch.cat(guesses) != truth).float().mean())
        row = {"seed": spec.seed, "trains": dict(spec.options)["trains"], "stream": name, "error": error, **more}
        rows.append(row)
        print(row, flush=True)

    def alone(state: dict[str, Any]) -> dict[str, Any]:
        return merge_states([state, state]).state  # that state, but a stream of its own

    def merge(name: str, states: Sequence[dict[str, Any]], rules: Sequence[str] = RULES[:1]) -> None:
        for rule in rules:
            for limit in (None,) if len(states) < 3 else ({}, None):
                given = {} if limit == {} else {"limit": limit}
                found = merge_states(states, rule=rule, **given)  # type: ignore[arg-type]
                facts = {"rule": rule, "refused": found.refused, "kept_all": limit is None}
                add(name, found.state, **facts, distances=found.distances, agreements=found.agreements)

    middle, quarter = len(images) // 2, len(images) // 4
    add("source", adapter_for_spec(spec, model=model).state_dict())
    add("whole", alone(learned(images)))
    halves = [learned(images[:middle]), learned(images[middle:])]
    for place, half in enumerate(halves):
        add(f"half {place + 1}", alone(half))
    merge("halves", halves, RULES)
    single = [learned(images[place * quarter : (place + 1) * quarter]) for place in range(4)]
    for name, state in zip(EXTRA, single, strict=True):
        add(name, alone(state))
    merge("four corruptions", single, RULES)
    for name, poison in poisons(images, truth).items():
        bad = learned(poison)
        add(name, alone(bad))
        merge(f"four corruptions and {name}", [*single, bad])
    return rows


def poisons(images: Sequence[Tensor], truth: Tensor) -> dict[str, list[Tensor]]:
    """Return the poisoned streams by name."""
    draws, size, every = torch.Generator().manual_seed(0), len(images[0]), torch.cat(list(images))
    mixed = every[torch.randperm(len(every), generator=draws)]
    turned = [part.flip(-2) for part in mixed.split(size)[:TURNED]]
    noise = [torch.rand(images[0].shape, generator=draws) for _ in range(NOISE)]
    return {"upside down": turned, "noise": noise, "one class": [every[truth == CLASS][:size]] * ONE}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--trains", nargs="+", default=["all", "norm"])
    parser.add_argument("--limit", type=int, help="images of each corruption; by default all")
    parser.add_argument("--out", type=Path, default=results_of("merging") / "merging.json", help="rows are added")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = json.loads(options.out.read_text(encoding="utf-8"))["rows"] if options.out.exists() else []
    for seed in options.seeds:
        model = start_network(RunSpec("vcotta", seed=seed))
        for trains in options.trains:
            spec = RunSpec(
                "vcotta",
                options={"views": 2, "trains": trains},
                corruptions=EXTRA,
                table=224,
                limit=options.limit,
                seed=seed,
                stream_seed=seed,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DiversityWarning)
                new = trial(spec, model)
            rows = [row for row in rows if (row["seed"], row["trains"]) != (seed, trains)] + new
            setting = {"limit": options.limit, "corruptions": list(EXTRA), "severity": 5}
            setting |= {"torch": str(torch.__version__), "vcotta": __version__}
            write_json(options.out, {"setting": setting, "rows": rows})
    print(f"Written: {options.out}")


if __name__ == "__main__":
    main()

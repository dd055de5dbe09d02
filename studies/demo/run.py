"""Run the demo for three seeds and keep its rows, and the figures of the first seed.

What: `vcotta demo` for seeds 0, 1 and 2.
How: digits, one CPU thread; about 6 minutes.

    python -m studies.demo.run
    python -m studies.demo.run --seeds 1 2
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from studies.files import results_of
from vcotta._util.files import write_json
from vcotta._util.progress import display
from vcotta.experiments.demo import demo_rows, run_demo


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds to run anew")
    seeds = parser.parse_args(arguments).seeds
    torch.set_num_threads(1)
    results = results_of("demo")
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder, display() as task:
            runs = run_demo(Path(folder), seed, task)
            facts = {
                "seed": seed,
                "versions": runs[0].manifest["versions"],
                "frost": runs[0].manifest["stream"]["frost"],
                "rows": demo_rows(runs),
            }
            write_json(results / f"seed-{seed}.json", facts)
            if seed == 0:
                for name in ("error.png", "priors.png"):
                    shutil.copy(Path(folder) / name, results / name)


if __name__ == "__main__":
    main()

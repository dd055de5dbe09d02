"""Operations that one step of VCoTTA dispatches, by part of the step, in two versions of this repository.

What: on a GPU every operation that is not a view launches at least one kernel, and a step of many small ones waits for
the host. So their number tells, without a GPU, what the host has to do. The parts: inferring the statistics, with the
source's two passes, making the views, the divergence, the backward pass, the optimiser's step, the teacher's average,
and the whole step.
How: a WRN-16-1 with random weights, batches of 4, 4 views, counted at the third step. Views are made at once, as on a
GPU. Nothing is compiled; the last count leaves out what a GPU would compile, where each call launches fewer.

    python -m benchmarks.launches ../before --json studies/cost/results/launches.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from vcotta import __version__
from vcotta._util.files import write_json

ROOT = Path(__file__).parents[1]

# Runs in another version, so it uses only what both have.
RUN = """
import json
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from vcotta import Runtime, build_adapter, to_variational
from vcotta.bayes import gaussian
from vcotta.methods import vcotta as module
from vcotta.methods.parts import mean_teacher
from vcotta.models import build_network
from vcotta.nn import runtime, views
from vcotta.nn.class_statistics import ClassStatistics

views._NUMBERS_IN_CACHE = 10**12
VIEWS = {"view", "_unsafe_view", "expand", "as_strided", "unsqueeze", "squeeze", "select", "slice", "detach", "alias"}
VIEWS |= {"t", "transpose", "permute", "split", "split_with_sizes", "unbind", "narrow", "unfold", "_reshape_alias"}
VIEWS |= {"empty", "empty_like", "empty_strided", "new_empty", "set_", "promote_types"}  # nor do these launch anything

class Counter(TorchDispatchMode):
    count, paused = 0, False
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not self.paused and func.overloadpacket.__name__ not in VIEWS
        return func(*args, **(kwargs or {}))

def at_third_step(**options):
    torch.manual_seed(0)
    made = build_adapter("vcotta", to_variational(build_network("wrn-16-1").eval()), views=4, **options)
    for _ in range(2):
        made(images)
    return made

def uncounted(function):
    def run(*arguments):
        counter.paused = True
        result = function(*arguments)
        counter.paused = False
        counter.count += 1
        return result
    return run

torch.manual_seed(0)
images = torch.rand(4, 3, 32, 32)
adapter = at_third_step()
counter, parts = Counter(), {}

def watch(owner, name, part):
    function = getattr(owner, name)
    def counted(*args, **options):
        before = counter.count
        result = function(*args, **options)
        parts[part] = parts.get(part, 0) + counter.count - before
        return result
    setattr(owner, name, counted)

for name in ("mixture_kl_bound", "kl_divergence", "kl_to_priors"):  # whichever this version has
    if hasattr(module, name):
        watch(module, name, "divergence")
watch(module, "update_teacher", "average")
watch(ClassStatistics, "infer", "statistics")
watch(Tensor, "backward", "backward")
watch(adapter.optimizer, "step", "optimiser")
with counter:
    adapter(images)
    whole = counter.count
    views.random_views(images, 4)
parts["views"] = counter.count - whole
runtime._compiled = lambda: uncounted(runtime._forward)
gaussian.fused = mean_teacher.fused = uncounted
found = parts | {"step": whole, "groups": len(adapter.optimizer.param_groups)}
fast = at_third_step(runtime=Runtime(compile=True))
counter.count = 0
with counter:
    fast(images)
print(json.dumps(found | {"fast": counter.count}))
"""


def count(folder: Path) -> dict[str, int]:
    """Return the operations by part, by the code in a folder."""
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    done = subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Counting by the code in {folder} failed:\n{done.stderr}")
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="folder with the other version of this repository")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)
    if not (options.before / "src" / "vcotta").is_dir():
        parser.error(f"Expected a folder with src/vcotta in it, but got {options.before}.")
    setting = {"network": "wrn-16-1", "torch": str(torch.__version__), "vcotta": __version__, "runs": 1}
    rows: list[dict[str, Any]] = [
        {"version": version, **count(folder)}
        for version, folder in (("before", options.before.resolve()), ("after", ROOT))
    ]
    for row in rows:
        print(row)
    if options.json:
        write_json(options.json, {"setting": setting, "rows": rows})


if __name__ == "__main__":
    main()

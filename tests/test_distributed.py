"""Batches shared by several processes: every claim is about real ones, which talk over gloo."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vcotta
from vcotta import Runtime, build_adapter
from vcotta.distributed import World, average, join_world, noise_like, split_batch, var_mean
from vcotta.evaluate import run_stream
from vcotta.experiments.benchmark import BENCHMARKS
from vcotta.methods import METHODS, check_distributed, distribute
from vcotta.resume import CHECKPOINTS
from vcotta.runs import Run
from vcotta.streams import Batch

from .methods.promises import PROMISES

SIZES = (8, 8, 7, 8, 5, 3, 1, 2, 8, 8)  # uneven, shorter than usual, and fewer images than processes
OPTIONS: dict[str, dict[str, Any]] = {"rotta": {"capacity": 32}, "adacontrast": {"refine_after": 8}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "source": ("source", {}),
    "bn": ("bn", {}),
    "bn prior": ("bn", {"statistics": "prior", "alpha": 0.4}),
    "bn ema": ("bn", {"statistics": "ema"}),
    "tent": ("tent", {}),
    "cotta": ("cotta", {}),
    "vcotta best": ("vcotta", {"full_batch": 2}),
    "vcotta, small batches": ("vcotta", {}),
    "vcotta paper": ("vcotta", {"preset": "paper", "margin": 0.0}),
    "vcotta authors": ("vcotta", {"preset": "authors"}),
    "vcotta both, local": ("vcotta", {"student": "both", "sampling": "local", "scope": "batch"}),
}
OTHERS = {name: (name, {}) for name, method in METHODS.items() if method.facts.distributed and name not in CASES}
OTHERS.pop("vcotta")


class Net(nn.Module):
    """Normalised before and after the average over pixels; convolutions without bias, as those before BatchNorm are.

    Such a bias has no effect and a gradient of zero, of which Adam makes steps of its own size out of rounding errors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, stride=2, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.fc(x.mean((2, 3)))


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = Net().train()
        net(torch.rand(64, 3, 8, 8))
    return net.eval()


def adapter(name: str, precision: str = "fp64", seed: int = 0, **options: Any) -> vcotta.Adapter:
    model = network(seed)
    if METHODS[name].needs_variational:
        model = vcotta.to_variational(model)
    if METHODS[name].needs_source:
        draws = torch.Generator().manual_seed(0)
        options["source"] = [(torch.rand(24, 3, 8, 8, generator=draws), torch.arange(24) % 4) for _ in range(2)]
    if METHODS[name].facts.trains != "nothing":
        options.setdefault("lr", 0.01)
    chosen = PROMISES[name].options | OPTIONS.get(name, {}) | options
    return build_adapter(name, model, runtime=Runtime(precision=precision), **chosen)


def images(batch: int, n: int) -> Tensor:
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(batch))


def trial(name: str, options: dict[str, Any], world: World | None = None) -> dict[str, Any]:
    """Ten batches, and what the adapter said and became."""
    one = adapter(name, **options)
    if world is not None:
        distribute(one, world)
    outputs, notes = [], []
    for batch, n in enumerate(SIZES):
        outputs.append(one(images(batch, n)))
        notes.append(one.last)
    weights = {f"{role}.{key}": t for role, net in one.networks.items() for key, t in net.state_dict().items()}
    return {"outputs": outputs, "weights": weights, "notes": notes}


# Processes.


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def together(act: Callable[[World], Any], folder: Path, processes: int = 2, timeout: float = 60) -> list[Any]:
    """Call ``act`` in several processes that know each other; what it returned in each, or the text of its error."""
    port, children = free_port(), []
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(processes):
        child = os.fork()
        if not child:
            code = 1
            try:
                names = {"RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                os.environ.update({name: str(value) for name, value in names.items()})
                torch.save(_outcome(act, timeout), folder / f"{rank}.pt")
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    paths = (folder / f"{rank}.pt" for rank in range(processes))
    return [torch.load(path) if end == 0 else end for path, end in zip(paths, ended, strict=True)]


def _outcome(act: Callable[[World], Any], timeout: float) -> Any:
    try:
        with join_world(timeout=timeout) as world:
            return act(world)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def trials(cases: dict[str, tuple[str, dict[str, Any]]]) -> Callable[[World], dict[str, Any]]:
    return lambda world: {key: trial(name, options, world) for key, (name, options) in cases.items()}


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> list[dict[str, Any]]:
    adapter("tent")  # loads, once for all processes, what torch imports with its first optimiser
    return together(trials(CASES), tmp_path_factory.mktemp("shared"))


def check_same(key: str, case: tuple[str, dict[str, Any]], found: list[dict[str, Any]]) -> None:
    assert all(isinstance(one, dict) for one in found), found
    alone = trial(*case)
    for batch, output in enumerate(alone["outputs"]):
        assert all(torch.equal(one[key]["outputs"][batch], found[0][key]["outputs"][batch]) for one in found)
        torch.testing.assert_close(found[0][key]["outputs"][batch], output, rtol=0, atol=1e-8)
    for name, tensor in alone["weights"].items():
        assert all(torch.equal(one[key]["weights"][name], found[0][key]["weights"][name]) for one in found)
        torch.testing.assert_close(found[0][key]["weights"][name], tensor, rtol=0, atol=1e-6)
    for ours, theirs in zip(alone["notes"], found[0][key]["notes"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-8)


# What is computed.


@pytest.mark.parametrize("key", CASES)
def test_two_processes_give_the_result_of_one(key, shared) -> None:
    check_same(key, CASES[key], shared)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_every_other_method_gives_the_result_of_one_process(processes, tmp_path) -> None:
    found = together(trials(OTHERS), tmp_path, processes)
    for key, case in OTHERS.items():
        check_same(key, case, found)


def test_the_methods_that_can_be_shared_are_those_that_are_tested_here() -> None:
    tested = {name for name, _ in (*CASES.values(), *OTHERS.values())}
    assert tested == {name for name, method in METHODS.items() if method.facts.distributed}
    assert {"source", "bn", "tent", "cotta", "vcotta"} <= {name for name, _ in CASES.values()}


class Normalise(nn.BatchNorm2d):
    """A kind of BatchNorm that is not torch's own but ends in its function, as timm's does."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps))


def _pass(world: World | None) -> dict[str, Tensor]:
    """A pass through normalisation of several kinds, and its gradients."""
    torch.manual_seed(0)
    net = nn.Sequential(Normalise(3), nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.BatchNorm1d(72)).double()
    x, target = torch.rand(5, 3, 8, 8).double(), torch.rand(5, 72).double()
    net.train()
    with (world or World()).active():
        loss = (split_batch(net, x) - target).square().mean() + net[1].weight.square().sum()  # a term without images
        gradients = average(torch.autograd.grad(loss, list(net.parameters())))
    found = {f"gradient {name}": g for (name, _), g in zip(net.named_parameters(), gradients, strict=True)}
    return found | {"loss": loss.detach()} | dict(net.named_buffers())


def test_batch_norm_of_any_kind_uses_and_learns_from_the_whole_batch(tmp_path) -> None:
    alone = _pass(None)
    for found in together(_pass, tmp_path):
        torch.testing.assert_close(found, alone, rtol=1e-10, atol=1e-12)


def _moments(world: World) -> list[Tensor]:
    """Noise and statistics of two views of five images, as a pass sees them."""
    views = torch.arange(20.0).double().view(10, 2)
    seen: list[Tensor] = []

    def look(rows: Tensor) -> Tensor:
        seen.extend(var_mean(rows.unflatten(0, (2, -1)), [1]))
        return rows + noise_like(rows)

    torch.manual_seed(3)
    with world.active():
        return [split_batch(look, views, views=2), *seen]


def test_noise_belongs_to_the_image_and_statistics_to_the_view_whoever_computes_them(tmp_path) -> None:
    alone = _moments(World())
    for found in together(_moments, tmp_path):
        torch.testing.assert_close(found, alone)


def _noise(world: World) -> list[Tensor]:
    def look(rows: Tensor) -> Tensor:
        tokens = noise_like(rows.repeat_interleave(3, 0))  # three rows an image, as of the patches of a transformer
        return rows + noise_like(rows) + tokens.unflatten(0, (-1, 3)).sum(1)

    torch.manual_seed(3)
    with world.active():
        return [split_batch(look, torch.zeros(5, 2, 4, 4).to(memory_format=form)) for form in FORMATS]


FORMATS = (torch.contiguous_format, torch.channels_last)


def test_noise_is_drawn_in_the_memory_order_of_one_process(tmp_path) -> None:
    for found in together(_noise, tmp_path):
        torch.testing.assert_close(found, _noise(World()), rtol=0, atol=0)


# What is refused.


def test_a_method_that_cannot_be_shared_is_refused_with_those_that_can() -> None:
    with pytest.raises(ValueError, match=r"but got surgeon.*source, bn, tent.*vcotta"):
        check_distributed("surgeon")
    with pytest.raises(ValueError, match=r"but got surgeon"):
        distribute(adapter("surgeon"), World(0, 2))
    with pytest.raises(ValueError, match="method"):
        check_distributed("tennt")


def test_a_process_that_torchrun_did_not_start_is_told_how(monkeypatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="torchrun --nproc-per-node 2 -m vcotta run"), join_world():
        pass


# Runs.


class Small:
    """Eight batches, the last one short."""

    name = "small"

    def __len__(self) -> int:
        return 8

    def batches(self, start: int = 0):
        for index in range(start, len(self)):
            n = 6 if index < 7 else 1
            yield Batch(index, "fog", 5, images(index, n), torch.arange(n) % 4, reset=index == 5)

    def describe(self):
        return {"protocol": self.name}


def run(out: Path | None, world: World | None = None, **options: Any) -> Run:
    one = adapter("cotta", **options.pop("adapter", {}))
    if world is not None:
        distribute(one, world)
    return run_stream(one, Small(), out, **options)


def check_records(found: list[dict[str, Any]]) -> None:
    expected = run(None).records
    assert [record["batch"] for record in found] == list(range(8))
    for ours, theirs in zip(expected, found, strict=True):
        assert ours["predictions"] == theirs["predictions"]
        assert ours["nll"] == pytest.approx(theirs["nll"], abs=1e-9)
        assert ours["last"] == pytest.approx(theirs["last"], abs=1e-9)


def test_two_processes_write_one_run_and_both_return_it(tmp_path) -> None:
    out = tmp_path / "run"
    found = together(lambda world: run(out, world).records, tmp_path)
    assert sorted(path.name for path in out.iterdir()) == [
        "manifest.json",
        "records.jsonl",
        "summary.json",
        "timing.jsonl",
    ]
    check_records(Run.load(out).records)
    assert found[0] == found[1] == Run.load(out).records
    manifest = Run.load(out).manifest
    assert manifest["hardware"].startswith("2 processes, each ")
    assert manifest["distributed"] == {"processes": 2, "backend": "gloo"}
    again = together(lambda world: run(out, world, resume=True).records, tmp_path)  # finished: as it is
    assert again == found


def stop_after(count: int) -> Callable[..., None]:
    def stop(done: int, *_: object) -> None:
        if done == count:
            os._exit(9)

    return stop


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1), (1, 2)])
def test_a_run_goes_on_with_as_many_processes_as_there_are(before, after, tmp_path) -> None:
    out = tmp_path / "run"
    ends = together(lambda world: run(out, world, checkpoint_every=2, progress=stop_after(4)), tmp_path, before)
    assert ends == [9] * before
    assert list((out / CHECKPOINTS).iterdir())
    found = together(lambda world: run(out, world, resume=True).records, tmp_path, after)
    check_records(Run.load(out).records)
    assert all(records == Run.load(out).records for records in found)
    manifest = Run.load(out).manifest
    assert manifest["distributed"]["processes"] == before
    again = manifest["resumed"][0]
    assert again["batch"] == 4
    assert again.get("distributed", {"processes": before})["processes"] == after


def test_a_process_that_is_gone_stops_the_others_with_a_message_and_the_run_can_be_resumed(tmp_path) -> None:
    out = tmp_path / "run"

    def act(world: World) -> Any:
        return run(out, world, checkpoint_every=1, progress=None if world.leads else stop_after(3)).records

    told, ended = together(act, tmp_path)
    assert ended == 9
    assert "Process 0 of 2 has lost another one" in told
    assert "--resume" in told
    together(lambda world: run(out, world, resume=True).records, tmp_path)
    check_records(Run.load(out).records)


@pytest.mark.slow
def test_a_process_that_does_not_answer_is_not_waited_for_forever(tmp_path) -> None:
    def act(world: World) -> Any:
        if not world.leads:
            time.sleep(6)  # longer than the others wait
            return None
        return run(None, world).records

    told, _ = together(act, tmp_path, timeout=2)
    assert "did not answer in time" in told


def test_what_the_first_process_cannot_do_none_does(tmp_path) -> None:
    out = tmp_path / "run"
    run(out)
    first, second = together(lambda world: run(out, world).records, tmp_path)
    assert first.startswith("FileExistsError: Expected")
    assert second.startswith("RuntimeError: Process 0 of 2 stopped: Expected")


def test_processes_that_run_different_things_are_refused(tmp_path) -> None:
    found = together(lambda world: run(None, world, manifest={"about": world.rank}).records, tmp_path)
    assert "Process 1 of 2 stopped: Expected the same run" in found[0]
    assert "about is 0 there and 1 here" in found[1]


def test_all_start_from_the_first_process_s_network(tmp_path) -> None:
    found = together(lambda world: run(None, world, adapter={"seed": world.rank}).records, tmp_path)
    check_records(found[0])
    assert found[0] == found[1]


# The command.

SCRIPT = """
import vcotta.cli.runs
from vcotta.cli import main
vcotta.cli.runs.CHECKPOINT_SECONDS = 0.0
main()
"""


def save_network(folder: Path) -> None:
    """A network for the command that need be neither trained nor warmed up."""
    net = vcotta.to_variational(BENCHMARKS["digits"].build(None, seed=0))
    vcotta.save_warmed(net, folder / "network.safetensors")


def command(folder: Path, out: Path, *more: str, processes: int = 0) -> subprocess.Popen[str]:
    """Start `vcotta run` on the digits, by itself or by torchrun."""
    script = folder / "run.py"
    script.write_text(SCRIPT)
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--monitor-interval", "5"]
    start = [*torchrun, "--master-port", str(free_port())] if processes else []
    what = ["run", "--method", "vcotta", "--weights", str(folder / "network.safetensors"), "--precision", "fp64"]
    size = ["--corruptions", "fog,contrast", "--limit", "120", "--batch-size", "25", "--checkpoint-every", "1"]
    shared = ["--distributed"] if processes else []
    arguments = [*start, str(script), *what, *size, "--device", "cpu", "--out", str(out), *shared, *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def worker(process: subprocess.Popen[str], rank: int) -> int | None:
    """The process of a rank that torchrun started."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if f"\0RANK={rank}\0".encode() in b"\0" + Path(f"/proc/{child}/environ").read_bytes():
            return int(child)
    return None


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_gives_the_run_of_one_process_even_if_a_worker_is_killed_on_the_way(rank, tmp_path) -> None:
    save_network(tmp_path)
    code, _, err = finish(command(tmp_path, tmp_path / "one"))
    assert code == 0, err
    out = tmp_path / "two"
    process = command(tmp_path, out, processes=2)
    while process.poll() is None and len(list((out / CHECKPOINTS).glob("[0-9]*"))) < 2:
        time.sleep(0.02)
    os.kill(worker(process, rank), signal.SIGKILL)
    code, _, err = finish(process)
    assert code != 0
    assert f"Error: Process {1 - rank} of 2 has lost another one" in err
    assert not (out / "summary.json").exists()
    code, printed, err = finish(command(tmp_path, out, "--resume", processes=2))
    assert code == 0, err
    assert printed.count("Means over corruptions") == 1
    alone, found = Run.load(tmp_path / "one"), Run.load(out)
    assert found.manifest["resumed"][0]["batch"] > 0
    for ours, theirs in zip(alone.records, found.records, strict=True):
        assert ours["predictions"] == theirs["predictions"]
        assert ours["nll"] == pytest.approx(theirs["nll"], abs=1e-5)


@pytest.mark.slow
def test_the_command_refuses_what_cannot_be_shared_and_says_how_to_start(tmp_path) -> None:
    save_network(tmp_path)
    code, _, err = finish(command(tmp_path, tmp_path / "run", "--distributed"))
    assert code == 2
    assert "Expected to be started by torchrun" in err
    code, _, err = finish(command(tmp_path, tmp_path / "run", "--method", "surgeon", "--distributed"))
    assert code == 2
    assert "choose one of source, bn, tent" in err
    assert "Traceback" not in err

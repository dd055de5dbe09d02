"""The same words give the same bytes, whichever command or function they are given to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vcotta
from vcotta._util.tensorfile import weights_sha256
from vcotta.corruptions import EXTRA
from vcotta.data import load_digits
from vcotta.experiments.build import adapter_for_spec, start_network
from vcotta.experiments.demo import run_demo
from vcotta.experiments.grid import run_spec
from vcotta.runs.run import Run
from vcotta.runs.spec import RunSpec

SPEC = RunSpec("vcotta", options={"views": 4}, limit=4, seed=1)  # reproduce takes four views at its quick scale
RUN = ("run", "--limit", "4", "--seed", "1", "--device", "cpu", "--method")
FILE = "records.jsonl"

pytestmark = pytest.mark.filterwarnings("ignore:The frost photographs")


@pytest.fixture
def by_command(quick, command) -> Path:
    """The folder of the run that the command `run` makes."""
    assert command(*RUN, "vcotta", "--set", "views=4", "--out", "run")[0] == 0
    return quick / "run"


def test_the_command_run_and_the_library_give_the_same_bytes(by_command, tmp_path) -> None:
    run_spec(SPEC, tmp_path / "spec")
    stream = vcotta.make_stream("continual", load_digits()[1], batch_size=50, limit=4)
    adapter = vcotta.build_adapter("vcotta", start_network(SPEC), dataset="digits", views=4, seed=1)
    vcotta.run_stream(adapter, stream, tmp_path / "parts")
    records = (by_command / FILE).read_bytes()
    assert (tmp_path / "spec" / FILE).read_bytes() == records
    assert (tmp_path / "parts" / FILE).read_bytes() == records


def test_the_commands_run_and_reproduce_give_the_same_bytes(command, by_command, tmp_path) -> None:
    chosen = ("--methods", "vcotta", "--seeds", "1", "--limit", "4", "--workers", "1", "--device", "cpu")
    assert command("reproduce", "selective", *chosen)[0] == 0
    (folder,) = (tmp_path / "reproduced" / "runs").iterdir()
    assert (folder / FILE).read_bytes() == (by_command / FILE).read_bytes()
    specs = [RunSpec.from_json(Run.load(one).manifest["spec"]) for one in (folder, by_command)]
    assert specs[0] == specs[1] == SPEC


def test_the_demo_gives_the_bytes_of_the_command_run(quick, command, tmp_path) -> None:
    run_demo(tmp_path / "demo", 1, lambda *_: lambda *_: None, limit=4)
    for method in ("bn", "vcotta"):
        assert command(*RUN, method, "--out", method)[0] == 0
        assert (tmp_path / "demo" / "runs" / method / FILE).read_bytes() == (tmp_path / method / FILE).read_bytes()


def test_a_trial_of_tune_has_the_scores_of_the_command_run(quick, command, tmp_path) -> None:
    tune = ("tune", "--method", "vcotta", "--grid", "lr=0.05", "--seeds", "1", "--limit", "4", "--device", "cpu")
    assert command(*tune, "--out", "found.json")[0] == 0
    assert command(*RUN, "vcotta", "--set", "lr=0.05", "--corruptions", ",".join(EXTRA), "--out", "run")[0] == 0
    found, run = json.loads((tmp_path / "found.json").read_text()), Run.load(tmp_path / "run")
    (trial,), mean = found["trials"], run.summary()["mean"]
    assert found["spec"]["guard"] == run.manifest["guard"] is not None
    assert (trial["error"], trial["nll"]) == (100 * mean["error"], mean["nll"])


def test_an_adapter_for_a_bundle_starts_from_the_network_of_the_run(by_command) -> None:
    assert weights_sha256(adapter_for_spec(SPEC).start) == Run.load(by_command).manifest["weights_sha256"]


def test_the_seed_does_not_change_the_images_and_the_stream_seed_does(quick, command, tmp_path) -> None:
    run = ("run", "--method", "source", "--limit", "4", "--device", "cpu", "--corruptions", "gaussian_noise")
    seeds = {"none": (), "seed": ("--seed", "1"), "stream": ("--stream-seed", "1")}
    for name, options in seeds.items():
        assert command(*run, *options, "--out", name)[0] == 0
    streams = {name: Run.load(tmp_path / name).manifest["stream"] for name in seeds}
    assert streams["none"] == streams["seed"]
    assert (streams["none"]["seed"], streams["stream"]["seed"]) == (0, 1)

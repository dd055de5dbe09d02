import json
import math
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from vcotta._util.tensorfile import weights_sha256
from vcotta.nn.distributed import World
from vcotta.nn.runtime import Runtime
from vcotta.runs import metrics
from vcotta.runs.run import Run
from vcotta.runs.runner import run_stream
from vcotta.streams.stream import Batch


@dataclass(frozen=True)
class Settings:
    scale: float = 2.0
    layers: tuple[int, ...] = (1, 2)


class Guess:
    """An adapter that drifts: logits are channel means of the image, ever sharper."""

    name, seed, runtime, guard, start = "guess", 4, Runtime(), None, torch.nn.Linear(1, 1)
    world = World()

    def __init__(self, scale=2.0):
        self.config, self.steps, self.last = Settings(scale), 0, {}

    def __call__(self, images):
        self.steps += 1
        self.last = {
            "alpha": torch.tensor(0.25),
            "loss": math.nan if self.steps == 1 else np.float32(0.5),
            "skipped": self.steps == 1,
            "forwards": 3,
            "backwards": 1,
        }
        return (self.config.scale * self.steps * images.mean((2, 3))).log_softmax(1)


class Tiny:
    """Two domains of unequal length, the batches kept for comparison."""

    def __init__(self, domains=(("fog", 5, 3), ("snow", 5, 1)), size=6):
        generator = torch.Generator().manual_seed(0)
        names = [(name, severity) for name, severity, count in domains for _ in range(count)]
        self.parts = [
            Batch(
                index,
                name,
                severity,
                torch.rand(size, 3, 4, 4, generator=generator),
                torch.randint(0, 3, (size,), generator=generator),
            )
            for index, (name, severity) in enumerate(names)
        ]

    def __len__(self):
        return len(self.parts)

    def batches(self, start=0):
        return iter(self.parts[start:])

    def describe(self):
        return {"protocol": "tiny"}


def test_summary_equals_the_metrics_of_the_returned_predictions():
    stream = Tiny()
    summary = run_stream(Guess(), stream).summary()
    adapter, expected = Guess(), {}
    outputs = [(part, adapter(part.images)) for part in stream.parts]
    for domain in ("fog", "snow"):
        log_probs = torch.cat([out for part, out in outputs if part.domain == domain])
        labels = torch.cat([part.labels for part, _ in outputs if part.domain == domain])
        expected[domain] = {
            score: getattr(metrics, score)(log_probs, labels) for score in ("error", "nll", "brier", "ece", "aurc")
        }
    assert [part["domain"] for part in summary["domains"]] == ["fog", "snow"]
    assert [part["n"] for part in summary["domains"]] == [18, 6]
    for part in summary["domains"]:
        for score, value in expected[part["domain"]].items():
            assert part[score] == pytest.approx(value, abs=1e-5), score
    for score in expected["fog"]:  # domains weigh the same however many images they have
        mean = (expected["fog"][score] + expected["snow"][score]) / 2
        assert summary["mean"][score] == pytest.approx(mean, abs=1e-5)


def test_loaded_run_equals_the_returned_one(tmp_path):
    run = run_stream(Guess(), Tiny(), tmp_path / "run", manifest={"weights": {"sha256": "abc"}})
    loaded = Run.load(tmp_path / "run")
    assert loaded == run
    assert loaded.summary() == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "manifest.json",
        "records.jsonl",
        "summary.json",
        "timing.jsonl",
    ]


def test_records_keep_the_classes_of_a_batch_and_records_without_them_still_load(tmp_path):
    class Inferring(Guess):
        def __call__(self, images):
            log_probs = super().__call__(images)
            self.last |= {"effective_classes": 1.5, "class_diversity": torch.tensor(0.25), "batch_share": 0.125}
            self.last |= {"guard": {"causes": ["diversity"], "action": "note"}} if self.steps > 1 else {}
            return log_probs

    noted = {"effective_classes": 1.5, "class_diversity": 0.25, "batch_share": 0.125}
    run_stream(Inferring(), Tiny(), tmp_path / "new")
    new = [record["last"] for record in Run.load(tmp_path / "new").records]
    assert all(noted.items() <= last.items() for last in new)
    events = [last.get("guard") for last in new]
    assert events == [None, *[{"causes": ["diversity"], "action": "note"}] * 3]
    earlier = run_stream(Guess(), Tiny(), tmp_path / "earlier")
    assert Run.load(tmp_path / "earlier") == earlier
    assert not any(noted.keys() & record["last"].keys() for record in earlier.records)


def test_records_of_equal_runs_are_equal_bytes_and_free_of_clocks(tmp_path):
    for name in ("one", "two"):
        run_stream(Guess(), Tiny(), tmp_path / name)
    one, two = ((tmp_path / name / "records.jsonl").read_bytes() for name in ("one", "two"))
    assert one == two
    assert b"seconds" not in one
    assert b"memory" not in one
    assert all(len(str(value)) <= 8 for value in json.loads(one.splitlines()[0])["confidences"])


def test_what_json_cannot_say_becomes_null():
    records = run_stream(Guess(), Tiny()).records
    assert records[0]["last"] == {"alpha": 0.25, "loss": None, "skipped": True, "forwards": 3, "backwards": 1}
    assert records[1]["last"]["loss"] == 0.5


def test_infinite_likelihood_is_kept_as_infinite(tmp_path):
    class Certain(Guess):
        def __call__(self, images):
            return torch.eye(3)[torch.zeros(len(images), dtype=torch.long)].log()

    run = run_stream(Certain(), Tiny(), tmp_path)
    assert run.records[0]["nll"] is None
    assert Run.load(tmp_path).summary()["mean"]["nll"] == math.inf
    assert json.loads((tmp_path / "summary.json").read_text())["mean"]["nll"] is None


def test_manifest_says_what_was_run(tmp_path):
    run_stream(Guess(3.0), Tiny(), tmp_path, manifest={"weights": "abc"})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["method"] == "guess"
    assert manifest["config"] == {"scale": 3.0, "layers": [1, 2]}
    assert manifest["seed"] == 4
    assert manifest["stream"] == {"protocol": "tiny"}
    assert manifest["batches"] == 4
    assert manifest["runtime"]["device"] == "cpu"
    assert manifest["weights_sha256"] == weights_sha256(Guess.start)
    assert manifest["weights"] == "abc"
    assert manifest["versions"]["torch"] == torch.__version__
    assert "/" not in manifest["command"][0]


def test_the_hash_of_weights_changes_with_any_value_or_name():
    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    other.load_state_dict(one.state_dict())
    assert weights_sha256(one) == weights_sha256(other)
    other.bias.data[0] += 1e-3
    assert weights_sha256(one) != weights_sha256(other)
    assert weights_sha256(one) != weights_sha256(torch.nn.Sequential(one))


def test_outputs_that_are_not_numbers_count_as_wrong_and_the_run_continues(tmp_path):
    class Broken(Guess):
        def __call__(self, images):
            log_probs = super().__call__(images)
            if self.steps == 1:
                log_probs[0] = math.nan
            return log_probs

    run = run_stream(Broken(), Tiny(), tmp_path)
    assert run.records[0]["predictions"][0] == -1
    assert run.records[0]["errors"] >= 1
    assert run.summary()["mean"]["nll"] < math.inf
    assert Run.load(tmp_path).summary() == run.summary()


@pytest.mark.parametrize(("every", "warned"), [(1, True), (2, False)])
def test_a_run_that_skipped_most_of_its_updates_says_so(every, warned):
    class Stuck(Guess):
        def __call__(self, images):
            log_probs = super().__call__(images)
            self.last["skipped"] = self.steps % every == 0
            return log_probs

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_stream(Stuck(), Tiny())
    assert any("skipped 4 of 4 updates" in str(each.message) for each in caught) == warned
    assert len(caught) == warned


def test_the_adapter_is_reset_where_the_stream_says_so():
    class Resettable(Guess):
        def reset(self):
            self.steps = 0

    stream = Tiny()
    stream.parts[2] = replace(stream.parts[2], reset=True)
    records = run_stream(Resettable(), stream).records
    assert [record["last"]["skipped"] for record in records] == [True, False, True, False]  # the first after a start
    assert [record["batch"] for record in records] == [0, 1, 2, 3]
    tail = Tiny()
    tail.parts = [replace(part, index=k) for k, part in enumerate(tail.parts[2:])]
    assert [record["nll"] for record in run_stream(Guess(), tail).records] == [record["nll"] for record in records[2:]]


def test_images_of_mixed_batches_are_recorded_and_scored_by_domain(tmp_path):
    stream, mixed = Tiny(), Tiny()
    kinds = [("fog", 5), ("snow", 3), ("fog", 5), ("fog", 3), ("snow", 3), ("fog", 5)]
    names, severities = zip(*kinds, strict=True)
    mixed.parts = [
        replace(part, domain="mixed", severity=0, domains=names, severities=severities) for part in stream.parts
    ]
    run = run_stream(Guess(), mixed, tmp_path)
    assert run.records[0]["domains"] == list(names)
    assert run.records[0]["severities"] == list(severities)
    summary = Run.load(tmp_path).summary()
    assert summary == run.summary()
    adapter = Guess()
    outputs = [adapter(part.images) for part in stream.parts]
    counts = {("fog", 5): 12, ("snow", 3): 8, ("fog", 3): 4}
    assert {(part["domain"], part["severity"]): part["n"] for part in summary["domains"]} == counts
    for part in summary["domains"]:
        own = torch.tensor([kind == (part["domain"], part["severity"]) for kind in kinds])
        log_probs = torch.cat([output[own] for output in outputs])
        labels = torch.cat([batch.labels[own] for batch in stream.parts])
        for score in ("error", "nll", "brier", "ece", "aurc"):
            assert part[score] == pytest.approx(getattr(metrics, score)(log_probs, labels), abs=1e-5), score


def test_manifest_cannot_be_contradicted():
    with pytest.raises(ValueError, match="`manifest` to have new keys only, but got seed"):
        run_stream(Guess(), Tiny(), manifest={"seed": 9})


def test_manifest_is_there_and_records_are_flushed_before_the_run_ends(tmp_path):
    seen = []

    def look(done, total, error):
        assert (tmp_path / "manifest.json").is_file()
        assert not (tmp_path / "summary.json").exists()
        seen.append((done, total, error, len((tmp_path / "records.jsonl").read_text().splitlines())))

    run = run_stream(Guess(), Tiny(), tmp_path, progress=look)
    assert [(done, total, lines) for done, total, _, lines in seen] == [(k, 4, k) for k in range(5)]
    assert seen[-1][2] == sum(record["errors"] for record in run.records) / 24


def test_a_finished_run_is_not_replaced_unless_asked(tmp_path):
    run_stream(Guess(), Tiny(), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    before = (tmp_path / "records.jsonl").read_bytes()
    with pytest.raises(FileExistsError, match="hold no run yet"):
        run_stream(Guess(9.0), Tiny(), tmp_path)
    assert (tmp_path / "records.jsonl").read_bytes() == before
    run_stream(Guess(9.0), Tiny(), tmp_path, overwrite=True)
    assert Run.load(tmp_path).manifest["config"]["scale"] == 9.0
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_failing_overwrite_leaves_no_summary_of_the_old_run(tmp_path):
    class Failing(Guess):
        def __call__(self, images):
            raise RuntimeError("out of luck")

    run_stream(Guess(), Tiny(), tmp_path)
    with pytest.raises(RuntimeError, match="out of luck"):
        run_stream(Failing(), Tiny(), tmp_path, overwrite=True)
    assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize("output", [torch.randn(6, 3) * 9, torch.full((6, 3), math.nan), torch.zeros(5, 3)])
def test_an_adapter_that_returns_no_log_probabilities_is_named(output):
    class Wrong(Guess):
        def __call__(self, images):
            return output

    with pytest.raises(ValueError, match=r"Expected `guess` to return log-probabilities, but batch 0 \(fog\)"):
        run_stream(Wrong(), Tiny())


def test_without_the_module_resource_as_on_windows_the_peak_memory_is_recorded_as_zero():
    script = """
import sys
sys.modules["resource"] = None
import torch, vcotta, vcotta.cli
from vcotta.data import load_digits
net = torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(48, 10))
stream = vcotta.make_stream("continual", load_digits()[1], ("fog",), limit=4)
print(vcotta.run_stream(vcotta.build_adapter("source", net), stream).timing[0]["peak_memory"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")

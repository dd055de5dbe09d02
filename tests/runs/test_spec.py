from __future__ import annotations

import json
import pickle
from dataclasses import fields, replace

import pytest

from vcotta.methods import Guard
from vcotta.runs.checkpoints import identity
from vcotta.runs.spec import RunSpec, without_paths

CHANGES = {
    "method": "cotta",
    "data": "cifar10",
    "network": "wrn-16-4",
    "weights": "w.safetensors",
    "options": {"lr": 0.5},
    "start": "unwarmed",
    "warm_up": {"epochs": 1},
    "source": "folder:photos",
    "source_share": 0.5,
    "source_limit": 100,
    "protocol": "gradual",
    "protocol_options": {"delta": 0.5},
    "domains": ("art", "photo"),
    "corruptions": ("fog",),
    "severity": (3, 5),
    "table": 224,
    "batch_size": 7,
    "limit": 5,
    "corrupted": "CIFAR-10-C",
    "corrupted_options": {"subset": 100},
    "seed": 1,
    "stream_seed": 1,
    "guard": Guard(collapse=None),
    "device": "cuda",
    "precision": "fp64",
    "label": "a row",
}
NEEDED = {
    "protocol_options": {"protocol": "correlated"},
    "corrupted_options": {"corrupted": "CIFAR-10-C"},
    "domains": {"data": "folder:pets"},
}


def changed(name: str) -> tuple[RunSpec, RunSpec]:
    """A spec, and the same with another value of one field."""
    spec = RunSpec("vcotta", **NEEDED.get(name, {}))
    return spec, replace(spec, **{name: CHANGES[name]})


def test_every_field_is_tried() -> None:
    assert CHANGES.keys() == {field.name for field in fields(RunSpec)}


@pytest.mark.parametrize("name", CHANGES)
def test_a_spec_survives_json_and_pickle(name) -> None:
    _, spec = changed(name)
    for copy in (RunSpec.from_json(json.loads(json.dumps(spec.to_json()))), pickle.loads(pickle.dumps(spec))):
        assert copy == spec
        assert copy.to_json() == spec.to_json()
        assert hash(copy) == hash(spec)


@pytest.mark.parametrize("name", CHANGES)
def test_each_field_but_the_label_makes_another_run(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.safetensors").touch()
    one, other = changed(name)
    assert (one != other) == (name != "label")
    if name != "corrupted":  # its files have hashes in the manifest
        assert (one.key != other.key) == (name != "label")


def test_a_run_without_a_source_limit_keeps_the_key_it_had() -> None:
    assert RunSpec("vcotta").key == "vcotta-0-c2e8fd35"


def test_a_network_is_known_by_what_its_file_holds_and_not_by_its_name(tmp_path) -> None:
    for name, text in {"one": "a", "same": "a", "other": "b"}.items():
        (tmp_path / name).write_text(text)
    one, same, other = (RunSpec("bn", weights=tmp_path / name) for name in ("one", "same", "other"))
    assert one.key == same.key != other.key
    manifests = [{"spec": spec.to_json(), "weights_file_sha256": spec.weights_file_sha256} for spec in (one, same)]
    assert identity(manifests[0]) == identity(manifests[1])


def test_what_repeats_the_usual_value_does_not_count() -> None:
    plain = RunSpec("vcotta")
    assert plain == RunSpec("vcotta", start="warmed", guard=True, precision="fp32", options={"preset": "best"})
    assert plain == RunSpec("vcotta", options=plain.config.__dict__)
    assert plain != RunSpec("vcotta", guard=False)
    paper = RunSpec("vcotta", options={"preset": "paper"})
    assert paper == replace(paper, options={"preset": "paper", "views": paper.config.views})
    assert paper != plain


def test_options_may_differ_though_each_alone_is_usual() -> None:
    given = RunSpec("tent", "cifar10", options={"optimizer": "adam", "lr": 1e-3})
    assert RunSpec.from_json(given.to_json()).config == given.config


def test_a_copy_with_another_preset_or_method_has_that_ones_guard_and_start() -> None:
    best = RunSpec("vcotta")
    assert best.resolved_guard is not None
    assert replace(best, options={"preset": "paper"}).resolved_guard is None
    assert replace(best, method="tent").resolved_start == "source"


def test_paths_and_label_are_not_in_the_identity_of_a_run() -> None:
    spec = RunSpec("bn", weights="a/w", corrupted="a/c", corrupted_options={"list_file": "a/l"}, label="row")
    text = json.dumps(without_paths(spec.to_json()))
    assert "a/" not in text
    assert "row" not in text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"method": "cota"}, "Did you mean 'cotta'"),
        ({"domains": ("a",)}, "only with the data set folder:DIR, but got them with digits"),
        ({"data": "folder:x", "domains": ("a", "a")}, r"names of different folders, but got \('a', 'a'\)"),
        ({"data": "folder:x", "domains": ("a",), "corruptions": ("fog",)}, "as they are, but got fog"),
        ({"data": "folder:x", "domains": ("a",), "corrupted": "C"}, "as they are, but got C"),
        ({"options": {"lrr": 1}}, "Did you mean 'lr'"),
        ({"options": {"lr": -1.0}}, "lr"),
        ({"protocol": "loop"}, "Did you mean 'loops'"),
        ({"protocol_options": {"rounds": 3}}, "options of the protocol continual to be none"),
        ({"protocol": "orders", "protocol_options": {"order": 10}}, "`order` to lie in"),
        ({"start": "warm"}, "Did you mean 'warmed'"),
        ({"method": "vcotta", "start": "source"}, "needs a variational network"),
        ({"warm_up": {"epochs": 2}}, "only with a warm-up"),
        ({"source_share": 0.5}, "only where source images are learned from"),
        ({"source_limit": 100}, "`source_limit` only where source images are learned from"),
        ({"method": "vcotta", "source_limit": 0}, "`source_limit` to be a whole number from 1"),
        ({"method": "vcotta", "source_limit": 9, "source_share": 0.5}, "but got both"),
        ({"method": "vcotta", "warm_up": {"epoch": 2}}, "Did you mean 'epochs'"),
        ({"method": "vcotta", "source_share": 0.0}, "above 0 and at most 1"),
        ({"corrupted_options": {"subset": 5}}, "Expected subset only together with `corrupted`"),
        ({"seed": -1}, "`seed` to be a whole number"),
        ({"stream_seed": 0.5}, "`stream_seed` to be a whole number"),
        ({"precision": "fp16"}, "`precision` to be one of"),
    ],
)
def test_a_mistake_is_reported_when_the_spec_is_made(fields, text) -> None:
    with pytest.raises(ValueError, match=text):
        RunSpec(**{"method": "tent", **fields})


def test_an_unknown_field_of_a_manifest_is_named() -> None:
    with pytest.raises(ValueError, match="Did you mean 'seed'"):
        RunSpec.from_json({"method": "tent", "sed": 1})


@pytest.mark.parametrize(("fields", "error"), [({"guard": 1}, TypeError), ({"severity": 9}, ValueError)])
def test_a_wrong_guard_or_severity_is_reported_when_the_spec_is_made(fields, error) -> None:
    with pytest.raises(error, match=r"Expected `(guard|severity)` to be"):
        RunSpec("bn", **fields)

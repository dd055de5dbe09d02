"""Bundles: exact after a round trip, refused if forged, and never a way to run code."""

from __future__ import annotations

import sys
from dataclasses import asdict

import pytest
import torch
from torch import nn

from vcotta import Guard, build_adapter, configure, list_methods, to_variational
from vcotta._util.tensorfile import read_state, write_state
from vcotta.cli.serve import parse_guard
from vcotta.experiments.benchmarks import find_benchmark
from vcotta.models import build_network
from vcotta.models.wide_resnet import digits_network
from vcotta.serve import Bundle, NetworkCard, Preprocess, load_bundle, make_bundle, save_bundle
from vcotta.serve.adapters import Adapters
from vcotta.serve.bounds import check_numbers
from vcotta.serve.engine import Engine

KIND = "vcotta-bundle-1"


def test_a_bundle_restores_network_settings_and_seed(tmp_path, images) -> None:
    net = to_variational(build_network("wrn-10-1", 2, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)))
    adapter = build_adapter("vcotta", net, views=1, lr=0.5, seed=3)
    made = make_bundle(adapter, "wrn-10-1", ["a", "b"], Preprocess(8), batch_size=7)
    save_bundle(made, tmp_path / "a")
    read = load_bundle(tmp_path / "a")
    assert read.settings == made.settings
    assert (read.class_names, read.preprocess, read.batch_size, read.seed) == (("a", "b"), Preprocess(8), 7, 3)
    assert torch.equal(adapter(images(5)), Engine(Adapters(read)).adapter(images(5)))


def test_a_bundle_restores_what_was_learned_from_source_data(tmp_path, images) -> None:
    source = [(images(8), torch.arange(8) % 2)]
    adapter = build_adapter("eata", build_network("wrn-10-1", 2), source=source)
    save_bundle(make_bundle(adapter, "wrn-10-1", ["a", "b"], Preprocess(8)), tmp_path / "a")
    assert torch.equal(adapter(images(5)), Engine(Adapters(load_bundle(tmp_path / "a"))).adapter(images(5)))


GUARDS = {
    "the adapter's": (Guard(collapse=None), None, Guard(collapse=None)),
    "the default if the adapter has none": (False, None, Guard()),
    "none if it is switched off": (True, False, None),
    "the one that was given": (True, Guard(patience=3), Guard(patience=3)),
}


@pytest.mark.parametrize("case", GUARDS)
def test_the_server_has_the_guard_of_the_bundle(tmp_path, case) -> None:
    of_adapter, given, expected = GUARDS[case]
    adapter = build_adapter("tent", build_network("wrn-10-1", 2), guard=of_adapter)
    save_bundle(make_bundle(adapter, "wrn-10-1", ["a", "b"], Preprocess(8), guard=given), tmp_path / "a")
    assert Engine(Adapters(load_bundle(tmp_path / "a"))).adapter.guard == expected


CHOSEN = {
    "the default": ([], Guard()),
    "none": (["--guard", "off"], None),
    "own bounds": (
        ["--guard", "contradiction=0.4", "--guard", "window=500", "--guard", "collapse=none"],
        Guard(contradiction=0.4, window=500, collapse=None),
    ),
}


@pytest.mark.parametrize("case", CHOSEN)
def test_the_command_stores_the_chosen_guard_in_the_bundle(command, tmp_path, monkeypatch, case) -> None:
    monkeypatch.setattr("vcotta.experiments.build.start_network", lambda *_, **__: digits_network())  # untrained
    options, expected = CHOSEN[case]
    code, _, error = command("bundle", "--method", "bn", *options, "--out", str(tmp_path / "a"))
    assert code == 0, error
    assert load_bundle(tmp_path / "a").build_guard() == expected


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        (["off", "pull=0.2"], "or `off` alone, but got 'off'"),
        (["colapse=0.4"], "collapse"),
        (["collapse=much"], "a number or none, but got 'much'"),
        (["collapse=2"], r"`collapse` to lie in \[0, 1\], but got 2"),
        (["patience=1.5"], "`patience` to be a whole number"),
    ],
)
def test_a_wrong_guard_option_is_refused_with_its_reason(entries, reason) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_guard(entries)


def test_an_old_bundle_without_a_guard_field_gets_the_default_guard(bundle_path, tmp_path) -> None:
    assert changed(bundle_path, tmp_path, lambda content: content.pop("guard")).build_guard() == Guard()


def test_an_adapter_that_still_needs_source_data_is_not_bundled() -> None:
    adapter = build_adapter("eata", build_network("wrn-10-1", 2))
    with pytest.raises(ValueError, match="prepared on source data"):
        make_bundle(adapter, "wrn-10-1", ["a", "b"], Preprocess(8))


def test_the_digits_benchmark_names_the_digits_network() -> None:
    name, options = find_benchmark("digits").network_options(None)
    ours = {key: value.shape for key, value in build_network(name, 10, **options).state_dict().items()}
    assert ours == {key: value.shape for key, value in digits_network().state_dict().items()}


def changed(bundle_path, tmp_path, change) -> Bundle:
    """The bundle with its content changed and sealed again, as an attacker would."""
    content = read_state(bundle_path, KIND)
    change(content)
    write_state(tmp_path / "changed", KIND, content)
    return load_bundle(tmp_path / "changed")


def test_a_bundle_cannot_import_a_module(bundle_path, tmp_path, monkeypatch) -> None:
    (tmp_path / "evil_factory.py").write_text("raise SystemExit('it ran')")
    monkeypatch.chdir(tmp_path)
    bundle = changed(bundle_path, tmp_path, lambda c: c["network"].update(name="evil_factory:make", options={}))
    with pytest.raises(ValueError, match="--trust evil_factory:make"):
        bundle.build_network()
    with pytest.raises(ValueError, match="--trust"):
        bundle.build_network(trusted="another:factory")
    assert "evil_factory" not in sys.modules


def test_a_trusted_factory_is_called(tmp_path, monkeypatch, images) -> None:
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\ndef make(classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(192, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    adapter = build_adapter("source", net)
    save_bundle(make_bundle(adapter, "own_net:make", ["a", "b"], Preprocess(8)), tmp_path / "a")
    engine = Engine(Adapters(load_bundle(tmp_path / "a"), trusted="own_net:make"))
    assert torch.equal(engine.adapter(images(3)), adapter(images(3)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c["network"].update(name="wrn-40-9"), "conv1.weight|block"),
        (lambda c: c["network"].update(name="wrn-9999999-99"), "base=4"),
        (lambda c: c["network"].update(classes=5), "5 class names"),
        (lambda c: c["network"]["options"].update(base=10**9), "base=1000000000"),
        (lambda c: c["network"]["options"].update(checkpoint_path=3), "checkpoint_path"),
        (lambda c: c["network"].update(mean=["a", "b", "c"], std=[1.0, 1.0, 1.0]), "numbers"),
        (lambda c: c["weights"].pop("fc.bias"), "fc.bias"),
        (lambda c: c["weights"].update({"fc.bias": torch.zeros(9)}), "fc.bias"),
        (lambda c: c.update(method="os.system"), "method"),
        (lambda c: c["settings"].update(lr="fast"), "lr"),
        (lambda c: c["settings"].update(evil=1), "evil"),
        (lambda c: c["guard"].update(evil=1), "evil"),
        (lambda c: c["guard"].update(pull=7.0), "pull"),
        (lambda c: c["preprocess"].update(size=10**9), "size"),
        (lambda c: c["preprocess"].update(how="eval"), "how"),
        (lambda c: c.update(class_names=[1, 2, 3, 4]), "names of at most 200 characters, but got 1"),
        (lambda c: c.update(class_names=["a", "b", "c", "d" * 201]), "of at most 200 characters, but got 'ddd"),
        (lambda c: c.update(more=1), "more"),
        (lambda c: c.update(weights={"a": 1}), "tensors"),
    ],
)
def test_a_forged_bundle_is_refused_with_a_reason(bundle_path, tmp_path, change, reason) -> None:
    with pytest.raises(ValueError, match=reason):
        changed(bundle_path, tmp_path, change).build_network()


def test_a_file_of_another_kind_is_answered_with_the_command_that_makes_a_bundle(tmp_path) -> None:
    write_state(tmp_path / "warm.safetensors", "another kind", {})
    with pytest.raises(ValueError, match=r"its kind is 'another kind'\. Make a bundle with `vcotta bundle`\."):
        load_bundle(tmp_path / "warm.safetensors")


def test_only_named_networks_of_installed_libraries_run_without_trust() -> None:
    facts = NetworkCard("timm:resnet18", 10)
    assert not facts.runs_foreign_code
    assert NetworkCard("timm:hf-hub:someone/model", 10).runs_foreign_code
    assert NetworkCard("os:system", 10).runs_foreign_code


@pytest.mark.parametrize("name", ["caf\udce9", "\ud800", "a\udfffb"])
def test_class_names_that_no_answer_could_hold_are_refused_when_bundling_and_when_loading(
    bundle_path, tmp_path, name
) -> None:
    adapter = build_adapter("bn", build_network("wrn-10-1", 2))
    with pytest.raises(ValueError, match="class names of Unicode text, but got"):
        make_bundle(adapter, "wrn-10-1", ["a", name], Preprocess(8))
    with pytest.raises(ValueError, match="class names of Unicode text, but got"):
        changed(bundle_path, tmp_path, lambda content: content.update(class_names=["a", "b", "c", name]))


ABSURD = {
    "views": lambda c: c.update(method="cotta", settings={"views": 10**9}),
    "the queue": lambda c: c.update(method="adacontrast", settings={"queue": 10**12}),
    "replayed images": lambda c: c.update(method="obao", settings={"replayed": 10**5}),
    "collected images": lambda c: c.update(method="rotta", settings={"capacity": 10**5}),
    "the rank of adapters": lambda c: c.update(method="vida", settings={"high_rank": 10**6}),
    "lr": lambda c: c["settings"].update(lr=1e300),
    "the guard's window": lambda c: c["guard"].update(window=10**30),
    "the guard's patience": lambda c: c["guard"].update(patience=10**30),
    "the guard's drift": lambda c: c["guard"].update(drift=1e300),
    "batch size zero": lambda c: c.update(batch_size=0),
    "a large batch size": lambda c: c.update(batch_size=10**9),
    "the size of images": lambda c: c["preprocess"].update(size=10**6),
    "images that fill the memory": lambda c: c.update(batch_size=4096) or c["preprocess"].update(size=2048),
    "a teacher that never learns": lambda c: c.update(method="cotta", settings={"beta": 1.0}),
    "weights that are not finite": lambda c: c["weights"]["fc.bias"].fill_(float("nan")),
    "a channel without deviation": lambda c: c["network"].update(mean=[0.5] * 3, std=[1e-300] * 3),
}
ABSURD |= {
    f"{name}={value}": lambda c, settings=both | {name: value}: c.update(method="vcotta", settings=settings)
    for name, values, both in (
        ("beta", (1.0, 0.999999, -0.1), {}),
        ("temperature", (1e-300, 1e-4, 1e5), {}),
        ("tau", (1e-300, 1e5), {}),
        ("lr", (1e-300, -1e-3, 1e3), {}),
        ("margin", (1e7,), {}),
        ("full_batch", (0, 10**6), {}),
        ("kl_weight", (1e-300, 1e7), {}),
        ("kl_lambda", (1e-300, 1e10), {"kl_weight": None}),
    )
    for value in (*values, float("nan"), float("inf"))
}
ABSURD |= {
    f"the guard's {name}={value}": lambda c, name=name, value=value: c["guard"].update({name: value})
    for name, values in (
        {"drift": (1e-300, 0.0), "window": (0, -1), "patience": (0,), "pull": (-0.1, 1e-300)}
        | dict.fromkeys(("unsure", "contradiction", "collapse", "overconfidence"), (1e-300, -0.1, 1.1))
    ).items()
    for value in (*values, float("nan"), float("inf"))
}


@pytest.mark.parametrize("case", ABSURD)
def test_a_bundle_with_absurd_settings_is_refused_at_load(bundle_path, tmp_path, case) -> None:
    with pytest.raises(ValueError, match="content is not valid: Expected"):
        changed(bundle_path, tmp_path, ABSURD[case])


def test_every_default_and_preset_fits_the_bounds_of_a_bundle() -> None:
    for method in list_methods():
        check_numbers(asdict(configure(method)))
    for preset in ("paper", "authors", "best"):
        check_numbers(asdict(configure("vcotta", preset=preset)))
    check_numbers(asdict(Guard()))


def probed_bundle() -> Bundle:
    pixels = torch.randint(0, 256, (2, 5, 3, 32, 32), dtype=torch.uint8)
    adapter = build_adapter("tent", digits_network(), guard=True, probe=(pixels, torch.arange(5)))
    names = [str(name) for name in range(10)]
    name, options = find_benchmark("digits").network_options(None)
    return make_bundle(adapter, name, names, Preprocess(32), **options)


def test_the_server_looks_at_the_probe_of_the_bundle(tmp_path) -> None:
    save_bundle(probed_bundle(), tmp_path / "a")
    engine = Engine(Adapters(load_bundle(tmp_path / "a")))
    for _ in range(2):
        answer = engine.adapt(torch.rand(6, 3, 32, 32))
    assert "probe" in engine.adapter.signals
    assert answer.notes.get("guard", {}).get("causes", ["probe"]) == ["probe"]


BAD_PROBES = {
    "a label for each image": lambda c: c["prepared"].update(probe_labels=torch.zeros(4).long()),
    "labels of the probe": lambda c: c["prepared"].update(probe_labels=torch.full((5,), 10)),
    "images of shape": lambda c: c["prepared"].update(probe_images=torch.zeros(2, 5, 3, 9, 9).byte()),
    "at most 16384 images": lambda c: c["prepared"].update(probe_images=torch.zeros(4000, 5, 3, 32, 32).byte()),
    "a guard, which looks": lambda c: c.update(guard=None),
}


@pytest.mark.parametrize("reason", BAD_PROBES)
def test_a_probe_that_does_not_fit_is_refused_at_load(tmp_path, reason) -> None:
    save_bundle(probed_bundle(), tmp_path / "a")
    with pytest.raises(ValueError, match=reason):
        changed(tmp_path / "a", tmp_path, BAD_PROBES[reason])


def test_the_command_puts_a_probe_into_the_bundle_only_if_asked(command, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.experiments.build.start_network", lambda *_, **__: digits_network())  # untrained
    for name, options in (("without", []), ("with", ["--probe", "7"])):
        assert command("bundle", "--method", "tent", *options, "--out", str(tmp_path / name))[0] == 0
    assert load_bundle(tmp_path / "without").prepared == {}
    prepared = load_bundle(tmp_path / "with").prepared
    assert {name: tuple(tensor.shape) for name, tensor in prepared.items()} == {
        "probe_images": (4, 7, 3, 32, 32),
        "probe_labels": (7,),
    }
    code, _, error = command("bundle", "--probe", "7", "--guard", "off", "--out", str(tmp_path / "no"))
    assert (code, "--guard off" in error) == (2, True)

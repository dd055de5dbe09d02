from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from vcotta.bayes import WarmUpConfig, is_variational, save_warmed, to_variational
from vcotta.data import batches
from vcotta.data.image_files import FilePixels
from vcotta.experiments import build
from vcotta.experiments.benchmarks import BENCHMARKS, Benchmark, find_source
from vcotta.experiments.build import (
    adapter_for_spec,
    network_facts,
    start_network,
    stream_for,
    train_network,
    warm_network,
)
from vcotta.experiments.grid import run_spec
from vcotta.methods import configure, find_method, import_method, list_methods, registry
from vcotta.models import save_weights
from vcotta.models.wide_resnet import digits_network
from vcotta.nn import epoch_state
from vcotta.runs.spec import RunSpec

DIGITS = BENCHMARKS["digits"]


def test_the_warm_up_learns_standard_deviations(untrained) -> None:
    few = replace(DIGITS, source_share=0.2)
    net = warm_network(few, train_network(DIGITS), config=replace(DIGITS.warm_up, epochs=2), seed=0)
    assert net.fc.weight_rho.std() > 0


def test_the_stream_is_the_standard_one_at_severity_5() -> None:
    stream = stream_for(RunSpec("bn", stream_seed=2))
    assert len(stream.domains) == 15
    assert {severity for _, severity in stream.domains} == {5}
    assert (stream.images_per_domain, stream.batch_size, stream.seed) == (797, 50, 2)


def test_the_stream_follows_the_protocol_of_the_spec() -> None:
    stream = stream_for(RunSpec("bn", protocol="loops", protocol_options={"rounds": 3}, corruptions=("fog",), limit=50))
    assert [batch.domain for batch in stream] == ["fog"] * 3


@pytest.mark.parametrize("method", [method for method in list_methods() if not find_method(method).needs_tokens])
def test_adapters_take_the_benchmarks_settings_and_then_the_callers(method, untrained) -> None:
    model = digits_network(0).eval()
    start = to_variational(model) if find_method(method).needs_variational else model
    adapter = adapter_for_spec(RunSpec(method, seed=1), model=start)
    assert adapter.seed == 1
    assert adapter.config == configure(method, dataset="digits")
    if method in ("tent", "cotta", "vcotta"):
        assert adapter_for_spec(RunSpec(method, options={"lr": 0.5}), model=start).config.lr == 0.5


def test_a_network_starts_from_plain_weights_or_from_a_warmed_file(untrained, tmp_path, monkeypatch) -> None:
    plain, warmed = tmp_path / "plain.safetensors", tmp_path / "warmed.safetensors"
    cifar = BENCHMARKS["cifar10"]
    monkeypatch.setattr(type(cifar), "load", lambda self, split="test": DIGITS_TEST)
    model = cifar.build("wrn-10-1", seed=5)
    save_weights(model, plain)
    save_warmed(to_variational(model), warmed)
    bn, ours = (RunSpec(method, "cifar10", "wrn-10-1") for method in ("bn", "vcotta"))
    loaded = start_network(replace(bn, weights=plain))
    assert torch.equal(loaded.fc.weight, model.fc.weight)
    assert not is_variational(loaded)
    assert is_variational(start_network(replace(ours, weights=warmed)))
    assert is_variational(start_network(replace(bn, weights=warmed)))
    with pytest.raises(ValueError, match="vcotta train"):
        start_network(bn)
    for change in ({"start": "unwarmed"}, {"warm_up": {"epochs": 1}}, {"source_share": 0.5}, {"source_limit": 9}):
        with pytest.raises(ValueError, match="is warmed up already"):
            start_network(replace(ours, weights=warmed, **change))


def test_a_network_without_a_warm_up_has_the_weights_of_the_source(quick) -> None:
    source, unwarmed = (start_network(spec) for spec in (RunSpec("bn"), RunSpec("vcotta", start="unwarmed")))
    assert is_variational(unwarmed)
    assert torch.equal(next(source.parameters()), next(unwarmed.parameters()))


@pytest.mark.parametrize("name", ["imagenet", "folder:pets"])
def test_training_is_advised_only_where_it_is_possible(name) -> None:
    with pytest.raises(ValueError, match="Give the file of a published one"):
        start_network(RunSpec("bn", name, "resnet-18"))


def test_the_papers_preset_warms_up_as_printed() -> None:
    def warm_up(data: str, **more):
        return network_facts(RunSpec("vcotta", data, **more))["warm_up"]

    printed = {"options": {"preset": "paper"}}
    assert (warm_up("cifar10")["kl_weight"], warm_up("cifar10")["augmix"]) == (0.01, True)
    assert warm_up("cifar10", **printed)["kl_weight"] is None
    varied = warm_up("cifar10", **printed, warm_up={"epochs": 2})
    assert (varied["kl_weight"], varied["epochs"], varied["augmix"]) == (None, 2, False)
    long, short = warm_up("cifar100"), warm_up("cifar100", **printed)
    assert (long["epochs"], long["augmix"]) == (10, True)
    assert (short["epochs"], short["augmix"], short["kl_weight"]) == (5, False, None)


def test_the_manifest_says_how_a_network_is_made_only_where_it_is_made_here(tmp_path) -> None:
    assert network_facts(RunSpec("vcotta"))["training"]["epochs"] == 20
    assert network_facts(RunSpec("vcotta", start="scratch"))["training"] is None
    plain, warmed = tmp_path / "plain.safetensors", tmp_path / "warmed.safetensors"
    save_weights(digits_network(0), plain)
    save_warmed(to_variational(digits_network(0)), warmed)
    facts = [network_facts(RunSpec("vcotta", weights=path)) for path in (plain, warmed)]
    assert [one["training"] for one in facts] == [None, None]
    assert [one["warm_up"] is None for one in facts] == [False, True]
    assert facts[0]["weights_file_sha256"] != facts[1]["weights_file_sha256"]


@pytest.mark.slow
def test_a_network_trained_from_scratch_learns(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path))
    net = start_network(RunSpec("vcotta", start="scratch"))
    with torch.no_grad():
        guesses = torch.cat(
            [net(images).argmax(1) for images, _ in batches(DIGITS_TEST.images, DIGITS_TEST.labels, 100)]
        )
    assert (guesses.numpy() != DIGITS_TEST.labels).mean() < 0.05


def test_digits_run_on_one_thread_and_the_others_are_given_back(quick) -> None:
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        spec = RunSpec("bn", corruptions=("fog",), limit=4)
        run_spec(spec, progress=lambda *_: seen.append(torch.get_num_threads()))
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def warmings(tmp_path, monkeypatch) -> list[nn.Module]:
    """Networks that were really warmed up, on digits in place of CIFAR-10."""
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Benchmark, "load", lambda self, split="test": DIGITS_TEST)
    seen = []

    def warm_up(model, loader, config, *, path, **_):
        seen.append(model)
        net = to_variational(model)
        save_warmed(net, path)
        return net

    monkeypatch.setattr(build, "warm_up", warm_up)
    return seen


def test_a_warmed_network_is_kept_in_the_cache_and_made_anew_when_damaged(warmings, tmp_path) -> None:
    cifar, plain, shown = BENCHMARKS["cifar10"], tmp_path / "plain.safetensors", []
    save_weights(cifar.build("wrn-10-1", seed=5), plain)

    def start(**options):
        def task(label, form):
            return lambda done, total, value: shown.append(form.format(value))

        return start_network(RunSpec("vcotta", "cifar10", "wrn-10-1", plain, **options), task)

    first = start()
    (kept,) = (tmp_path / "cache" / "warmed").glob("*.safetensors")
    assert len(kept.stem) == 16
    second = start()
    assert len(warmings) == 1
    assert shown == ["from the cache"]
    assert is_variational(second)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    kept.write_bytes(kept.read_bytes()[:1000])
    start()
    assert len(warmings) == 2
    start()
    start(seed=1)  # another warm-up
    assert len(warmings) == 3
    save_weights(cifar.build("wrn-10-1", seed=6), plain)  # another network
    start()
    assert len(warmings) == 4
    assert len(list(kept.parent.glob("*.safetensors"))) == 3


def test_a_warm_up_to_a_file_continues_after_an_interruption_and_leaves_no_other_file(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(epoch_state, "_PAUSE", 0.0)
    few = replace(DIGITS, source_share=0.1)
    config, model, path = WarmUpConfig(epochs=3, flip=False), few.build(None), tmp_path / "warm.safetensors"

    def stop(done, total, loss):
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm_network(few, model, config=config, path=path, task=lambda *_: stop)
    assert [file.name for file in tmp_path.iterdir()] == ["warm.safetensors.warming"]
    steps: list[int] = []
    warmed = warm_network(few, model, config=config, path=path, task=lambda *_: lambda done, *__: steps.append(done))
    assert steps[0] > 1
    assert [file.name for file in tmp_path.iterdir()] == ["warm.safetensors"]
    whole = warm_network(few, model, config=config)
    pairs = zip(warmed.state_dict().values(), whole.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_network_that_is_trained_here_is_kept_in_the_cache_unless_it_is_the_users_own(
    tmp_path, monkeypatch, untrained
) -> None:
    trained = []
    monkeypatch.setattr(build, "train", lambda model, *_, **__: trained.append(1) or model.eval())
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef flat(): return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))\n"
    )
    for _ in range(2):
        start_network(RunSpec("bn"))
    assert len(trained) == 1
    for _ in range(2):
        start_network(RunSpec("bn", network=f"{tmp_path / 'net.py'}:flat"))
    assert len(trained) == 3
    start_network(RunSpec("bn", seed=1))
    assert len(trained) == 4


DIGITS_TEST = DIGITS.load("test")


def test_the_words_of_a_spec_win_over_the_settings_of_a_network_from_scratch() -> None:
    wanted = {"epochs": 3, "lr": 1e-5, "kl_weight": 0.5}
    config = build._warm_up_config(RunSpec("vcotta", start="scratch", warm_up=wanted), DIGITS)
    assert {name: getattr(config, name) for name in wanted} == wanted


def test_a_run_whose_views_are_not_mirrored_is_not_mirrored_in_its_warm_up_either() -> None:
    cifar = BENCHMARKS["cifar10"]
    assert build._warm_up_config(RunSpec("vcotta", "cifar10"), cifar).flip
    assert not build._warm_up_config(RunSpec("vcotta", "cifar10", options={"flip": False}), cifar).flip


def test_an_edited_method_of_ones_own_prepares_anew(untrained, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(registry, "REGISTERED", dict(registry.REGISTERED))  # the method is known to this test alone
    learned = []
    for value in (1.0, 2.0):
        code = OWN_METHOD.format(value=value)
        (tmp_path / "mine.py").write_text(code)
        name = import_method(f"{tmp_path / 'mine.py'}:Mine")
        learned.append(adapter_for_spec(RunSpec(name, limit=10)).prepared["value"].item())
    assert learned == [1.0, 2.0]


OWN_METHOD = """
import torch
from vcotta.methods import BN

class Mine(BN):
    name = "mine-prepared"
    needs_source = True

    def learn_source(self, source):
        return {{"value": torch.tensor({value})}}
"""


def test_a_source_limit_takes_the_first_images_and_makes_another_warm_up(untrained) -> None:
    few = replace(DIGITS, source_limit=100)
    all_images, images = (benchmark.training_images() for benchmark in (DIGITS, few))
    assert np.array_equal(images.labels, all_images.labels[:100])
    assert few.source_count() == len(images) == 100
    with pytest.raises(ValueError, match=r"`source_limit` to be 1 to \d+, the number of source images, but got 99999"):
        replace(DIGITS, source_limit=99999).training_images()
    short = RunSpec("vcotta", warm_up={"epochs": 1})
    nets = [start_network(replace(short, source_limit=limit)) for limit in (50, 100)]
    assert not torch.equal(nets[0].fc.weight_rho, nets[1].fc.weight_rho)


def test_images_of_a_folder_are_limited_before_they_are_read(tmp_path, monkeypatch) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / name / f"{number}.png")
    read = []
    decode = FilePixels._read
    monkeypatch.setattr(FilePixels, "_read", lambda pixels, file: read.append(file) or decode(pixels, file))
    few = replace(find_source(f"folder:{tmp_path}@8"), source_limit=4).training_images()
    assert len(few) == len(read) == 4
    assert np.array_equal(few.images, find_source(f"folder:{tmp_path}@8").training_images().images[:4])


def test_a_warm_up_is_announced_with_an_estimate_and_a_kept_one_is_not(untrained, capsys) -> None:
    spec = RunSpec("vcotta", source_limit=400, warm_up={"epochs": 1})
    for announced in (True, False):
        start_network(spec, task=lambda label, form: lambda *_: None)
        lines = capsys.readouterr().err.splitlines()
        assert bool(lines) == announced
        if announced:
            assert lines[0].startswith("The network is a plain one, so it is warmed up first: 1 epoch over 400 images")
            assert re.fullmatch(r"Warm-up: about \d+ s left, at \S+ s a batch\.", lines[1])

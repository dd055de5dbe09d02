from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from vcotta import WarmUpConfig, epoch_state, save_warmed, to_variational
from vcotta.bayes import is_variational
from vcotta.data.digits import digits_network
from vcotta.experiments import setup
from vcotta.experiments.benchmark import BENCHMARKS, Benchmark, find_benchmark
from vcotta.experiments.setup import adapter_for, start_network, stream_for, train_network, warm_network
from vcotta.methods import configure, list_methods
from vcotta.models import save_weights

DIGITS = BENCHMARKS["digits"]


def test_the_warm_up_learns_standard_deviations(untrained) -> None:
    few = replace(DIGITS, source_share=0.2)
    net = warm_network(few, train_network(DIGITS), config=replace(DIGITS.warm_up, epochs=2), seed=0)
    assert net.fc.weight_rho.std() > 0


def test_the_stream_is_the_standard_one_at_severity_5() -> None:
    stream = stream_for(DIGITS, seed=2)
    assert len(stream.domains) == 15
    assert {severity for _, severity in stream.domains} == {5}
    assert (stream.images_per_domain, stream.batch_size, stream.seed) == (797, 50, 2)


@pytest.mark.parametrize("method", list_methods())
def test_adapters_take_the_benchmarks_settings_and_then_the_callers(method) -> None:
    model = digits_network(0).eval()
    start = to_variational(model) if method == "vcotta" else model
    adapter = adapter_for(DIGITS, method, start, seed=1)
    assert adapter.seed == 1
    assert adapter.config == configure(method, dataset="digits")
    if method in ("tent", "cotta", "vcotta"):
        assert adapter_for(DIGITS, method, start, lr=0.5).config.lr == 0.5


def test_a_network_starts_from_plain_weights_from_a_warmed_file_or_from_scratch(
    untrained, tmp_path, monkeypatch
) -> None:
    plain, warmed = tmp_path / "plain.safetensors", tmp_path / "warmed.safetensors"
    cifar = BENCHMARKS["cifar10"]
    monkeypatch.setattr(type(cifar), "load", lambda self, split="test": DIGITS_TEST)
    model = cifar.build("wrn-10-1", seed=5)
    save_weights(model, plain)
    save_warmed(to_variational(model), warmed)
    loaded = start_network(cifar, "bn", "wrn-10-1", plain)
    assert torch.equal(loaded.fc.weight, model.fc.weight)
    assert not is_variational(loaded)
    assert is_variational(start_network(cifar, "vcotta", "wrn-10-1", warmed))
    assert is_variational(start_network(cifar, "bn", "wrn-10-1", warmed))
    with pytest.raises(ValueError, match="vcotta train"):
        start_network(cifar, "bn", "wrn-10-1")


@pytest.mark.parametrize("name", ["imagenet", "folder:pets"])
def test_training_is_advised_only_where_it_is_possible(name) -> None:
    with pytest.raises(ValueError, match="Give the file of a published one"):
        start_network(find_benchmark(name), "bn", "resnet-18")


def test_files_are_read_in_a_special_way_only_where_there_are_files() -> None:
    with pytest.raises(ValueError, match="Expected subset only together with `corrupted`"):
        stream_for(DIGITS, files={"subset": 5})


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

    monkeypatch.setattr(setup, "warm_up", warm_up)
    return seen


def test_a_warmed_network_is_kept_in_the_cache_and_made_anew_when_damaged(warmings, tmp_path) -> None:
    cifar, plain, shown = BENCHMARKS["cifar10"], tmp_path / "plain.safetensors", []
    save_weights(cifar.build("wrn-10-1", seed=5), plain)

    def start(**options):
        def task(label, form):
            return lambda done, total, value: shown.append(form.format(value))

        return start_network(cifar, "vcotta", "wrn-10-1", plain, task=task, **options)

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


def test_a_warm_up_to_a_file_goes_on_after_an_interruption_and_leaves_nothing_beside_it(monkeypatch, tmp_path) -> None:
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


def test_the_cache_is_not_used_for_digits(untrained, warmings, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(setup, "warm_up", lambda model, *_, path, **__: to_variational(model) if path is None else None)
    assert is_variational(start_network(DIGITS, "vcotta"))
    assert not (tmp_path / "cache").exists()


DIGITS_TEST = DIGITS.load("test")

from __future__ import annotations

import pytest
import torch

from vcotta import save_warmed, to_variational
from vcotta.bayes import is_variational
from vcotta.data.digits import digits_network
from vcotta.experiments.benchmark import BENCHMARKS
from vcotta.experiments.setup import adapter_for, start_network, stream_for, train_network, warm_network
from vcotta.methods import list_methods
from vcotta.models import save_weights

DIGITS = BENCHMARKS["digits"]


def test_the_warm_up_learns_standard_deviations(untrained) -> None:
    net = warm_network(DIGITS, train_network(DIGITS), seed=0)
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
    for key, value in DIGITS.options.get(method, {}).items():
        if key != "dataset":
            assert getattr(adapter.config, key) == value
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


DIGITS_TEST = DIGITS.load("test")

"""The contract on a GPU; the same claims are tested on the CPU in test_contract.py."""

from __future__ import annotations

import pytest
import torch

from vcotta import Guard, Runtime, WarmUpConfig, build_adapter, list_methods, load, save, to_variational, warm_up
from vcotta.methods import configure, find_method
from vcotta.methods.guard import Watch

from .promises import network_for

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PLAIN, FAST = {"device": "cuda"}, {"device": "cuda", "precision": "bf16", "channels_last": True}


def build(name, model, runtime):
    options = {"views": 2} if "views" in vars(configure(name)) else {}
    if find_method(name).needs_source:
        options["source"] = [(torch.rand(16, 3, 8, 8), torch.arange(16) % 4)]
    return build_adapter(
        name, to_variational(model) if find_method(name).needs_variational else model, runtime=runtime, **options
    )


@pytest.mark.parametrize("name", list_methods())
@pytest.mark.parametrize("runtime", [PLAIN, FAST], ids=["fp32", "bf16"])
def test_gpu_predictions_are_near_those_of_the_cpu(name, runtime, tiny, images) -> None:
    tiny = network_for(name, tiny)
    cpu, gpu = build(name, tiny(), Runtime()), build(name, tiny(), Runtime(**runtime))
    for seed in range(2):
        expected, output = cpu(images(seed=seed)), gpu(images(seed=seed)).cpu()
        assert (output.exp() - expected.exp()).abs().max() < 0.1
    assert all(parameter.is_cuda for parameter in gpu.start.parameters())


@pytest.mark.parametrize("name", list_methods())
def test_a_gpu_stream_leaves_the_global_generators_and_is_saved_with_its_own(name, tiny, images, tmp_path) -> None:
    tiny = network_for(name, tiny)
    adapter = build(name, tiny(), Runtime(**FAST))
    before = torch.cuda.get_rng_state()
    adapter(images())
    assert torch.equal(before, torch.cuda.get_rng_state())
    save(adapter, tmp_path / "a")
    again = load(tmp_path / "a", tiny(seed=4))
    assert again.runtime == Runtime(**FAST)
    for seed in (1, 2, 3):  # the later ones see what the steps after loading did
        assert torch.allclose(again(images(seed=seed)).exp(), adapter(images(seed=seed)).exp(), atol=2e-2)
    for parameter, moments in again.optimizer.state.items() if again.optimizer else ():
        same = [moment for moment in moments.values() if moment.shape == parameter.shape]
        assert all(moment.stride() == parameter.stride() for moment in same)


def test_a_guard_judges_without_the_host_waiting() -> None:
    watch = Watch(Guard(window=8), "cuda")
    source, adapted = torch.randn(2, 8, 4, device="cuda").log_softmax(-1)
    drift = torch.ones((), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            watch.judge(source, adapted, drift)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert watch.calm.is_cuda


def test_a_network_on_the_gpu_is_adapted_there(tiny, images) -> None:
    for adapter in (build_adapter("tent", tiny().cuda()), build_adapter("tent", tiny(), device="cuda")):
        assert torch.device(adapter.runtime.device).type == "cuda"
        assert adapter(images()).is_cuda
    source = [(images(8), torch.arange(8) % 4)]
    warmed = warm_up(tiny().cuda(), source, WarmUpConfig(epochs=1))
    assert all(parameter.is_cuda for parameter in warmed.parameters())
    assert build_adapter("vcotta", warmed, views=2)(images()).is_cuda

"""timm's own networks, where timm is installed; elsewhere `networks.py` has stand-ins with the same layers."""

from __future__ import annotations

import pytest
import torch

from vcotta import WarmUpConfig, build_adapter, list_methods, to_variational, warm_up
from vcotta.bayes import sampling
from vcotta.methods import find_method
from vcotta.models import build_network

try:
    import timm  # noqa: F401
except Exception as error:  # a build for another torch fails in many ways
    pytest.skip(f"timm cannot be imported: {error}", allow_module_level=True)

SMALL = {"depths": (1, 1), "embed_dim": 24, "num_heads": (2, 2), "window_size": 4}
NETWORKS = {
    "vit_tiny_patch16_224": {"img_size": 32, "patch_size": 8, "depth": 2},
    "deit_tiny_distilled_patch16_224": {"img_size": 32, "patch_size": 8, "depth": 2},
    "swin_tiny_patch4_window7_224": {"img_size": 32, **SMALL},
    "swinv2_tiny_window8_256": {"img_size": 32, **SMALL},
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 16, 16, 16)},
    "resnet18": {},
}
CLASSES = 4
IMAGES = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SOURCE = [(IMAGES, torch.arange(8) % CLASSES)] * 2


@pytest.fixture(params=NETWORKS)
def net(request):
    return build_network(f"timm:{request.param}", CLASSES, **NETWORKS[request.param]).eval()


@torch.no_grad()
def test_the_means_of_a_variational_network_predict_as_the_network_does_and_draws_differ(net) -> None:
    variational = to_variational(net).eval()
    assert torch.equal(variational(IMAGES), net(IMAGES))
    with sampling(variational):
        assert not torch.equal(variational(IMAGES), variational(IMAGES))


def test_vcotta_warms_it_up_and_adapts(net) -> None:
    warmed = warm_up(net, SOURCE, WarmUpConfig(epochs=1), progress=False)
    adapter = build_adapter("vcotta", warmed, views=1)
    assert adapter(IMAGES).isfinite().all()
    assert adapter.parameter_distance() > 0


@pytest.mark.parametrize("method", list_methods())
def test_every_method_takes_a_step_on_its_vision_transformer(method) -> None:
    name = "vit_tiny_patch16_224"
    net = build_network(f"timm:{name}", CLASSES, **NETWORKS[name]).eval()
    if find_method(method).needs_variational:
        net = to_variational(net)
    adapter = build_adapter(method, net, source=SOURCE)
    for _ in range(2):
        assert adapter(IMAGES).isfinite().all()
    assert adapter.skipped == 0

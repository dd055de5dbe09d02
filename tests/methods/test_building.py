"""What adapters are built from, and what is refused with what to do about it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import vcotta
from vcotta import build_adapter, list_methods, to_variational, warm_up


def test_a_network_that_does_not_return_logits_is_refused(images) -> None:
    adapter = build_adapter("source", nn.Conv2d(3, 4, 1))
    with pytest.raises(ValueError, match=r"\(batch, classes\)"):
        adapter(images())


def test_networks_of_another_precision_and_odd_runtimes_are_refused(tiny) -> None:
    with pytest.raises(ValueError, match=r"model\.float\(\)"):
        build_adapter("bn", tiny().double())
    with pytest.raises(TypeError, match="Runtime"):
        build_adapter("bn", tiny(), runtime="cpu")


@pytest.mark.parametrize("name", list_methods())
@pytest.mark.parametrize("tensor", ["conv2.weight", "norm1.running_var"])
def test_a_network_with_weights_that_are_not_finite_is_refused_by_the_tensors_name(name, tensor, tiny, images) -> None:
    model = to_variational(tiny()) if name == "vcotta" else tiny()
    model.state_dict()[tensor].view(-1)[0] = float("nan")
    with pytest.raises(ValueError, match=f"finite weights, but '{tensor}' holds NaN or infinity"):
        build_adapter(name, model, source=[(images(), torch.arange(6) % 4)])


ACTS = {"adapter": lambda net: build_adapter("tent", net), "warm-up": lambda net: warm_up(net, [])}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_networks_without_weights_and_scripted_ones_are_refused_with_what_to_do(act, tiny) -> None:
    with torch.device("meta"):
        empty = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    with pytest.raises(ValueError, match=r"'1\.weight' is on the meta device.*load its weights"):
        act(empty)
    with pytest.raises(ValueError, match=r"'1\.weight' is a lazy parameter.*Call the network once"):
        act(nn.Sequential(nn.Flatten(), nn.LazyLinear(4)))
    for scripted in (torch.jit.script(nn.Linear(2, 2)), torch.jit.trace(tiny(), torch.rand(2, 3, 8, 8))):
        with pytest.raises(TypeError, match=r"scripted or traced one.*nn\.Module it was made from"):
            act(scripted)


def test_normalisation_without_statistics_in_the_head_is_no_obstacle(images) -> None:
    model = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 4)
    )
    assert build_adapter("bn", model)(images()).shape == (6, 4)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cotta", {"flip": "false"}),
        ("cotta", {"views": 2.5}),
        ("cotta", {"threshold": "none"}),
        ("cotta", {"optimizer": "adamw"}),
        ("cotta", {"lr": -1.0}),
        ("tent", {"lr": "abc"}),
        ("tent", {"lr": -1.0}),
        ("tent", {"optimizer": "adamw"}),
        ("vcotta", {"margin": float("nan")}),
        ("vcotta", {"margin": "x"}),
        ("vcotta", {"lr": float("inf")}),
        ("vcotta", {"mixup": "false"}),
    ],
    ids=str,
)
def test_settings_of_the_wrong_type_are_refused_by_name(name, options, tiny) -> None:
    with pytest.raises((ValueError, TypeError), match=f"`{next(iter(options))}`"):
        build_adapter(name, tiny(), **options)


def test_unknown_names_and_options_suggest_the_nearest(tiny) -> None:
    with pytest.raises(ValueError, match="Did you mean 'vcotta'"):
        build_adapter("vcota", tiny())
    with pytest.raises(ValueError, match="Did you mean 'views'"):
        build_adapter("cotta", tiny(), view=3)
    with pytest.raises(ValueError, match="no options for source"):
        build_adapter("source", tiny(), lr=1.0)
    with pytest.raises(TypeError, match="Module"):
        build_adapter("bn", "resnet")
    with pytest.raises(TypeError, match="Expected `warmup` to be a WarmUpConfig, but got 2"):
        build_adapter("vcotta", tiny(), warmup=2)
    with pytest.raises(ValueError, match="variational already"):
        build_adapter("vcotta", to_variational(tiny()), warmup=vcotta.WarmUpConfig())
    with pytest.raises(TypeError, match="TENTConfig"):
        vcotta.methods.TENT(tiny(), vcotta.methods.BNConfig())


def test_an_adapter_prints_its_settings(tiny) -> None:
    assert repr(build_adapter("tent", tiny(), lr=0.5)) == "TENT(TENTConfig(lr=0.5, optimizer='adam'), seed=0, steps=0)"


def test_bf16_and_channels_last_change_the_outputs_little(tiny, images) -> None:
    plain = build_adapter("bn", tiny())(images())
    fast = build_adapter("bn", tiny(), runtime=vcotta.Runtime(precision="bf16", channels_last=True))(images())
    assert fast.dtype == torch.float32
    assert (fast.exp() - plain.exp()).abs().max() < 0.05

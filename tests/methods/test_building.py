"""What adapters are built from, and what is refused with what to do about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import vcotta
from vcotta import build_adapter, list_methods, to_variational, warm_up
from vcotta.methods import find_method


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
    model = to_variational(tiny()) if find_method(name).needs_variational else tiny()
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
    with pytest.raises(ValueError, match="no `warmup` or `unsupported` for tent"):
        build_adapter("tent", tiny(), unsupported="keep")
    with pytest.raises(TypeError, match="TENTConfig"):
        vcotta.methods.TENT(tiny(), vcotta.methods.BNConfig())


@pytest.mark.parametrize(
    ("name", "option", "meant"),
    [
        ("vcotta", "loader", "source=..."),
        ("vcotta", "source_loader", "source=..."),
        ("tent", "train_loader", "source=..."),
        ("source", "loader", "source=..."),
        ("tent", "random_seed", "seed=..."),
        ("vcotta", "epochs", "warmup=WarmUpConfig(epochs=3)"),
        ("vcotta", "num_epochs", "warmup=WarmUpConfig(epochs=3)"),
        ("vcotta", "sigma_ratio", "warmup=WarmUpConfig(sigma_ratio=3)"),
        ("tent", "patience", "guard=Guard(patience=3)"),
        ("tent", "precision", "runtime=Runtime(precision=3)"),
    ],
)
def test_what_is_no_option_but_set_otherwise_is_named_as_it_is_written(name, option, meant, tiny) -> None:
    with pytest.raises(ValueError, match="Expected") as caught:
        build_adapter(name, tiny(), **{option: 3})
    assert str(caught.value) == f"Expected an option of {name}, but got {option!r}. Write {meant} in its place."


def test_an_option_with_a_setting_of_the_warm_up_much_like_it_is_still_the_one_suggested(tiny) -> None:
    with pytest.raises(ValueError, match="Did you mean 'views'"):
        build_adapter("vcotta", tiny(), view=3)
    with pytest.raises(ValueError, match="Did you mean 'lr'"):
        build_adapter("tent", tiny(), learning_rate=3)
    with pytest.raises(ValueError, match=r"be one of statistics, label_prior, lr, optimizer, but got 'epochs'\.$"):
        build_adapter("tent", tiny(), epochs=3)  # has no warm-up


def test_swapped_arguments_are_refused_as_such_without_the_networks_layers(tiny) -> None:
    with pytest.raises(TypeError, match=r"swapped: write build_adapter\('bn', model\)") as caught:
        build_adapter(tiny(), "bn")
    assert "Conv2d" not in str(caught.value)
    with pytest.raises(TypeError, match=r"Expected `name` to be the name of a method, but got \w+\. See list_methods"):
        build_adapter(vcotta.methods.TENT, tiny())


def test_an_adapter_prints_its_settings(tiny) -> None:
    settings = "statistics='batch', label_prior=False, lr=0.5, optimizer='adam'"
    assert repr(build_adapter("tent", tiny(), lr=0.5)) == f"TENT(TENTConfig({settings}), seed=0, steps=0)"


def test_bf16_and_channels_last_change_the_outputs_little(tiny, images) -> None:
    plain = build_adapter("bn", tiny())(images())
    fast = build_adapter("bn", tiny(), runtime=vcotta.Runtime(precision="bf16", channels_last=True))(images())
    assert fast.dtype == torch.float32
    assert (fast.exp() - plain.exp()).abs().max() < 0.05


class Elsewhere(nn.Sequential):
    """A network that says its weights are on the second GPU."""

    def parameters(self, recurse: bool = True):
        for parameter in super().parameters(recurse):
            yield SimpleNamespace(device=torch.device("cuda:1"), dtype=parameter.dtype)


def test_without_a_runtime_the_models_own_device_is_used(tiny, images, monkeypatch) -> None:
    chosen = []
    model = Elsewhere(nn.Flatten(), nn.Linear(192, 4))

    def place(runtime: vcotta.Runtime, net: nn.Module) -> nn.Module:
        chosen.append(runtime.device)
        raise StopIteration

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(vcotta.Runtime, "place", place)
    makers = (
        lambda: build_adapter("source", model),
        lambda: build_adapter("vcotta", model, source=[(images(), torch.arange(6) % 4)]),
        lambda: warm_up(model, []),
        lambda: build_adapter("source", tiny()),
        lambda: build_adapter("source", model, device="cpu"),
        lambda: build_adapter("source", tiny(), device=torch.device("cuda", 0)),
    )
    for make in makers:
        with pytest.raises(StopIteration):
            make()
    assert chosen == ["cuda:1", "cuda:1", "cuda:1", "cpu", "cpu", "cuda:0"]


def test_a_device_is_short_for_its_runtime(tiny) -> None:
    assert build_adapter("bn", tiny(), device="cpu").runtime == vcotta.Runtime("cpu")
    with pytest.raises(ValueError, match=r"`device` or `runtime`, but got both.*Runtime\('cpu', \.\.\.\)"):
        build_adapter("bn", tiny(), device="cpu", runtime=vcotta.Runtime())
    with pytest.raises(ValueError, match="Expected `device` to be 'cpu' or 'cuda', but got 'gpu'"):
        build_adapter("bn", tiny(), device="gpu")


def test_a_config_stands_in_for_the_options(tiny) -> None:
    config = vcotta.methods.TENTConfig(lr=0.5)
    assert build_adapter("tent", tiny(), config=config).config is config
    with pytest.raises(ValueError, match=r"all settings in `config`, but got lr beside it.*vcotta\.configure"):
        build_adapter("tent", tiny(), config=config, lr=0.1, dataset="digits")
    with pytest.raises(TypeError, match="Expected `config` to be a VCoTTAConfig, but got TENTConfig"):
        build_adapter("vcotta", tiny(), config=config, source=[])


TYPED = """
import torch
from vcotta import build_adapter
from vcotta.methods import TENTConfig, VCoTTAConfig

model = torch.nn.Linear(2, 2)
build_adapter("tent", model, config=TENTConfig(lr=1e-4))
build_adapter("tent", model, config=TENTConfig(lr="x"))
build_adapter("vcotta", model, config=VCoTTAConfig(views="many"))
build_adapter("tent", model, device=1)
"""


@pytest.mark.slow
def test_a_type_checker_finds_wrong_settings_in_a_config(tmp_path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "typed.py").write_text(TYPED)
    source = str(Path(vcotta.__file__).parents[1])
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(tmp_path), "typed.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": source},
    )
    lines = [line.split(":")[1] for line in checked.stdout.splitlines() if "error:" in line]
    assert lines == ["8", "9", "10"], checked.stdout + checked.stderr

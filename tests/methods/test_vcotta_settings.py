"""VCoTTA's presets and settings, and the warm-up that belongs to each preset."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from vcotta import WarmUpConfig, build_adapter, configure, to_variational, warm_up
from vcotta.methods import VCoTTAConfig, warm_up_settings


def test_presets_hold_the_papers_and_the_authors_values() -> None:
    paper = {d: configure("vcotta", preset="paper", dataset=d) for d in ("cifar10", "cifar100", "imagenet")}
    assert [c.margin for c in paper.values()] == [1e-2, 0.3, 0.1]
    assert [c.lr for c in paper.values()] == [1e-4, 1e-4, 1e-2]
    assert [c.loss for c in paper.values()] == ["sce", "sce", "ce"]
    for config in paper.values():
        assert (config.alpha, config.scope, config.target, config.inference) == ("entropy", "batch", "teacher", "x0")
        assert (config.sampling, config.views, config.beta, config.mixup) == ("local", 32, 0.999, False)
        assert (config.full_batch, config.relative, config.source_views) == (None, False, True)
        assert (config.statistics, config.label_prior) == ("batch", False)
    authors = configure("vcotta", preset="authors")
    assert (authors.alpha, authors.target, authors.inference) == ("confidence", "mixture", "filtered")
    assert (authors.sampling, authors.mixup, authors.margin, authors.lr) == ("weight", True, 0.3, 1e-3)
    assert (authors.kl_lambda, authors.kl_weight, authors.full_batch) == (500_000, None, None)
    assert authors.source_views
    assert configure("vcotta", preset="best") == VCoTTAConfig()
    assert configure("vcotta", preset="authors", kl_weight=0.1).kl_lambda is None


def test_options_override_a_preset(tiny) -> None:
    adapter = build_adapter("vcotta", to_variational(tiny()), preset="paper", dataset="cifar100", views=3, seed=5)
    assert asdict(adapter.config) == asdict(configure("vcotta", preset="paper", dataset="cifar100", views=3))
    assert adapter.seed == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": 1.5},
        {"full_batch": 0},
        {"statistics": "source"},
        {"alpha": "entrpy"},
        {"alpha": True},
        {"scope": "image"},
        {"target": "x"},
        {"loss": "mse"},
        {"sampling": "lrt"},
        {"inference": "x_0"},
        {"views": -1},
        {"views": 2.5},
        {"tau": 0.0},
        {"beta": 1.1},
        {"lr": -1.0},
        {"lr": float("nan")},
        {"optimizer": "lion"},
        {"kl_weight": -1.0},
        {"kl_lambda": 5.0},
        {"kl_weight": None},
    ],
    ids=str,
)
def test_wrong_settings_are_refused_by_name(wrong) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        VCoTTAConfig(**wrong)


def test_unknown_presets_and_data_sets_are_named() -> None:
    with pytest.raises(ValueError, match="Did you mean 'paper'"):
        configure("vcotta", preset="papers")
    with pytest.raises(ValueError, match="Did you mean 'cifar10"):
        configure("vcotta", preset="paper", dataset="cifr10")
    with pytest.raises(ValueError, match="Did you mean 'margin'"):
        configure("vcotta", preset="paper", marginn=1)


def test_a_plain_network_is_refused_without_source_data_and_warmed_up_with_it(tiny, images) -> None:
    with pytest.raises(ValueError, match="warm_up"):
        build_adapter("vcotta", tiny())

    class Counting(list):
        passes = 0

        def __iter__(self):
            self.passes += 1
            return super().__iter__()

    source = Counting([(images(8, seed), torch.arange(8) % 4) for seed in range(3)])
    source.dataset = range(24)
    adapter = build_adapter("vcotta", tiny(), source=source, views=1)
    assert source.passes == WarmUpConfig().epochs
    assert adapter(images()).shape == (6, 4)
    named = build_adapter("vcotta", tiny(), source=source, views=1, warmup=WarmUpConfig(epochs=2))
    assert source.passes == WarmUpConfig().epochs + 2
    assert not torch.equal(named.start.fc.weight, adapter.start.fc.weight)


PUBLISHED = {"lr": 3e-4, "relative": False, "sigma_travel": None, "augmix": False, "held_back": 0.0}


@pytest.mark.parametrize(
    ("preset", "changed"),
    [("best", {}), ("authors", PUBLISHED | {"kl_weight": 0.7}), ("paper", PUBLISHED | {"kl_weight": None})],
)
def test_a_plain_network_is_warmed_up_as_its_preset_says(preset, changed, tiny, images) -> None:
    source = [(images(8, seed), torch.arange(8) % 4) for seed in range(3)]
    adapter = build_adapter("vcotta", tiny(), source=source, preset=preset, views=1)
    expected = warm_up(tiny(), source, WarmUpConfig(**changed), progress=False).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in adapter.start.state_dict().items())
    assert warm_up_settings("vcotta", None, preset) == changed


def test_the_papers_warm_up_on_cifar100_has_its_epochs_and_no_augmix() -> None:
    published = PUBLISHED | {"kl_weight": None, "epochs": 5}
    assert warm_up_settings("vcotta", "cifar100", "paper") == published

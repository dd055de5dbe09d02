from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vcotta.bayes import WarmUpConfig
from vcotta.experiments.benchmarks import BENCHMARKS, find_benchmark
from vcotta.methods import DATASETS, configure, list_methods
from vcotta.methods.registry import warm_up_settings
from vcotta.runs.spec import RunSpec


@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.parametrize("method", list_methods())
def test_every_method_has_settings_for_every_benchmark(name, method) -> None:
    assert RunSpec(method, name).config == configure(method, dataset=name if name in DATASETS else "imagenet")


def test_no_view_mirrors_a_digit_and_at_most_eight_are_made() -> None:
    digits = BENCHMARKS["digits"]
    assert not digits.warm_up.flip
    assert not digits.training.flip
    for method in ("cotta", "vcotta"):
        config = configure(method, dataset="digits")
        assert not config.flip
        assert config.views <= 8


def test_settings_of_the_papers_benchmarks_are_the_published_ones() -> None:
    assert [BENCHMARKS[name].batch_size for name in ("cifar10", "cifar100", "imagenet")] == [200, 200, 64]
    thresholds = [configure("cotta", dataset=name).threshold for name in ("cifar10", "cifar100", "imagenet")]
    assert thresholds == [0.92, 0.72, 0.1]
    tent = configure("tent", dataset="imagenet")
    assert (tent.lr, tent.optimizer) == (2.5e-4, "sgd")
    assert BENCHMARKS["cifar100"].training.augmix
    assert not BENCHMARKS["cifar10"].training.augmix


@pytest.mark.parametrize("name", [name for name, benchmark in BENCHMARKS.items() if benchmark.training])
def test_a_warm_up_mirrors_images_where_the_training_does(name: str) -> None:
    assert BENCHMARKS[name].warm_up.flip == BENCHMARKS[name].training.flip


def test_the_warm_up_of_cifar100_is_the_one_of_the_headline() -> None:
    found = BENCHMARKS["cifar100"].warm_up
    assert (found.epochs, found.lr, found.relative, found.augmix, found.kl_weight) == (10, 3e-4, False, True, 0.7)


def test_other_benchmarks_take_the_default_warm_up() -> None:
    for name in ("imagenet", "tiny-imagenet"):
        assert BENCHMARKS[name].warm_up == WarmUpConfig()
    assert BENCHMARKS["cifar10"].warm_up == WarmUpConfig(epochs=10)


@pytest.mark.parametrize(("preset", "name"), [("paper", "cifar10"), ("paper", "cifar100"), ("authors", "cifar10")])
def test_published_presets_warm_up_for_the_papers_five_epochs(preset: str, name: str) -> None:
    assert warm_up_settings("vcotta", name, preset)["epochs"] == 5


def test_unknown_data_sets_suggest_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'cifar10'"):
        find_benchmark("cifar-10")


def test_a_folders_images_have_the_size_that_is_asked_for(tmp_path) -> None:
    (tmp_path / "cat").mkdir()
    Image.fromarray(np.zeros((48, 40, 3), np.uint8)).save(tmp_path / "cat" / "1.png")
    asked = find_benchmark(f"folder:{tmp_path}@32")
    assert asked.image_size == 32
    assert asked.load().images[:].shape == (1, 32, 32, 3)
    with pytest.warns(UserWarning, match=r"enlarged to 224 x 224 pixels; the first is 40 x 48\. For .*@40\.$"):
        assert find_benchmark(f"folder:{tmp_path}").load().images[:].shape == (1, 224, 224, 3)
    with pytest.warns(UserWarning, match=r"enlarged to 64 x 64 .*@40\.$"):
        find_benchmark(f"folder:{tmp_path}@64").load()
    with pytest.raises(ValueError, match="at least 1 pixel"):
        find_benchmark(f"folder:{tmp_path}@0")
    there = tmp_path / "mail@2024"
    (there / "dog").mkdir(parents=True)
    assert find_benchmark(f"folder:{there}").image_size == 224  # that is its name


def test_a_folder_of_images_is_a_benchmark(tmp_path) -> None:
    for k, kind in enumerate(("cat", "dog")):
        (tmp_path / kind).mkdir()
        for i in range(3):
            Image.fromarray(np.full((40, 40, 3), 50 * k + i, np.uint8)).save(tmp_path / kind / f"{i}.png")
    benchmark = find_benchmark(f"folder:{tmp_path}")
    data = benchmark.load()
    assert data.class_names == ("cat", "dog")
    assert len(data) == 6
    assert benchmark.build("resnet-18").fc.out_features == 2
    with pytest.raises(ValueError, match="model"):
        benchmark.build(None)


def test_source_batches_are_the_training_images() -> None:
    images, labels = next(iter(BENCHMARKS["digits"].source(seed=0)))
    assert images.shape == (50, 3, 32, 32)
    assert labels.max() <= 9
    assert len(BENCHMARKS["digits"].source(seed=0).dataset) == 1000


def test_a_network_with_other_outputs_is_refused_at_once(tmp_path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def four(): return nn.Sequential(nn.Flatten(), nn.Linear(3072, 4))\n"
        "def flat(): return nn.Flatten(0)\n"
    )
    with pytest.raises(ValueError, match="Expected a network with 10 outputs, one for each class of digits, but got 4"):
        BENCHMARKS["digits"].build(f"{tmp_path / 'net.py'}:four")
    with pytest.raises(ValueError, match=r"but got \(3072,\)"):
        BENCHMARKS["digits"].build(f"{tmp_path / 'net.py'}:flat")


def test_networks_of_known_data_sets_are_made_without_the_data(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path))
    assert BENCHMARKS["imagenet"].build("resnet-18").fc.out_features == 1000
    with pytest.raises(ValueError, match="Expected training images, but imagenet has none here"):
        BENCHMARKS["imagenet"].source(seed=0)

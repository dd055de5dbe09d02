import pytest
import torch
from torch import nn

from vcotta.experiments.benchmarks import find_benchmark, find_training
from vcotta.training.recipes import recipe_for
from vcotta.training.trainer import TrainConfig, _optimiser

DATA = TrainConfig(epochs=30, lr=0.2, shift=4, flip=True, seed=7)


@pytest.mark.parametrize(
    "name",
    [
        "vit-32px",
        "VIT_4_64_32px",
        "timm:vit_tiny_patch16_224",
        "timm:deit_tiny_patch16_224",
        "timm:swin_tiny_patch4_window7_224",
        "timm:convnext_tiny",
        "torchvision:vit_b_16",
    ],
)
def test_transformers_are_trained_by_adamw_with_the_data_sets_shifts_and_seed(name):
    config = recipe_for(name, DATA, 150)
    assert (config.optimizer, config.epochs, config.lr) == ("adamw", 150, pytest.approx(1e-3))
    assert (config.shift, config.flip, config.seed) == (4, True, 7)


@pytest.mark.parametrize("name", ["wrn-28-10", "resnet-18", "timm:resnet50", "my_vit.py:make", "evil.package:vit"])
def test_other_networks_keep_the_data_sets_settings(name):
    assert recipe_for(name, DATA, 150) == DATA


def test_a_benchmark_gives_its_own_network_its_own_settings():
    cifar = find_benchmark("cifar10")
    assert cifar.training_of(None) == cifar.training_of("wrn-40-2") == cifar.training
    assert cifar.training_of("vit-32px").epochs == 150
    assert find_benchmark("imagenet").training_of("vit-32px") is None


def test_fine_tuning_stays_short_and_its_steps_small():
    whole, tuned = (find_training("folder:pets", tuning).training_of("vit-64px") for tuning in (False, True))
    assert (whole.epochs, tuned.epochs) == (150, 20)
    assert tuned.lr == pytest.approx(whole.lr / 10)


def test_biases_and_normalisation_do_not_decay():
    net = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    with torch.no_grad():
        net[0].bias.fill_(1.0)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = net[0].weight.clone()
    _optimiser(net, TrainConfig(epochs=1, lr=0.1, optimizer="adamw", weight_decay=0.5)).step()
    assert torch.allclose(net[0].weight, before * (1 - 0.1 * 0.5))
    assert torch.equal(net[0].bias, torch.ones(2))
    assert torch.equal(net[1].weight, torch.ones(2))

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from vcotta.models import Normalised, build_network

FILE = """
import torch
from torch import nn
from helper_of_it import WIDTH

class Net(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.classes = classes
        self.fc = nn.Linear(WIDTH, classes)

def make(num_classes=4): return Net(num_classes)
def plain(): return Net()
def number(): return 3
def failing(): raise RuntimeError("no luck")
made = Net(9)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a user's file, in which the user stands; nothing of it stays imported."""
    (tmp_path / "users_net.py").write_text(FILE)
    (tmp_path / "helper_of_it.py").write_text("WIDTH = 6\n")
    (tmp_path / "broken_net.py").write_text("import nothing_of_that_name\n")
    monkeypatch.chdir(tmp_path)
    before, path = set(sys.modules), list(sys.path)
    yield tmp_path
    assert sys.path == path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("place", ["users_net", "users_net.py", "./users_net.py"])
def test_anybodys_factory_is_called_with_the_classes_it_takes(place, folder):
    assert build_network(f"{place}:make").fc.out_features == 4
    assert build_network(f"{place}:make", classes=7).fc.out_features == 7
    assert build_network(f"{place}:Net", classes=5).fc.out_features == 5
    assert build_network(f"{place}:plain", classes=7).fc.out_features == 4
    assert build_network(f"{place}:made").fc.out_features == 9


def test_file_from_elsewhere_is_found_by_its_path(folder, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert build_network(f"{folder / 'users_net.py'}:make", classes=2).fc.out_features == 2


def test_weights_reach_anybodys_network(folder):
    source = build_network("users_net:make", seed=1)
    torch.save({"state_dict": source.state_dict()}, folder / "weights.pt")
    again = build_network("users_net:make", weights=folder / "weights.pt", seed=2)
    assert torch.equal(again.fc.weight, source.fc.weight)


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("users_net:mak", ValueError, "Did you mean 'make'"),
        ("users_net:number", TypeError, r"to return a torch\.nn\.Module, but got int"),
        ("users_net:failing", ValueError, "it failed: RuntimeError: no luck"),
        ("not_there.at_all:make", ValueError, "'not_there.at_all' to be a module, but there is none of that name"),
        ("not_there.py:make", FileNotFoundError, r"not_there\.py to be a Python file, but there is no such file"),
        ("broken_net:make", ValueError, "that failed: No module named 'nothing_of_that_name'"),
        ("broken_net.py:make", ValueError, "that failed: ModuleNotFoundError"),
        ("users_net:", ValueError, r"as package\.module:factory"),
        (":make", ValueError, r"as package\.module:factory"),
    ],
)
def test_mistakes_are_explained(name, kind, text, folder):
    with pytest.raises(kind, match=text):
        build_network(name)


class Colours(nn.Module):
    """A network that tells what it was fed."""

    def __init__(self, classes: int, weights: object) -> None:
        super().__init__()
        self.classes, self.weights = classes, weights

    def forward(self, x):
        return x.mean((2, 3))


@pytest.fixture
def torchvision(monkeypatch):
    models = ModuleType("torchvision.models")
    models.list_models = lambda module=None: ["resnet50", "vit_b_16"]
    models.get_model = lambda name, weights=None, num_classes=1000: Colours(num_classes, weights)
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


@pytest.mark.parametrize(
    ("weights", "asked"), [(None, None), ("pretrained", "DEFAULT"), ("IMAGENET1K_V1", "IMAGENET1K_V1")]
)
def test_torchvision_is_wrapped_with_imagenets_normalisation(weights, asked, torchvision):
    net = build_network("torchvision:resnet50", classes=12, weights=weights)
    assert isinstance(net, Normalised)
    assert (net.model.classes, net.model.weights) == (12, asked)
    mean = torch.tensor([0.485, 0.456, 0.406])
    torch.testing.assert_close(net(mean.view(1, 3, 1, 1)), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="Did you mean 'resnet50'"):
        build_network("torchvision:resnet5")


def test_timm_is_wrapped_with_the_normalisation_it_names(monkeypatch):
    def create_model(name, pretrained=False, num_classes=1000):
        net = Colours(num_classes, pretrained)
        net.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
        return net

    names = ["vit_tiny", "resnet18"]
    fake = SimpleNamespace(is_model=names.__contains__, list_models=lambda *_: names, create_model=create_model)
    monkeypatch.setitem(sys.modules, "timm", fake)
    net = build_network("timm:vit_tiny", weights="pretrained")
    assert net.model.weights is True
    assert net(torch.ones(1, 3, 1, 1)).tolist() == [[2.0, 2.0, 2.0]]
    with pytest.raises(ValueError, match="Did you mean 'vit_tiny'"):
        build_network("timm:vit_tny")


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_the_error_of_a_missing_package_says_what_to_install(package, monkeypatch):
    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [])
    with pytest.raises(ValueError, match=rf"{package} to be installed .*pip install {package}"):
        build_network(f"{package}:resnet18")


def test_a_package_whose_import_fails_has_another_error_than_a_missing_one(tmp_path, monkeypatch):
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(ValueError, match=r"nms does not exist.*must match torch .*pip install --force-reinstall timm"):
        build_network("timm:resnet18")

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from vcotta._util.files import sha256
from vcotta.bayes import save_warmed, to_variational
from vcotta.models import CifarResNet, Normalised, ResNeXt, WideResNet, build_network, load_weights, save_weights


class Anything:
    """An object no safe file may hold."""


def net(seed: int = 1, **options) -> WideResNet:
    torch.manual_seed(seed)
    return WideResNet(10, 1, **options)


def same(one: nn.Module, two: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


CONTAINERS = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"state_dict": state, "epoch": 3, "best_prec1": 91.7},
    "model": lambda state: {"model": state, "optimizer": {"lr": 0.1}},
    "net": lambda state: {"net": state, "acc": 95.0},
    "nested": lambda state: {"last": {"state_dict": state}},
    "module.": lambda state: {f"module.{key}": value for key, value in state.items()},
    "model.": lambda state: {f"model.{key}": value for key, value in state.items()},
    "both": lambda state: {"state_dict": {f"module.model.{key}": value for key, value in state.items()}},
    "without counters": lambda state: {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")},
    "with a number beside": lambda state: {**state, "epoch": 7},
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_every_usual_container_is_read(name, tmp_path):
    source, target = net(1), net(2)
    torch.save(CONTAINERS[name](source.state_dict()), tmp_path / "weights.pt")
    loaded = load_weights(target.train(), tmp_path / "weights.pt")
    assert same(source, target)
    assert not target.training
    assert loaded.sha256 == sha256(tmp_path / "weights.pt")


@pytest.mark.parametrize("suffix", ["pth", "ckpt", "bin", "th", "safetensors"])
def test_content_counts_and_not_the_suffix(suffix, tmp_path):
    source, target = net(1), net(2)
    path = tmp_path / f"weights.{suffix}"
    torch.save(source.state_dict(), path)
    load_weights(target, path)
    assert same(source, target)
    save_file(source.state_dict(), path)
    load_weights(target, path)
    assert same(source, target)


def test_old_format_of_torch_is_read(tmp_path):
    source, target = net(1), net(2)
    torch.save(source.state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    load_weights(target, tmp_path / "old.pt")
    assert same(source, target)


def test_wrapped_network_reads_the_weights_of_what_it_wraps_and_the_other_way_round(tmp_path):
    source, wrapped = net(1), Normalised(net(2))
    torch.save(source.state_dict(), tmp_path / "plain.pt")
    load_weights(wrapped, tmp_path / "plain.pt")
    assert same(source, wrapped)
    torch.save(wrapped.state_dict(), tmp_path / "wrapped.pt")
    target = net(3)
    load_weights(target, tmp_path / "wrapped.pt")
    assert same(source, target)


@pytest.mark.parametrize(
    ("mean", "std", "prefix"),
    [("mu", "sigma", ""), ("module.mu", "module.sigma", "module."), ("normalize.mean", "normalize.std", "model.")],
)
def test_normalisation_in_the_file_becomes_the_networks(mean, std, prefix, tmp_path):
    state = {prefix + key: value for key, value in net(1).state_dict().items()}
    state |= {mean: torch.full((1, 3, 1, 1), 0.25), std: torch.full((1, 3, 1, 1), 0.5)}
    torch.save(state, tmp_path / "weights.pt")
    target = net(2)
    loaded = load_weights(target, tmp_path / "weights.pt")
    assert target.mean == loaded.mean == (0.25,) * 3
    assert target.std == loaded.std == (0.5,) * 3
    assert same(net(1), target)


def test_normalisation_of_a_network_that_keeps_its_own_is_read_like_any_tensor(tmp_path):
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.register_buffer("mu", torch.zeros(3))

    source, target = Own(), Own()
    source.mu.fill_(0.5)
    torch.save(source.state_dict(), tmp_path / "weights.pt")
    load_weights(target, tmp_path / "weights.pt")
    assert same(source, target)


def test_saved_weights_come_back_with_their_metadata_and_normalisation(tmp_path):
    source = net(1, mean=(0.1, 0.2, 0.3), std=(1, 2, 3))
    save_weights(source, tmp_path / "net.safetensors", network="wrn-10-1", classes=10, error=0.125)
    target = net(2, mean=(0.5,) * 3, std=(0.5,) * 3)
    loaded = load_weights(target, tmp_path / "net.safetensors")
    assert same(source, target)
    assert (target.mean, target.std) == (source.mean, source.std)
    assert loaded.metadata.items() >= {"network": "wrn-10-1", "classes": 10, "error": 0.125}.items()
    assert set(load_file(tmp_path / "net.safetensors")) == set(source.state_dict())


def test_network_without_normalisation_comes_back_without(tmp_path):
    save_weights(net(1), tmp_path / "net.safetensors")
    target = net(2, mean=(0.5,) * 3, std=(0.5,) * 3)
    load_weights(target, tmp_path / "net.safetensors")
    assert target.mean is None


def test_failed_write_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "net.safetensors"
    save_weights(net(1), path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_weights(net(2), path, error=float("nan"))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


PAGES = [
    b"<!DOCTYPE html><html><title>Google Drive - Virus scan warning</title>",
    b"\n  <html><body>Sign in",
    b"<?xml?>",
]


@pytest.mark.parametrize("content", PAGES)
def test_web_page_is_called_a_web_page(content, tmp_path):
    (tmp_path / "resnet.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"resnet\.pt, but it is a web page"):
        load_weights(net(), tmp_path / "resnet.pt")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer.*git lfs pull"),
        (b"\x1f\x8b\x08\x00rest", "compressed archive. Unpack"),
        (b"just some notes\n", "starts with b'just some notes"),
    ],
)
def test_other_files_are_named(content, text, tmp_path):
    (tmp_path / "weights.pth").write_bytes(content)
    with pytest.raises(ValueError, match=text):
        load_weights(net(), tmp_path / "weights.pth")


def test_a_missing_file_and_a_folder_are_errors_that_name_them(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"weights\.pt to be a file with weights, but there is no such file"):
        load_weights(net(), tmp_path / "weights.pt")
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        load_weights(net(), tmp_path)


@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_a_truncated_file_is_refused_and_the_network_stays(form, share, tmp_path):
    path = tmp_path / "weights.pt"
    if form == "safetensors":
        save_weights(net(1), path)
    else:
        torch.save(net(1).state_dict(), path, _use_new_zipfile_serialization=form == "zip")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    target = net(2)
    with pytest.raises(ValueError, match=r"weights\.pt.*cannot be read.*cut short"):
        load_weights(target, path)
    assert same(net(2), target)


@pytest.mark.parametrize("new", [True, False])
def test_unsafe_pickle_is_refused(new, tmp_path):
    content = {"state_dict": net().state_dict(), "args": Anything()}
    torch.save(content, tmp_path / "weights.pt", _use_new_zipfile_serialization=new)
    with pytest.raises(ValueError, match=r"holds Python objects \(.*Anything\).*could run any code"):
        load_weights(net(), tmp_path / "weights.pt")


@pytest.mark.parametrize(
    ("content", "found"), [({"epoch": 3}, "a dictionary of epoch"), ([1, 2], "a list"), ({}, "a dictionary of nothing")]
)
def test_a_file_without_a_state_dict_is_refused_with_its_content(content, found, tmp_path):
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=f"it holds {found}"):
        load_weights(net(), tmp_path / "weights.pt")


@pytest.mark.parametrize(
    ("target", "source", "text"),
    [
        (
            lambda: net(),
            lambda: net(classes=100),
            r"'fc.weight' of shape \(10, 64\).*\(100, 64\).*with 100 classes, not 10",
        ),
        (lambda: net(), lambda: WideResNet(16, 2), r"'block1.layer.0.conv1.weight'.*looks like wrn-16-2"),
        (lambda: net(), lambda: CifarResNet(32), "the file has no such tensor. The file looks like resnet-32 with 10"),
        (lambda: CifarResNet(20), lambda: CifarResNet(32), "'layer1.3.conv1.weight' to be absent.*resnet-32"),
        (lambda: net(), lambda: ResNeXt(29, 2, 4), "looks like resnext-29-2x4d with 100 classes"),
        (lambda: net(), lambda: build_network("resnet-18"), "looks like resnet-18 with 1000 classes"),
        (lambda: net(), lambda: nn.Linear(2, 2), "The file is of another network"),
        (lambda: nn.Linear(2, 2), lambda: to_variational(nn.Linear(2, 2)), "The file is of a variational network"),
    ],
)
def test_weights_of_another_network_are_refused_with_the_first_different_key_and_its_likely_name(
    target, source, text, tmp_path
):
    torch.save(source().state_dict(), tmp_path / "weights.pt")
    torch.manual_seed(0)
    model = target()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=text):
        load_weights(model, tmp_path / "weights.pt")
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())


def test_warmed_network_is_referred_to_its_own_reader(tmp_path):
    save_warmed(to_variational(nn.Linear(2, 2)), tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match=r"holds a warmed network\. .* read it with `vcotta\.bayes\.load_warmed`"):
        load_weights(nn.Linear(2, 2), tmp_path / "net.safetensors")


def test_foreign_metadata_of_safetensors_does_no_harm(tmp_path):
    save_file(net(1).state_dict(), tmp_path / "net.safetensors", {"format": "pt", "note": json.dumps([1])})
    target = net(2)
    assert load_weights(target, tmp_path / "net.safetensors").metadata["format"] == "pt"
    assert same(net(1), target)


@pytest.mark.parametrize("shape", [(), (16,), (16, 3, 3, 3), (64, 0, 7, 7)])
def test_odd_shapes_under_known_names_are_another_network_and_no_crash(shape, tmp_path):
    names = ("conv1.weight", "block1.layer.0.conv1.weight", "stage_1.0.conv_conv.weight", "layer1.0.conv3.weight")
    torch.save({name: torch.zeros(shape) for name in (*names, "fc.weight")}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"Expected 'weight' of shape \(2, 2\)"):
        load_weights(nn.Linear(2, 2), tmp_path / "weights.pt")


def test_for_fine_tuning_all_but_a_classifier_of_other_classes_is_read(tmp_path):
    save_weights(build_network("resnet-20", 7, seed=1), tmp_path / "seven.safetensors")
    seven = build_network("resnet-20", 7, tmp_path / "seven.safetensors", seed=2)
    three = build_network("resnet-20", 3, tmp_path / "seven.safetensors", seed=2, new_classifier=True)
    assert torch.equal(three.conv1.weight, seven.conv1.weight)
    assert torch.equal(three.linear.weight, build_network("resnet-20", 3, seed=2).linear.weight)
    same = build_network("resnet-20", 7, tmp_path / "seven.safetensors", seed=2, new_classifier=True)
    assert torch.equal(same.linear.weight, seven.linear.weight)
    with pytest.raises(ValueError, match="Build the network with classes=7"):
        build_network("resnet-20", 3, tmp_path / "seven.safetensors")
    with pytest.raises(ValueError, match="The file looks like resnet-20"):
        build_network("resnet-32", 3, tmp_path / "seven.safetensors", new_classifier=True)

from __future__ import annotations

import errno
import json
import struct

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

import vcotta
from vcotta import Runtime, build_adapter, list_methods, to_variational
from vcotta._util import tensorfile as state_files
from vcotta.methods import configure, find_method
from vcotta.models import CifarResNet, ResNet, ResNeXt, WideResNet, build_network

from .promises import network_for


def sequential() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ).eval()


def build(name: str, model: nn.Module, **more) -> vcotta.Adapter:
    options = {"views": 2} if "views" in vars(configure(name)) else {}
    if find_method(name).needs_source:
        options["source"] = [(torch.rand(16, 3, 8, 8), torch.arange(16) % 4)]
    return build_adapter(
        name, to_variational(model) if find_method(name).needs_variational else model, seed=4, **options, **more
    )


@pytest.mark.parametrize("name", list_methods())
@pytest.mark.parametrize("ours", [False, True])
def test_a_loaded_adapter_continues_as_if_it_had_not_been_saved(name, ours, tiny, images, tmp_path) -> None:
    own = "vit-1-8-8px" if find_method(name).needs_tokens else "wrn-10-1"
    tiny = network_for(name, tiny)
    adapter = build(name, build_network(own, 4) if ours else tiny())
    first = adapter(images(seed=0))
    adapter(images(seed=1))
    vcotta.save(adapter, tmp_path / "adapter.vcotta")
    loaded = vcotta.load(tmp_path / "adapter.vcotta", *([] if ours else [tiny(seed=5)]))
    assert type(loaded) is type(adapter)
    assert loaded.config == adapter.config
    assert loaded.steps == 2
    for seed in (2, 3):
        assert torch.equal(loaded(images(seed=seed)), adapter(images(seed=seed)))
    loaded.reset()
    assert torch.equal(loaded(images(seed=0)), first)


@pytest.mark.parametrize("name", [name for name in list_methods() if not find_method(name).needs_tokens])
def test_a_loaded_adapter_continues_exactly_where_weights_are_kept_in_another_order(name, images, tmp_path) -> None:
    adapter = build(name, sequential(), runtime=Runtime(channels_last=True))
    for seed in (0, 1):
        adapter(images(seed=seed))
    vcotta.save(adapter, tmp_path / "adapter.vcotta")
    loaded = vcotta.load(tmp_path / "adapter.vcotta", sequential())
    assert loaded.runtime.channels_last
    for seed in (2, 3, 4):
        assert torch.equal(loaded(images(seed=seed)), adapter(images(seed=seed)))
    for ours, theirs in zip(loaded.networks.values(), adapter.networks.values(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_saving_leaves_the_adapter_as_it_was(images, tmp_path) -> None:
    saved, untouched = build("vcotta", sequential()), build("vcotta", sequential())
    vcotta.save(saved, tmp_path / "a")
    assert torch.equal(saved(images()), untouched(images()))
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


OURS = {
    "wrn": lambda: WideResNet(10, 1, classes=4, stem_stride=2, base=8),
    "resnext": lambda: ResNeXt(11, 2, 4, classes=4),
    "resnet of CIFAR": lambda: CifarResNet(8, classes=4, mean=None, std=None),
    "resnet": lambda: ResNet(18, classes=4),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", OURS.values(), ids=OURS)
@pytest.mark.parametrize("name", ["bn", "vcotta"])
def test_our_networks_are_rebuilt_with_their_options_and_normalisation(name, make, images, tmp_path) -> None:
    model = make()
    model.set_normalisation((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    adapter = build(name, model)
    adapter(images(size=(16, 16)))
    before = torch.get_rng_state()
    vcotta.save(adapter, tmp_path / "a")
    loaded = vcotta.load(tmp_path / "a")
    assert torch.equal(torch.get_rng_state(), before)
    assert (loaded.start.mean, loaded.start.std) == (model.mean, model.std)
    assert torch.equal(loaded(images(seed=1, size=(16, 16))), adapter(images(seed=1, size=(16, 16))))


def changed() -> nn.Module:
    model = build_network("wrn-10-1", 4)
    model.conv1.stride = (2, 2)  # no tensor has another shape
    return model


@pytest.mark.parametrize("make", [sequential, changed])
def test_any_other_network_and_one_of_ours_that_was_changed_must_be_given(make, images, tmp_path) -> None:
    adapter = build("vcotta", make())
    adapter(images())
    vcotta.save(adapter, tmp_path / "a")
    with pytest.raises(ValueError, match=r"cannot be rebuilt from the file: it is none of vcotta\.models.*model="):
        vcotta.load(tmp_path / "a")
    assert torch.equal(vcotta.load(tmp_path / "a", make())(images(seed=1)), adapter(images(seed=1)))


def test_a_network_in_a_file_of_an_earlier_version_is_rebuilt_by_the_name_of_its_class(images, tmp_path) -> None:
    adapter = build("bn", build_network("wrn-10-1", 4))
    vcotta.save(adapter, tmp_path / "a")
    header(
        tmp_path / "a",
        lambda about: network_of(about).__setitem__(1, "vcotta.models.wide_resnet:WideResNet"),
    )
    assert torch.equal(vcotta.load(tmp_path / "a")(images()), adapter(images()))


def test_the_wrong_network_is_refused(tiny, tmp_path) -> None:
    vcotta.save(build("bn", tiny()), tmp_path / "a")
    with pytest.raises(ValueError, match="another network"):
        vcotta.load(tmp_path / "a", tiny(classes=9))


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.99])
def test_a_truncated_file_is_refused(keep, tmp_path) -> None:
    path = tmp_path / "a"
    vcotta.save(build("tent", sequential()), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    with pytest.raises(ValueError, match="cannot be read"):
        vcotta.load(path)


@pytest.mark.parametrize("place", [-1, -2000])
def test_a_flipped_bit_is_noticed(place, tmp_path) -> None:
    path = tmp_path / "a"
    vcotta.save(build("tent", sequential()), path)
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="changed since they were written"):
        vcotta.load(path)


def header(path, change) -> None:
    """Rewrite the metadata of a safetensors file, and leave out its hash as older files do."""
    whole = path.read_bytes()
    size = struct.unpack("<Q", whole[:8])[0]
    head = json.loads(whole[8 : 8 + size])
    about = json.loads(head["__metadata__"]["vcotta"])
    change(about)
    del about["sha256"]
    head["__metadata__"]["vcotta"] = json.dumps(about)
    new = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(new)) + new + whole[8 + size :])


def part(packed: dict, name: str) -> dict:
    """The entry of a packed dictionary."""
    return dict(packed.get("state", packed)["items"])[name]


def network_of(about: dict, place: int = 0) -> list:
    """The name of the class of a described network, or its arguments."""
    entry = part(part(about, "architecture"), "network")["items"][place]
    return entry[1] if place else entry


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about.pop("state"),
        lambda about: about.update(kind="other"),
        lambda about: about.update(state=[]),
        lambda about: part(about, "runtime")["items"].append(["fast", True]),
        lambda about: network_of(about).__setitem__(1, "os:system"),
        lambda about: network_of(about).__setitem__(1, "antigravity:Net"),
        lambda about: network_of(about).__setitem__(1, "CifarResNet"),
        lambda about: network_of(about, 1)["items"][0].__setitem__(1, 6 * 10**9 + 4),
    ],
)
def test_a_forged_file_is_refused_and_runs_nothing(change, tmp_path) -> None:
    path = tmp_path / "a"
    vcotta.save(build("bn", build_network("wrn-10-1", 4)), path)
    header(path, change)
    with pytest.raises(ValueError, match=r"cannot be (read|rebuilt)"):
        vcotta.load(path)


def test_an_adapter_of_a_method_that_is_not_registered_is_refused_with_what_to_do(tmp_path) -> None:
    path = tmp_path / "a"
    vcotta.save(build("bn", build_network("wrn-10-1", 4)), path)
    header(path, lambda about: part(about, "adapter")["items"][0].__setitem__(1, "mine"))
    with pytest.raises(ValueError, match=r"holds an adapter of 'mine'.*import its module first"):
        vcotta.load(path)


def test_an_older_file_without_a_hash_is_read(images, tmp_path) -> None:
    adapter = build("bn", build_network("wrn-10-1", 4))
    vcotta.save(adapter, tmp_path / "a")
    header(tmp_path / "a", lambda about: None)
    assert torch.equal(vcotta.load(tmp_path / "a")(images()), adapter(images()))


def test_a_full_disk_is_an_os_error_that_leaves_the_old_file(tmp_path, monkeypatch) -> None:
    vcotta.save(build("bn", sequential()), tmp_path / "a")
    before = (tmp_path / "a").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(state_files, "save_file", full)
    with pytest.raises(OSError, match="No space left") as told:
        vcotta.save(build("bn", sequential()), tmp_path / "a")
    assert told.value.errno == errno.ENOSPC
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


def test_a_foreign_or_missing_file_is_refused(tmp_path) -> None:
    path = tmp_path / "net"
    vcotta.bayes.save_warmed(to_variational(sequential()), path)
    with pytest.raises(ValueError, match="kind"):
        vcotta.load(path)
    with pytest.raises(FileNotFoundError):
        vcotta.load(tmp_path / "none")


def test_swapped_arguments_of_load_and_save_are_refused_as_such(tiny, tmp_path) -> None:
    path = tmp_path / "a.vcotta"
    with pytest.raises(TypeError, match=r"but got a TinyNet\. .*swapped: write vcotta\.load\(path, model\)"):
        vcotta.load(tiny(), path)
    with pytest.raises(TypeError, match=r"but got a BN\. .*swapped: write vcotta\.save\(adapter, path\)"):
        vcotta.save(path, vcotta.build_adapter("bn", tiny()))

from __future__ import annotations

import errno
import json
import struct

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

import vcotta
from vcotta import Runtime, build_adapter, list_methods, state_files, to_variational
from vcotta.methods import METHODS


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
    options = {"views": 2} if "cotta" in name else {}
    if METHODS[name].needs_source:
        options["source"] = [(torch.rand(16, 3, 8, 8), torch.arange(16) % 4)]
    return build_adapter(name, to_variational(model) if name == "vcotta" else model, seed=4, **options, **more)


@pytest.mark.parametrize("name", list_methods())
@pytest.mark.parametrize("own_class", [False, True])
def test_a_loaded_adapter_goes_on_as_if_nothing_had_happened(name, own_class, tiny, images, tmp_path) -> None:
    adapter = build(name, tiny() if own_class else sequential())
    first = adapter(images(seed=0))
    adapter(images(seed=1))
    vcotta.save(adapter, tmp_path / "adapter.vcotta")
    loaded = vcotta.load(tmp_path / "adapter.vcotta", *([tiny(seed=5)] if own_class else []))
    assert type(loaded) is type(adapter)
    assert loaded.config == adapter.config
    assert loaded.steps == 2
    for seed in (2, 3):
        assert torch.equal(loaded(images(seed=seed)), adapter(images(seed=seed)))
    loaded.reset()
    assert torch.equal(loaded(images(seed=0)), first)


@pytest.mark.parametrize("name", list_methods())
def test_a_loaded_adapter_goes_on_exactly_where_weights_are_kept_in_another_order(name, images, tmp_path) -> None:
    adapter = build(name, sequential(), runtime=Runtime(channels_last=True))
    for seed in (0, 1):
        adapter(images(seed=seed))
    vcotta.save(adapter, tmp_path / "adapter.vcotta")
    loaded = vcotta.load(tmp_path / "adapter.vcotta")
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


def test_a_class_of_the_running_script_is_warned_of(images, tmp_path) -> None:
    class Net(nn.Flatten):
        pass

    Net.__module__, Net.__qualname__ = "__main__", "Net"
    adapter = build("bn", nn.Sequential(Net(), nn.Linear(192, 4)))
    with pytest.warns(UserWarning, match=r"class Net belongs to the running script.*model=\.\.\."):
        vcotta.save(adapter, tmp_path / "a")


def test_a_network_changed_after_its_construction_is_not_rebuilt_wrongly(images, tmp_path) -> None:
    model = sequential()
    model[0].stride = (1, 1)  # the state dict does not tell
    adapter = build("bn", model)
    expected = adapter(images())
    vcotta.save(adapter, tmp_path / "a")
    assert torch.equal(vcotta.load(tmp_path / "a")(images()), expected)

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = sequential()

        def forward(self, x):
            return self.layers(x)

    own = Own()
    own.layers[2] = nn.ReLU()
    vcotta.save(build("bn", own), tmp_path / "b")
    with pytest.raises(ValueError, match="model="):
        vcotta.load(tmp_path / "b")
    assert vcotta.load(tmp_path / "b", own)(images()).shape == (6, 4)


class Pooled(nn.Module):
    """Keeps its arguments under other names, or where JSON cannot follow."""

    def __init__(self, pool: str = "mean", activation=torch.relu) -> None:
        super().__init__()
        self.kind, self.activation = pool, activation
        self.fc = nn.Linear(3, 4)

    def forward(self, x):
        x = self.activation(x)
        return self.fc(x.mean((2, 3)) if self.kind == "mean" else x.amax((2, 3)))


@pytest.mark.parametrize("arguments", [{"pool": "max"}, {"activation": torch.tanh}])
def test_a_network_whose_arguments_cannot_be_read_is_asked_for(arguments, images, tmp_path) -> None:
    model = Pooled(**arguments)
    adapter = build("bn", model)
    with pytest.warns(UserWarning, match="does not keep its argument"):
        vcotta.save(adapter, tmp_path / "a")
    with pytest.raises(ValueError, match=r"does not keep its argument.*model="):
        vcotta.load(tmp_path / "a")
    assert torch.equal(vcotta.load(tmp_path / "a", model)(images()), adapter(images()))


def test_modules_used_twice_are_rebuilt_as_one(images, tmp_path) -> None:
    relu, conv = nn.ReLU(), nn.Conv2d(3, 3, 3, padding=1)
    model = nn.Sequential(conv, relu, conv, relu, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    adapter = build("vcotta", model)
    adapter(images())
    vcotta.save(adapter, tmp_path / "a")
    loaded = vcotta.load(tmp_path / "a")
    assert loaded.start[0] is loaded.start[2]
    assert torch.equal(loaded(images(seed=1)), adapter(images(seed=1)))


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
    with pytest.raises(ValueError, match="not those that were written"):
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


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about.pop("state"),
        lambda about: about.update(kind="other"),
        lambda about: about.update(state=[]),
        lambda about: part(about, "runtime")["items"].append(["fast", True]),
        lambda about: part(part(about, "architecture"), "network")["items"][0].__setitem__(1, "os:system"),
        lambda about: part(part(about, "architecture"), "network")["items"][0].__setitem__(1, "antigravity:Net"),
    ],
)
def test_a_forged_file_is_refused_and_runs_nothing(change, tmp_path) -> None:
    path = tmp_path / "a"
    vcotta.save(build("bn", sequential()), path)
    header(path, change)
    with pytest.raises(ValueError, match=r"cannot be (read|rebuilt)"):
        vcotta.load(path)


def test_an_adapter_of_a_method_that_is_not_known_here_says_how_to_make_it_known(tmp_path) -> None:
    path = tmp_path / "a"
    vcotta.save(build("bn", sequential()), path)
    header(path, lambda about: part(about, "adapter")["items"][0].__setitem__(1, "mine"))
    with pytest.raises(ValueError, match=r"holds an adapter of 'mine'.*make it known first"):
        vcotta.load(path)


def test_an_older_file_without_a_hash_is_read(images, tmp_path) -> None:
    adapter = build("bn", sequential())
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
    vcotta.save_warmed(to_variational(sequential()), path)
    with pytest.raises(ValueError, match="kind"):
        vcotta.load(path)
    with pytest.raises(FileNotFoundError):
        vcotta.load(tmp_path / "none")

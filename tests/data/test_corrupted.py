import json

import numpy as np
import pytest
import torch

from vcotta.corruptions import corrupt
from vcotta.data import CorruptedSource, ImageData, corrupted, imagenet, load_digits, tiny_imagenet
from vcotta.data.corrupted import CorruptedArrays, open_corrupted, open_corrupted_arrays, write_corrupted
from vcotta.streams import make_stream

WNIDS = ("n01440764", "n01443537", "n01484850")


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return ImageData(rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8), np.arange(4), tuple("abcdefghij"), "clean")


@pytest.fixture
def official(data, tmp_path, tiny_cifar):
    """A folder in the layout of CIFAR-10-C, of four images."""
    tiny_cifar("cifar10")
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    for name in ("fog", "shot_noise"):
        stacked = np.concatenate([corrupt(data.images, name, severity, 7) for severity in range(1, 6)])
        np.save(folder / f"{name}.npy", stacked)
    np.save(folder / "labels.npy", np.tile(data.labels, 5).astype(np.uint8))
    return folder


def test_official_files_are_mapped_as_they_are(official, data):
    source = open_corrupted("cifar10", official)
    assert isinstance(source, CorruptedArrays)
    assert isinstance(source, CorruptedSource)
    assert not isinstance(data, CorruptedSource)
    images = source.corrupted("fog", 3)
    assert isinstance(images, np.memmap)
    assert np.array_equal(images, corrupt(data.images, "fog", 3, 7))
    assert source.labels.tolist() == [0, 1, 2, 3]
    assert source.class_names[3] == "cat"


def test_stream_over_files_equals_the_stream_that_made_them(official, data):
    settings = {"corruptions": ("shot_noise", "fog"), "severity": (5, 2), "batch_size": 3}
    files = make_stream("continual", open_corrupted("cifar10", official), **settings)
    made = make_stream("continual", data, seed=7, **settings)
    for one, other in zip(files, made, strict=True):
        assert (one.index, one.domain, one.severity) == (other.index, other.domain, other.severity)
        assert one.images.equal(other.images)
        assert one.labels.equal(other.labels)
    assert [len(batch.labels) for batch in files.batches(6)] == [3, 1]


def test_the_description_of_stored_files_differs_from_that_of_generated_pixels(official, data):
    stream = make_stream("continual", open_corrupted("cifar10", official), ("fog",), batch_size=2, limit=3)
    described = stream.describe()
    assert json.loads(json.dumps(described)) == described
    assert (described["pixels"], described["seed"], described["severity_table"]) == ("files", None, None)
    assert described.keys() == make_stream("continual", data, ("fog",)).describe().keys()
    assert str(official) not in json.dumps(described)
    other = make_stream("continual", open_corrupted("cifar10", official), ("fog",), severity=4).describe()
    assert other["data"]["sha256"] != described["data"]["sha256"]
    assert str(stream).endswith("3 images each, 2 batches of up to 2, from files.")


def test_missing_corruption_is_named_before_the_stream_starts(official):
    source = open_corrupted("cifar10", official)
    with pytest.raises(FileNotFoundError, match=r"Expected .*snow.npy for the corruption snow"):
        make_stream("continual", source, ("fog", "snow"))


def test_wrong_shapes_are_refused(official):
    source = open_corrupted("cifar10", official)
    whole = np.load(official / "fog.npy")
    for wrong in (whole[:4], whole[..., :2], whole.astype(np.float32), whole[0]):
        np.save(official / "fog.npy", wrong)
        with pytest.raises(
            ValueError, match=r"fog.npy to be uint8 of shape \(20, height, width, 3\), 4 images for each"
        ):
            source.corrupted("fog", 5)
    path = official / "fog.npy"
    np.save(path, whole)
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(ValueError, match="to be an array"):
        source.corrupted("fog", 5)


def test_labels_that_do_not_fit_are_refused(official, tmp_path):
    labels = np.load(official / "labels.npy")
    for wrong, text in (
        (labels[:19], r"to hold 20 labels, 4 for each of 5 severities, but got uint8 of shape \(19,\)"),
        (labels.astype(np.float32), "float32"),
        (np.arange(20) % 10, "to repeat for each severity"),
        (labels + 9, "to be 0 to 9, but got 9 to 12"),
    ):
        np.save(official / "labels.npy", wrong)
        with pytest.raises(ValueError, match=text):
            open_corrupted("cifar10", official)
    with pytest.raises(FileNotFoundError, match=r"and labels\.npy, but there is no such folder"):
        open_corrupted("cifar10", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"and labels\.npy, but there is no labels\.npy in it"):
        open_corrupted("cifar10", tmp_path / "empty")


def test_missing_severity_is_named(data, tmp_path):
    np.save(tmp_path / "labels.npy", data.labels)
    np.save(tmp_path / "fog.npy", data.images)
    (tmp_path / "meta.json").write_text(json.dumps({"severities": [5], "data": {"images": 4}}))
    source = open_corrupted_arrays(tmp_path, data.class_names, "mine", 10)
    assert np.array_equal(source.corrupted("fog", 5), data.images)
    with pytest.raises(ValueError, match=r"Expected severity 3 of fog in .*, but it holds only severities 5"):
        make_stream("continual", source, ("fog",), severity=3)
    (tmp_path / "meta.json").write_text("{}")
    with pytest.raises(ValueError, match="to list severities and images"):
        open_corrupted_arrays(tmp_path, data.class_names, "mine", 10)


def test_settings_of_imagenet_are_refused_for_cifar(official):
    with pytest.raises(ValueError, match="for imagenet only"):
        open_corrupted("cifar10", official, preprocess="res256crop224")
    with pytest.raises(ValueError, match="Did you mean 'cifar10'"):
        open_corrupted("cifar", official)
    with pytest.raises(ValueError, match=r"the data set of the corrupted files to be one of .*, but got 'folder:pets'"):
        open_corrupted("folder:pets", official)


def test_what_is_written_of_digits_is_read_again(tmp_path):
    test = load_digits()[1]
    source = open_corrupted("digits", write_corrupted(test, tmp_path / "C", (5,), 3, corruptions=("contrast",)))
    assert np.array_equal(source.corrupted("contrast", 5), corrupt(test.images, "contrast", 5, 3))
    assert np.array_equal(source.labels, test.labels)
    assert source.class_names == test.class_names


@pytest.fixture
def tree(save_image, tmp_path, monkeypatch):
    """A tree in the layout of ImageNet-C: three classes, six images, two corruptions, one of them in its group."""
    monkeypatch.setattr(imagenet, "CLASSES", 3)
    for folder in ("fog", "blur/zoom_blur"):
        for severity in (3, 5):
            for number in range(6):
                file = f"{WNIDS[2 - number % 3]}/ILSVRC2012_val_{number:08d}.JPEG"
                save_image(tmp_path / "C" / folder / str(severity) / file, seed=10 * number + severity + len(folder))
    return tmp_path / "C"


def test_tree_is_read_as_it_is(tree):
    stream = make_stream("continual", open_corrupted("imagenet", tree), ("fog", "zoom_blur"), batch_size=4)
    batches = list(stream)
    assert [(batch.domain, len(batch.labels)) for batch in batches] == [
        ("fog", 4),
        ("fog", 2),
        ("zoom_blur", 4),
        ("zoom_blur", 2),
    ]
    assert batches[0].labels.tolist() == [2, 1, 0, 2]
    assert batches[0].images.shape == (4, 3, 224, 224)
    assert not torch.equal(batches[0].images, batches[2].images)
    described = stream.describe()
    assert (described["pixels"], described["preprocessing"]) == ("files", "none, uint8 / 255")


def test_tree_takes_subsets_and_lists(tree, tmp_path):
    assert open_corrupted("imagenet", tree, subset=3).labels.tolist() == [2, 1, 0]
    (tmp_path / "ids.txt").write_text(f"{WNIDS[0]}/ILSVRC2012_val_00000005.JPEG\n")
    assert open_corrupted("imagenet", tree, list_file=tmp_path / "ids.txt").labels.tolist() == [0]


def test_second_resize_must_be_confirmed(tree):
    with pytest.raises(ValueError, match="a second time"):
        open_corrupted("imagenet", tree, preprocess="res256crop224")
    legacy = open_corrupted("imagenet", tree, preprocess="res256crop224", legacy=True)
    plain = open_corrupted("imagenet", tree)
    assert not np.array_equal(legacy.corrupted("fog", 5)[:1], plain.corrupted("fog", 5)[:1])
    assert legacy.corrupted_sha256([("fog", 5)]) != plain.corrupted_sha256([("fog", 5)])
    assert make_stream("continual", legacy, ("fog",)).describe()["preprocessing"] == "res256crop224, uint8 / 255"


def test_tree_of_photographs_is_refused(tree, save_image):
    save_image(tree / "zoom_blur" / "1" / WNIDS[0] / "a.JPEG")
    for wnid in WNIDS:
        save_image(tree / "fog" / "3" / wnid / "ILSVRC2012_val_00000000.JPEG", (300, 224))
    (tree / "blur" / "zoom_blur").rename(tree / "blur" / "old")
    with pytest.raises(ValueError, match="but got"):
        open_corrupted("imagenet", tree)


def test_missing_parts_of_the_tree_are_named(tree, tmp_path):
    source = open_corrupted("imagenet", tree)
    with pytest.raises(FileNotFoundError, match="Expected a folder snow"):
        make_stream("continual", source, ("snow",))
    with pytest.raises(FileNotFoundError, match="Expected severity 4 of fog"):
        make_stream("continual", source, ("fog",), severity=4)
    with pytest.raises(ValueError, match="Expected clean images"):
        make_stream("continual", source, ("none",))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="it holds no corruption"):
        open_corrupted("imagenet", tmp_path / "empty")


def test_tiny_imagenet_c_is_read_as_a_tree_of_64_pixels_or_as_our_arrays(save_image, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_imagenet, "CLASSES", 3)
    for number in range(6):
        save_image(tmp_path / "C" / "fog" / "5" / WNIDS[2 - number % 3] / f"val_{number}.JPEG", (64, 64), seed=number)
    tree = open_corrupted("tiny-imagenet", tmp_path / "C")
    (batch,) = make_stream("continual", tree, ("fog",))
    assert batch.images.shape == (6, 3, 64, 64)
    assert batch.labels.tolist() == [2, 1, 0, 2, 1, 0]
    clean = ImageData(np.zeros((2, 64, 64, 3), np.uint8), np.array([0, 2]), WNIDS, "tiny-imagenet-test")
    monkeypatch.setattr(corrupted, "load_prepared", lambda name: clean)
    made = write_corrupted(clean, tmp_path / "made", (5,), corruptions=("contrast",))
    for name in ("tiny-imagenet", "imagenet"):
        assert open_corrupted(name, made).corrupted("contrast", 5).shape == (2, 64, 64, 3)
    with pytest.raises(ValueError, match="in image files, but got one for imagenet in arrays"):
        open_corrupted("imagenet", made, subset=1000)
    assert json.loads((made / "meta.json").read_text())["severity_table"] == 64

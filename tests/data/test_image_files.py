import numpy as np
import pytest
from PIL import Image

from vcotta.data.image_files import FilePixels, ImageFiles
from vcotta.streams import make_stream


def read(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def test_photographs_are_resized_to_256_and_cropped_to_224(save_image, tmp_path):
    save_image(tmp_path / "a.png", (500, 375))
    (pixels,) = FilePixels(tmp_path, ("a.png",))[:]
    with Image.open(tmp_path / "a.png") as image:
        expected = image.resize((341, 256), Image.Resampling.BILINEAR).crop((58, 16, 282, 240))
    assert np.array_equal(pixels, np.asarray(expected))
    save_image(tmp_path / "b.png", (300, 700))
    with Image.open(tmp_path / "b.png") as image:
        expected = image.resize((256, 597), Image.Resampling.BILINEAR).crop((16, 186, 240, 410))
    assert np.array_equal(FilePixels(tmp_path, ("b.png",))[:][0], np.asarray(expected))


def test_slices_have_the_pixels_of_their_files_in_order(save_image, tmp_path):
    files = tuple(f"{number}.png" for number in range(12))
    for number, file in enumerate(files):
        save_image(tmp_path / file, (32, 32), seed=number)
    pixels = FilePixels(tmp_path, files, 32, "none")
    assert pixels.shape == (12, 32, 32, 3)
    assert np.array_equal(pixels[3:7], np.stack([read(tmp_path / file) for file in files[3:7]]))
    assert len(pixels[20:]) == 0


def test_images_that_would_be_resized_twice_are_refused_loudly(save_image, tmp_path):
    files = tuple(save_image(tmp_path / f"{number}.png", seed=number).name for number in range(9))
    with pytest.raises(ValueError, match=r"already are 224 x 224.*second time.*preprocess=\"none\".*legacy=True"):
        FilePixels(tmp_path, files)
    assert np.array_equal(FilePixels(tmp_path, files, preprocess="none")[:1][0], read(tmp_path / "0.png"))
    with Image.open(tmp_path / "0.png") as image:
        twice = image.resize((256, 256), Image.Resampling.BILINEAR).crop((16, 16, 240, 240))
    assert np.array_equal(FilePixels(tmp_path, files, legacy=True)[:1][0], np.asarray(twice))


def test_one_photograph_that_happens_to_be_224_px_is_no_reason_to_refuse(save_image, tmp_path):
    save_image(tmp_path / "a.png", (224, 224))
    save_image(tmp_path / "b.png", (300, 300))
    assert FilePixels(tmp_path, ("a.png", "b.png"))[:].shape == (2, 224, 224, 3)


def test_image_of_another_size_is_refused_where_none_is_resized(save_image, tmp_path):
    save_image(tmp_path / "a.png", (300, 224))
    with pytest.raises(ValueError, match=r"a.png to be 224 x 224, .* but got 300 x 224"):
        FilePixels(tmp_path, ("a.png",), preprocess="none")[:]


def test_resize_leaves_images_of_the_right_size_alone(save_image, tmp_path):
    save_image(tmp_path / "a.png", (32, 32))
    save_image(tmp_path / "b.png", (64, 48))
    pixels = FilePixels(tmp_path, ("a.png", "b.png"), 32, "resize")[:]
    assert np.array_equal(pixels[0], read(tmp_path / "a.png"))
    assert pixels.shape == (2, 32, 32, 3)


def test_files_of_more_than_eight_bits_a_channel_are_refused_and_not_clipped(tmp_path):
    Image.fromarray(np.full((32, 32), 30000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(ValueError, match=r"deep\.png to have eight bits a channel, but its mode is I;16"):
        FilePixels(tmp_path, ("deep.png",), 32, "resize")[:]


def test_unreadable_and_missing_files_are_named(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"a.png to be an image, but it cannot be read"):
        FilePixels(tmp_path, ("a.png",), preprocess="none")[:]
    with pytest.raises(FileNotFoundError, match=r"Expected .*b.png to be an image, but there is no such file"):
        FilePixels(tmp_path, ("b.png",), preprocess="none")[:]
    with pytest.raises(ValueError, match=r"a\.png to be an image"):
        FilePixels(tmp_path, ("a.png",))


def test_wrong_settings_are_named(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'none'"):
        FilePixels(tmp_path, (), preprocess="nome")
    with pytest.raises(ValueError, match="`size` to be 224"):
        FilePixels(tmp_path, (), 32)
    with pytest.raises(ValueError, match="`size` to be at least 1"):
        FilePixels(tmp_path, (), 0, "none")
    pixels = FilePixels(tmp_path, (), 32, "none")
    with pytest.raises(ValueError, match=r"`labels` to be int64 of shape \(0,\)"):
        ImageFiles(pixels, np.zeros(3, np.int64), ("a",), "x")


def test_a_stream_takes_files_as_it_takes_arrays(save_image, tmp_path):
    files = tuple(save_image(tmp_path / f"{number}.png", (32, 32), number).name for number in range(5))
    data = ImageFiles(FilePixels(tmp_path, files, 32, "none"), np.arange(5) % 2, ("a", "b"), "mine")
    lazy = make_stream("continual", data, ("shot_noise", "fog"), batch_size=2)
    eager = make_stream("continual", data.read(), ("shot_noise", "fog"), batch_size=2)
    for one, other in zip(lazy, eager, strict=True):
        assert one.images.equal(other.images)
        assert one.labels.equal(other.labels)
    assert lazy.describe()["preprocessing"] == "none, uint8 / 255"
    assert lazy.describe()["data"]["image_shape"] == [32, 32, 3]
    before = data.sha256()
    save_image(tmp_path / "0.png", (33, 32))
    assert data.sha256() != before

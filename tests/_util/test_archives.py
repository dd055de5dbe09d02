import io
import tarfile

import numpy as np
import pytest

from vcotta._util.archives import map_array, read_members


@pytest.mark.parametrize("form", ["", "gz", "bz2", "xz"])
def test_a_file_is_read_from_an_archive_and_damage_is_an_error_that_names_the_archive(tmp_path, form) -> None:
    path, content = tmp_path / "data.tar", np.random.default_rng(0).bytes(50_000)
    with tarfile.open(path, f"w:{form}") as archive:
        member = tarfile.TarInfo("folder/a.bin")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    assert read_members(path, ["a.bin"]) == {"a.bin": content}
    whole = path.read_bytes()
    middle = len(whole) // 2
    damaged = [whole[:middle], whole[:200], b""]
    if form in ("bz2", "xz"):
        damaged.append(whole[:middle] + bytes(2000) + whole[middle + 2000 :])
    for bad in damaged:
        path.write_bytes(bad)
        with pytest.raises(
            ValueError, match=r"Expected .*data\.tar to be a complete tar archive, but .* download it again"
        ):
            read_members(path, ["a.bin"])


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"to contain b\.bin, but it does not"):
        read_members(tmp_path, ["b.bin"])
    with pytest.raises(FileNotFoundError, match=r"none\.tar to be a tar archive, but there is no such file"):
        read_members(tmp_path / "none.tar", ["b.bin"])


def test_what_is_no_array_is_an_error_that_names_the_file(tmp_path) -> None:
    path = tmp_path / "a.npy"
    with pytest.raises(IsADirectoryError, match=r"to be an \.npy file, but it is a folder"):
        map_array(tmp_path)
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    (tmp_path / "a.npz").rename(path)
    with pytest.raises(ValueError, match=r"Expected .*a\.npy to be an array, but it cannot be read"):
        map_array(path)
    np.save(path, np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"Expected .*a\.npy to be an array, but it cannot be read"):
        map_array(path)
    path.write_bytes(b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535)
    with pytest.raises(ValueError, match=r"Expected .*a\.npy to be an array, but it cannot be read"):
        map_array(path)

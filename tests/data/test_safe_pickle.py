import os
import pickle

import numpy as np
import pytest

from vcotta.data.safe_pickle import read_pickle


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_arrays_lists_and_bytes_come_back(protocol):
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    found = read_pickle(pickle.dumps({b"data": array, b"labels": [1, 2]}, protocol=protocol), "batch")
    assert found[b"labels"] == [1, 2]
    assert np.array_equal(found[b"data"], array)


def test_pickle_as_python_2_wrote_it_is_read():
    """The opcodes of the official files: 8-bit strings, and NumPy under its old module name."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    dtype = (
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    empty = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + b"K\x00\x85" + text(b"b") + b"\x87R"
    array = empty + b"(K\x01K\x02K\x03\x86" + dtype + b"\x89" + text(b"abcdef") + b"tb"
    contents = b"\x80\x02}(" + text(b"data") + array + text(b"labels") + b"](K\x06K\x09eu."
    found = read_pickle(contents, "data_batch_1")
    assert found[b"labels"] == [6, 9]
    assert found[b"data"].tolist() == [[97, 98, 99], [100, 101, 102]]


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_code_in_a_pickle_is_not_run(tmp_path):
    contents = pickle.dumps({b"data": Runs(str(tmp_path / "proof"))})
    with pytest.raises(ValueError, match=r"Expected data_batch_1 to be .*mkdir, which no image archive needs"):
        read_pickle(contents, "data_batch_1")
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize(
    "value", [np.array([object()]), np.arange(3.0), np.asfortranarray(np.zeros((2, 3), np.uint8)), 1j, np.float64(1)]
)
def test_anything_but_plain_uint8_arrays_is_refused(value):
    with pytest.raises(ValueError, match="cannot be read"):
        read_pickle(pickle.dumps({b"data": value}, protocol=2), "batch")


def test_damaged_pickle_is_refused():
    whole = pickle.dumps({b"data": np.zeros(1000, np.uint8)}, protocol=2)
    for contents in (whole[:-400], b"", b"no pickle", whole.replace(b"u1", b"u9")):
        with pytest.raises(ValueError, match=r"Expected batch to be a pickle .* Download it again"):
            read_pickle(contents, "batch")


def doubled(start: bytes, nest: bytes, levels: int) -> bytes:
    """A container that holds the one before it twice, over and over: few bytes, 2 ** levels paths through it."""
    contents = start + b"q\x00"
    for level in range(1, levels):
        contents += nest.replace(b"X", b"h" + bytes([level - 1])) + b"q" + bytes([level])
    return contents


@pytest.mark.parametrize(
    "contents",
    [
        b"\x80\x02" + doubled(b"]", b"](XXe", 250) + b".",
        b"\x80\x02}U\x01a" + doubled(b"]", b"](XXe", 250) + b"s.",
        b"\x80\x02}" + doubled(b")", b"XX\x86", 250) + b"K\x01s.",
        b"\x80\x02}U\x01a" + doubled(b")", b"XX\x86", 250) + b"s.",
    ],
    ids=["lists", "lists in a dictionary", "tuples as a key", "tuples in a dictionary"],
)
def test_nested_containers_are_refused_without_walking_through_them(contents):
    with pytest.raises(ValueError, match="cannot be read: it h"):
        read_pickle(contents, "batch")


def test_no_attribute_of_a_function_can_be_set():
    """BUILD on a function that a pickle may name, which Python's unpickler does by setattr."""
    contents = b"\x80\x02c_codecs\nencode\n}U\x0c__defaults__K\x01K\x02\x86sb."
    with pytest.raises(ValueError, match="sets attributes of what is no array"):
        read_pickle(contents, "batch")


@pytest.mark.parametrize(
    "contents",
    [
        b"\x80\x02R.",
        b"\x80\x02e.",
        b"\x80\x02K\x01(K\x02e.",
        b"\x80\x02}(U\x01au.",
        b"\x80\x02h\x05.",
        b"\x80\x02cnumpy\nndarray\n)R.",
        b"\x80\x02}U\x01acnumpy.core.multiarray\n_reconstruct\n)Rs.",
        b"\x80\x02K\x01K\x02.",
    ],
)
def test_opcodes_that_do_not_fit_together_are_refused(contents):
    with pytest.raises(ValueError, match="Expected batch to be a pickle"):
        read_pickle(contents, "batch")

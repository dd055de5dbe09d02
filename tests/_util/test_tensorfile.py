from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from vcotta._util.tensorfile import pack_state, read_state, state_kind, write_state


def test_tensors_that_share_memory_are_written_and_read_back_apart(tmp_path) -> None:
    whole = torch.arange(6.0)
    state = {"whole": whole, "again": whole, "part": whole[2:], "empty": [torch.empty(0), torch.empty(0)]}
    write_state(tmp_path / "a", "kind", state)
    read = read_state(tmp_path / "a", "kind")
    assert torch.equal(read["whole"], whole)
    assert torch.equal(read["again"], whole)
    assert torch.equal(read["part"], whole[2:])
    read["again"].zero_()
    assert torch.equal(read["whole"], whole)


def test_packing_copies_no_tensor_that_is_contiguous_on_the_cpu() -> None:
    tensors: dict[str, torch.Tensor] = {}
    weight = torch.ones(3, 2)
    pack_state({"weight": weight, "turned": weight.T}, "", tensors)
    assert tensors["/weight"].data_ptr() == weight.data_ptr()
    assert tensors["/turned"].is_contiguous()
    assert tensors["/turned"].data_ptr() != weight.data_ptr()


def test_a_folder_and_a_missing_file_are_named(tmp_path) -> None:
    for read in (lambda path: read_state(path, "numbers"), state_kind):
        with pytest.raises(IsADirectoryError, match=f"Expected {tmp_path} to be a file.*, but it is a folder"):
            read(tmp_path)
        with pytest.raises(FileNotFoundError, match=r"Expected .*missing to be a file.*, but there is no such file"):
            read(tmp_path / "missing")


def test_a_state_that_is_nested_too_deeply_is_an_error_that_names_the_file(tmp_path) -> None:
    deep = '{"kind": "numbers", "state": ' + '{"list": [' * 50_000 + "]}" * 50_000 + "}"
    save_file({"x": torch.zeros(1)}, tmp_path / "deep", {"vcotta": deep})
    with pytest.raises(
        ValueError, match=r"Expected .*deep to be a file of kind 'numbers', .*: it is nested too deeply\."
    ):
        read_state(tmp_path / "deep", "numbers")


@pytest.mark.parametrize("header", ["[]", "{", '{"kind": 5}', json.dumps({"kind": "other", "state": {}})])
def test_a_foreign_header_is_an_error_that_names_the_file(tmp_path, header) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "foreign", {"vcotta": header})
    with pytest.raises(ValueError, match=r"Expected .*foreign to be a file of kind 'numbers', but it cannot be read"):
        read_state(tmp_path / "foreign", "numbers")


@pytest.mark.parametrize("content", [b"", b"short", b"a text of more than eight letters"])
def test_a_file_that_is_no_safetensors_file_is_called_so(tmp_path, content) -> None:
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(ValueError, match=r"it is not a safetensors file, .* read with vcotta\.models\.load_weights"):
        read_state(tmp_path / "text", "numbers")
    torch.save({"x": torch.ones(2)}, tmp_path / "net.pt")
    with pytest.raises(ValueError, match="it is not a safetensors file"):
        read_state(tmp_path / "net.pt", "numbers")


def test_a_safetensors_file_of_others_is_told_from_a_damaged_one(tmp_path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "theirs")
    with pytest.raises(ValueError, match="a safetensors file that vcotta did not write"):
        read_state(tmp_path / "theirs", "numbers")
    write_state(tmp_path / "ours", "numbers", {"x": torch.ones(64)})
    (tmp_path / "ours").write_bytes((tmp_path / "ours").read_bytes()[:-8])
    with pytest.raises(ValueError, match="cannot be read") as damaged:
        read_state(tmp_path / "ours", "numbers")
    assert "not a safetensors file" not in str(damaged.value)


def test_changed_bytes_are_noticed(tmp_path) -> None:
    write_state(tmp_path / "a", "numbers", {"x": torch.ones(64)})
    content = bytearray((tmp_path / "a").read_bytes())
    content[-1] ^= 1
    (tmp_path / "a").write_bytes(bytes(content))
    with pytest.raises(ValueError, match="changed since they were written"):
        read_state(tmp_path / "a", "numbers")

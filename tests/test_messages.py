from __future__ import annotations

import errno
import warnings

import pytest

from vcotta._messages import file_trouble, notes, unknown_name


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("rl", ["lr", "optimizer"], "lr"),
        ("mian", ["cost", "main"], "main"),
        ("VCoTA", ["cotta", "vcotta"], "vcotta"),
        ("gausian_niose", ["glass_blur", "gaussian_noise"], "gaussian_noise"),
        ("mixed", ["continual", "mixed_domains"], "mixed_domains"),
        ("fp16", ["fp32", "bf16", "fp64"], None),
        ("foo", ["source", "obao", "roid"], None),
        ("x", ["k", "xs"], None),
        ("", ["a"], None),
        ("a", [], None),
    ],
)
def test_only_a_near_name_is_suggested(given, known, meant) -> None:
    text = str(unknown_name("name", given, known))
    assert text.endswith("." if meant is None else f" Did you mean {meant!r}?")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOENT, "No such file or directory", "a.pt"), "a.pt to be there, but there is no such file"),
        (OSError(errno.EEXIST, "File exists", "a"), "a to be a folder, but it is a file"),
        (OSError(errno.ENOTDIR, "Not a directory", "a"), "a to be a folder, but it is a file"),
        (OSError(errno.EISDIR, "Is a directory", "a"), "a to be a file, but it is a folder"),
        (OSError(errno.EACCES, "Permission denied", "a"), "a, but it may not be read or written"),
        (OSError(errno.ENOSPC, "No space left on device", "a"), "the system says: No space left on device"),
        (OSError(errno.ENOSPC, "Could not write a: it is full"), "Could not write a: it is full"),
        (FileExistsError("Expected a not to exist yet."), "Expected a not to exist yet."),
    ],
)
def test_trouble_with_a_file_is_told_in_words(error, text) -> None:
    told = file_trouble(error)
    assert text in told
    assert "Errno" not in told


def test_a_warning_is_one_note_however_often_it_comes(capsys, monkeypatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", notes())
        for text in ("cold", "cold", "late"):
            warnings.warn(text, stacklevel=1)
    assert capsys.readouterr().err == "Note: cold\nNote: late\n"

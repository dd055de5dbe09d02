from __future__ import annotations

import errno
import warnings

import pytest

from vcotta._util.errors import file_trouble, notes, unknown_name


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("mian", ["cost", "main"], "main"),
        ("VCoTA", ["cotta", "vcotta"], "vcotta"),
        ("gausian_niose", ["glass_blur", "gaussian_noise"], "gaussian_noise"),
        ("mixed", ["continual", "mixed_domains"], "mixed_domains"),
        ("foo", ["source", "obao", "roid"], None),
        ("x", ["k", "xyz"], None),
        ("", ["a"], None),
        ("a", [], None),
    ],
)
def test_only_a_near_name_is_suggested(given, known, meant) -> None:
    text = str(unknown_name("name", given, known))
    assert text.endswith("." if meant is None else f" Did you mean {meant!r}?")


def test_the_suggestion_comes_before_a_long_list() -> None:
    names = [f"method-{place}" for place in range(10, 41)]
    text = str(unknown_name("method", "metod-20", names))
    assert text.startswith(
        "Expected `method` to be one of 31 names, but got 'metod-20'. Did you mean 'method-20'? All names: method-10, "
    )
    assert str(unknown_name("method", "x", names)).startswith("Expected `method` to be one of method-10, ")


@pytest.mark.parametrize("given", ["learning_rate", "LearningRate", "learning-rate", "step_size"])
def test_the_usual_names_of_settings_suggest_ours(given) -> None:
    assert str(unknown_name("option of tent", given, ["lr", "optimizer", "source_lr"])).endswith("Did you mean 'lr'?")


@pytest.mark.parametrize("given", ["batchnorm", "batch_norm", "BatchNorm"])
def test_the_usual_names_of_methods_suggest_ours(given) -> None:
    assert str(unknown_name("method", given, ["source", "bn"])).endswith("Did you mean 'bn'?")
    assert "Did you mean" not in str(unknown_name("dataset", given, ["digits"]))  # where there is no such name


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOENT, "No such file or directory", "a.pt"), "No such file: a.pt. Check the path."),
        (OSError(errno.EEXIST, "File exists", "a"), "a to be a folder, but it is a file"),
        (OSError(errno.ENOTDIR, "Not a directory", "a"), "a to be a folder, but it is a file"),
        (OSError(errno.EISDIR, "Is a directory", "a"), "a to be a file, but it is a folder"),
        (OSError(errno.EACCES, "Permission denied", "a"), "No permission to read or write a"),
        (OSError(errno.ENOSPC, "No space left on device", "a"), "Could not use a: No space left on device"),
        (OSError(errno.ENOSPC, "Could not write a: it is full"), "Could not write a: it is full"),
        (FileExistsError("Expected a not to exist yet."), "Expected a not to exist yet."),
    ],
)
def test_an_error_about_a_file_is_explained_in_words(error, text) -> None:
    explained = file_trouble(error)
    assert text in explained
    assert "Errno" not in explained


def test_a_repeated_warning_is_printed_once(capsys, monkeypatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", notes())
        for text in ("cold", "cold", "late"):
            warnings.warn(text, stacklevel=1)
    assert capsys.readouterr().err == "Note: cold\nNote: late\n"


def test_several_names_in_one_are_told_apart_from_a_misspelt_one() -> None:
    known = ["fog", "snow", "frost"]
    assert str(unknown_name("corruptions", "fog snow", known)).endswith("separated by commas: fog,snow.")
    assert "separated" not in str(unknown_name("corruptions", "fog sno", known))

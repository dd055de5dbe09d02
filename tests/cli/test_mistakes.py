"""Mistakes of users at the command line."""

from __future__ import annotations

import pytest
from PIL import Image

MISTAKES = {
    "an unknown method": (["run", "--method", "vcota", "--out", "x"], "Did you mean 'vcotta'"),
    "an unknown data set": (["run", "--method", "bn", "--dataset", "digit", "--out", "x"], "Did you mean 'digits'"),
    "an unknown option of a method": (
        ["run", "--method", "tent", "--out", "x", "--set", "rl=1"],
        "one of statistics, label_prior, lr, optimizer, but got 'rl'",
    ),
    "a malformed setting": (["run", "--method", "tent", "--out", "x", "--set", "lr"], "OPTION=VALUE"),
    "a severity of 0": (["run", "--method", "bn", "--out", "x", "--severity", "0"], "1 to 5"),
    "a batch size of 0": (["run", "--method", "bn", "--out", "x", "--batch-size", "0"], "batch_size"),
    "data that is not prepared": (["run", "--method", "bn", "--dataset", "cifar100", "--out", "x"], "data prepare"),
    "weights that are not there": (
        ["run", "--method", "bn", "--out", "x", "--weights", "no.safetensors"],
        "Expected no.safetensors to be a file, but there is no such file. Check the path.",
    ),
    "a missing option": (["run", "--out", "x"], "--method"),
    "an unknown option": (["run", "--methd", "bn"], "--methd"),
    "an unknown command": (["rum"], "rum"),
    "an unknown corruption": (["corrupt", "a.png", "--name", "smog", "--out", "b.png"], "fog"),
    "a file that is not there": (["corrupt", "none.png", "--name", "fog", "--out", "b.png"], "none.png"),
    "data that cannot be fetched": (["data", "fetch", "frst"], "Did you mean 'frost'"),
    "nothing to tune": (["tune", "--method", "source", "--out", "x.json"], "none to search"),
    "seeds that are not numbers": (["tune", "--method", "tent", "--out", "x", "--seeds", "a"], "whole numbers"),
    "an unknown option to tune": (["tune", "--method", "tent", "--out", "x", "--grid", "lrr=1"], "'lr'"),
    "a severity of 0 to tune at": (["tune", "--method", "tent", "--out", "x", "--severities", "0"], "1 to 5"),
    "none beside a corruption": (["run", "--method", "bn", "--out", "x", "--corruptions", "fog,none"], "only one"),
    "an unknown corruption of a run": (["run", "--method", "bn", "--out", "x", "--corruptions", "fogg"], "'fog'"),
    "a list without files": (["run", "--method", "bn", "--out", "x", "--list", "l.txt"], "corrupted"),
    "a subset of CIFAR-10": (
        ["run", "--method", "bn", "--dataset", "cifar10", "--corrupted", ".", "--subset", "5", "--out", "x"],
        "imagenet only",
    ),
    "a preprocessing of CIFAR-10": (["data", "prepare", "cifar10", "--preprocess", "none"], "imagenet only"),
    "a network with too few outputs": (
        ["run", "--method", "bn", "--model", "four.py:four", "--out", "x"],
        "10 outputs",
    ),
    "both resuming and overwriting": (["run", "--method", "bn", "--out", "x", "--resume", "--overwrite"], "both"),
    "an unknown launcher": (["reproduce", "margin", "--launcher", "slurm", "--out", "x"], "local, ray"),
    "an address without a cluster": (["reproduce", "margin", "--address", "auto", "--out", "x"], "--launcher ray"),
    "workers of a cluster": (["reproduce", "margin", "--launcher", "ray", "--workers", "2", "--out", "x"], "resources"),
    "a limit of 0": (["run", "--method", "bn", "--out", "x", "--limit", "0"], "Leave it out to use all"),
    "an unknown preprocessing of a bundle": (
        ["bundle", "--preprocess", "crop", "--out", "x"],
        "`preprocess` to be one",
    ),
    "an option in words": (["run", "--method", "tent", "--set", "a=1", "--out", "x"], "Expected the option of tent to"),
    "a token that is not there": (["serve", "a.png", "--token-file", "no"], "No such file: no. Check the path."),
    "corrupted files of one's own images": (
        ["run", "--method", "bn", "--dataset", "folder:.", "--corrupted", ".", "--out", "x"],
        "the data set of the corrupted files to be one of cifar10, cifar100, imagenet, tiny-imagenet, digits, but",
    ),
    "a negative seed": (["demo", "--seed", "-1"], "seed"),
}


FOUR = "from torch import nn\n\ndef four():\n    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 4))\n"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_users_mistake_is_one_line_and_exit_code_2(command, mistake, tmp_path) -> None:
    arguments, text = MISTAKES[mistake]
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    (tmp_path / "four.py").write_text(FOUR)
    code, _, err = command(*arguments)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("Error: ")
    assert text in err
    assert not (tmp_path / "x").exists()

"""The code of the README runs; its numbers and links are checked in tests/studies."""

from __future__ import annotations

import re
from pathlib import Path

import torch

import vcotta

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_five_lines_run(tiny, images, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = re.search(r"## Five lines of use\n\n```python\n(.*?)```", README, re.DOTALL).group(1)
    code = code.replace("source=train_loader)", "source=train_loader, views=1)")
    names = {
        "model": tiny(),
        "train_loader": [(images(8, 0), torch.arange(8) % 4)],
        "stream": [images(6, 1), images(6, 2)],
    }
    exec(code, names)
    assert names["log_probs"].shape == (6, 4)
    assert vcotta.load("state.vcotta", tiny()).steps == 2

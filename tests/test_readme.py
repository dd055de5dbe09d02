"""README and docs say what the result files say, and their links and code are real."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import torch

import vcotta

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_every_number_comes_from_a_result_file() -> None:
    spec = importlib.util.spec_from_file_location("update", ROOT / "docs" / "update.py")
    update = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(update)
    for page in update.PAGES:
        assert update.updated(page.read_text()) == page.read_text(), page.name


def test_every_linked_file_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert all((ROOT / link).is_file() for link in links if "://" not in link)


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

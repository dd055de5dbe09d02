"""The price list: its rows, its frontier, and methods of another repository in a small stand-in for it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch

from studies.checkouts import PACKAGES
from studies.cost import growth, prices, reference, table
from studies.cost.picture import draw_frontier
from vcotta.models.wide_resnet import digits_network

CHECKOUT = {
    "conf.py": "from yacs.config import CfgNode\ncfg = CfgNode()\ncfg.OPTIM = CfgNode()\ncfg.OPTIM.LR = 0.1\n"
    "cfg.TEST = CfgNode()\n",
    "methods/__init__.py": "raise ImportError('importing one method imports all of them')\n",
    "methods/tent.py": "import torchvision\nfrom utils.losses import double\n\n"
    "class Tent:\n    def __init__(self, cfg, model, classes):\n"
    "        self.cfg, self.model, self.classes = cfg, model, classes\n"
    "    def __call__(self, x):\n        return double(self.model(x))\n",
    "utils/losses.py": "def double(x):\n    return 2 * x\n",
    "cfgs/cifar10_c/tent.yaml": "OPTIM:\n  LR: 1e-3\n",
}


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A folder like the other repository."""
    for name, text in CHECKOUT.items():
        path = tmp_path / "classification" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_method_of_a_checkout_runs_with_its_own_settings_and_our_network(checkout, tmp_path) -> None:
    net, images = digits_network().eval(), torch.rand(2, 3, 32, 32)
    source = [(images, torch.zeros(2))]
    with reference.reference_step(checkout, "tent", net, source, "digits", tmp_path) as (step, missing):
        assert torch.equal(reference.no_gradient(step, images), 2 * net(images))
    assert step.cfg.OPTIM.LR == 1e-3
    assert step.cfg.TEST.BATCH_SIZE == 2
    assert step.classes == 10
    assert set(missing) <= set(PACKAGES)


def test_a_folder_that_is_no_checkout_is_refused(tmp_path) -> None:
    with (
        pytest.raises(ValueError, match=r"methods/tent\.py"),
        reference.reference_step(tmp_path, "tent", digits_network(), [], "digits", tmp_path),
    ):
        pass


def test_the_network_is_split_before_its_classifier() -> None:
    net, images = digits_network().eval(), torch.rand(2, 3, 32, 32)
    features, classifier = reference._split(net)
    assert torch.allclose(classifier(features(images)), net(images), atol=1e-6)


ROW = {"network": "net", "batch_size": 50, "peak_gib": 0.3, "reference_ms": None, "reference_error": None}
PRICES = [
    ROW | {"dataset": "digits", "method": "bn", "views": None, "ms_per_batch": 3.0, "error": 9.0},
    ROW | {"dataset": "digits", "method": "slow", "views": None, "ms_per_batch": 5.0, "error": 9.5},
    ROW | {"dataset": "digits", "method": "vcotta", "views": 4, "ms_per_batch": 60.0, "error": 3.0},
    ROW
    | {"dataset": "digits", "method": "tent", "views": None, "ms_per_batch": 4.0, "error": 8.0}
    | {"reference_ms": 6.0, "reference_error": 8.1, "reference_stand_ins": ["torchvision"]},
]
SETTING = {
    "dataset": "digits",
    "hardware": "a processor",
    "threads": 1,
    "clock": "CPU time",
    "images_per_corruption": 50,
    "seed": 0,
    "runs": 1,
    "torch": "2",
    "vcotta": "0",
    "reference": "a repository 1234567",
}


def test_rows_of_a_data_set_take_the_place_of_its_earlier_ones_and_leave_others(tmp_path) -> None:
    path = tmp_path / "steps.json"
    path.write_text(json.dumps({"setting": {"threads": 1}, "rows": [{"dataset": "random"}, {"dataset": "digits"}]}))
    prices.write_rows(path, PRICES, SETTING)
    prices.write_rows(path, PRICES[:1], SETTING)
    found = json.loads(path.read_text())
    assert found["rows"] == [{"dataset": "random"}, PRICES[0]]
    assert found["setting"] == {"threads": 1}
    assert found["prices"] == {"digits": SETTING}


def test_table_and_picture_show_the_frontier_and_the_reference(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(table, "read_result", lambda *_: {"rows": PRICES, "prices": {"digits": SETTING}})
    text = table.prices_text()
    assert "| **tent** |  | 4.0 | 0.30 | 8.00 | 6.0 | 8.10 | 1.5 |" in text
    assert "| slow |" in text
    assert [row["method"] for row in table.frontier(PRICES)] == ["bn", "tent", "vcotta"]
    assert "its random views are ours" in text
    draw_frontier("digits", tmp_path / "frontier.png")
    assert (tmp_path / "frontier.png").stat().st_size > 5000


def test_a_row_describes_a_run_with_the_views_and_the_options_that_match_the_reference() -> None:
    names = ("network", "weights", "warmed", "corrupted", "limit", "batch_size", "reference")
    options = argparse.Namespace(data="digits", seed=1, device="cpu", **dict.fromkeys(names))
    assert prices.spec_of(options, "vcotta", 2).config.views == 2
    options.reference = Path("a checkout")
    assert prices.spec_of(options, "rmt", None).config.warm_up_images == 1000


def test_growth_is_fitted_by_a_power_or_a_line() -> None:
    assert growth.exponents([1, 2, 4], [1.0, 4.0, 32.0]) == {"exponent": 2.5, "at_the_end": 3.0}
    assert growth.line([0, 2, 4], [5.0, 9.0, 13.0]) == {"base_ms": 5.0, "each_ms": 2.0}


def test_a_step_of_every_size_can_be_measured() -> None:
    small = {"images": 2, "views": 0, "width": 1, "pixels": 8, "classes": 3}
    assert growth.milliseconds("bn", small, 1) > 0

"""Official code beside ours: its imports leave no trace, its draws are ours, and a difference is found."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from studies.checkouts import commit_of
from studies.parity import run as script
from studies.parity import table
from studies.parity.draws import Tape
from studies.parity.official import official_code
from studies.parity.undefined import undefined_names
from vcotta.models.wide_resnet import digits_network
from vcotta.nn.rng import OwnRng

TENT = """
import torch
import timm.layers
from torchvision.transforms import Compose


def configure_model(model):
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
    return model.eval()


def collect_params(model):
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    return [tensor for layer in layers for tensor in layer.parameters()], []


class Tent:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def __call__(self, images):
        logits = self.model(images)
        self.optimizer.zero_grad()
        loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        loss.backward()
        self.optimizer.step()
        return logits.cuda()
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with a tiny TENT, and a network that need not be trained."""
    monkeypatch.setattr(script, "trained_network", lambda: digits_network(0).eval())
    root = tmp_path / "tent"
    root.mkdir()
    (root / "tent.py").write_text(TENT)
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*name, "commit", "-q", "-m", "TENT"]):
        subprocess.run(["git", "-C", str(root), *words], check=True)
    return root


def compared(checkout, tmp_path) -> dict[str, dict]:
    words = [f"DequanWang/tent={checkout}", "--batches", "3", "--batch-size", "6", "--out", str(tmp_path / "rows.json")]
    script.main(words)
    return {row["precision"]: row for row in json.loads((tmp_path / "rows.json").read_text())}


def test_equal_code_agrees_to_rounding(checkout, tmp_path) -> None:
    rows = compared(checkout, tmp_path)
    assert rows["fp64"]["log_probabilities"] < 1e-12 < 1e-3 < rows["fp64"]["moved"]
    assert rows["fp32"]["log_probabilities"] < 1e-3
    assert rows["fp64"]["commit"] == commit_of(checkout)
    assert rows["fp64"]["images"] == 18
    assert "tent" not in sys.modules


def test_a_mistake_in_the_loss_is_found(checkout, tmp_path) -> None:
    (checkout / "tent.py").write_text(TENT.replace(".sum(1).mean()", ".sum(1)[1:].mean()"))
    subprocess.run(["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "-"])
    assert compared(checkout, tmp_path)["fp64"]["log_probabilities"] > 1e-4


def test_code_that_fails_gives_a_row_with_the_reason(checkout, tmp_path) -> None:
    (checkout / "tent.py").write_text(f"{TENT}\nCompose()\n")
    subprocess.run(["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "-"])
    row = compared(checkout, tmp_path)["fp64"]
    assert row["why"].startswith("ImportError: Expected not to need Compose")
    assert "log_probabilities" not in row


def test_a_changed_checkout_is_refused(checkout) -> None:
    (checkout / "tent.py").write_text("")
    with pytest.raises(ValueError, match="Expected an unchanged checkout"):
        commit_of(checkout)
    with pytest.raises(ValueError, match="Expected a git checkout"):
        commit_of(checkout.parent)


def test_imports_of_a_checkout_are_forgotten(tmp_path) -> None:
    import vcotta.models as ours

    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "net.py").write_text("import models.other\nname = models.other.name")
    with official_code(tmp_path, {"models.other": {"name": "theirs"}}):
        import models.net  # type: ignore[import-not-found]

        assert models.net.name == "theirs"
    assert "models" not in sys.modules
    assert "models.net" not in sys.modules
    assert sys.modules["vcotta.models"] is ours
    assert str(tmp_path) not in sys.path


def test_views_are_played_back_in_any_order_of_the_images() -> None:
    from vcotta.methods import roid

    tape, images = Tape(), torch.rand(4, 3, 8, 8)
    with OwnRng(0).scope(), tape.recording():
        view = roid.random_view(images)
    rows = torch.tensor([2, 0])
    assert torch.equal(tape.view(images[rows].double()), view[rows].double())
    assert not tape.uniform  # a view's own draws are part of it
    with OwnRng(0).scope(), tape.recording():
        roid.random_view(images)
    with pytest.raises(ValueError, match="Expected views of the images that our method augmented"):
        tape.view(images + 1)


def test_draws_of_another_shape_are_refused() -> None:
    tape = Tape()
    with tape.recording():
        drawn, order = torch.rand(2, 3), torch.randperm(5)
    with tape.playing():
        assert torch.equal(torch.randperm(5), order)
        assert torch.equal(torch.rand((2, 3)), drawn)
        with pytest.raises(ValueError, match="Expected draws of shape"):
            torch.rand(2, 3)
        with pytest.raises(ValueError, match="Expected a permutation that our method drew, too, but got one of 4"):
            torch.randperm(4)


def test_names_that_nobody_sets_are_listed() -> None:
    assert undefined_names("def f(x, *, y=1):\n    def g(z):\n        return z + y\n    return g(x) + a") == ["a"]


def test_a_method_that_differs_in_one_variant_is_listed_with_all_of_them(monkeypatch) -> None:
    def pair(method: str, difference: float, variant: str = "") -> list[dict]:
        facts = {"repository": "a/b", "commit": "0" * 40, "variant": variant, "changes": [], "differing": 0}
        facts |= {"images": 100, "batches": 10, "hardware": "a CPU", "versions": {"python": "3", "torch": "2"}}
        facts |= {"probabilities": difference, "moved": 1.0, "stand_ins": ["timm"], "log_probabilities": difference}
        return [facts | {"method": method, "precision": precision} for precision in ("fp32", "fp64")]

    failed = [row | {"why": "it fails"} for row in pair("tca", 0.0)]
    rows = [*pair("tent", 1e-14), *pair("sar", 1e-3), *pair("sar", 0.0, "mended"), *failed]
    monkeypatch.setattr(table, "read_result", lambda study, name: rows)
    assert "| tent |" in table.agree_text()
    assert "sar" not in table.agree_text()
    assert "| sar |" in table.differ_text()
    assert "| sar (mended) |" in table.differ_text()
    assert table.failed_text() == "- tca, a/b `0000000`: it fails."
    assert table.summary_text().startswith("2 methods were compared with the code of 1 repositories. In float64 each")

"""The study of what the student learns from."""

from __future__ import annotations

import json

import pytest
import torch

from studies.posterior import learning as script
from studies.posterior import table_learning as page
from vcotta import to_variational
from vcotta.methods import VCoTTA, VCoTTAConfig
from vcotta.models import save_weights
from vcotta.models.wide_resnet import digits_network


def adapter(tiny, variant: script.Variant, kind: type[VCoTTA] = script.LearningVCoTTA) -> VCoTTA:
    made = kind(to_variational(tiny()), VCoTTAConfig(views=2, flip=False))
    made.variant = variant
    return made


def moved(one: VCoTTA, other: VCoTTA) -> float:
    pairs = zip(one.networks["student"].parameters(), other.networks["student"].parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def test_without_a_change_it_learns_and_predicts_as_vcotta_does(tiny, images) -> None:
    ours, usual = adapter(tiny, script.Variant()), adapter(tiny, script.Variant(), VCoTTA)
    for seed in range(3):
        assert torch.equal(ours(images(seed=seed)), usual(images(seed=seed)))
    assert moved(ours, usual) == 0


def test_with_nothing_to_replay_yet_its_loss_is_vcottas(tiny, images) -> None:
    ours, usual = adapter(tiny, script.Variant(replayed=1)), adapter(tiny, script.Variant(), VCoTTA)
    ours(images())
    usual(images())
    assert moved(ours, usual) < 1e-6


@pytest.mark.parametrize(
    "name", ["AugMix views for the student", "three recent batches again", "sure targets count more"]
)
def test_each_change_of_the_loss_changes_what_is_learned(tiny, images, name) -> None:
    ours, usual = adapter(tiny, script.VARIANTS[name]), adapter(tiny, script.Variant())
    for seed in range(3):
        ours(images(seed=seed))
        usual(images(seed=seed))
    assert moved(ours, usual) > 1e-5


def test_no_more_batches_are_kept_than_are_replayed(tiny, images) -> None:
    ours = adapter(tiny, script.Variant(replayed=2))
    for seed in range(4):
        ours(images(seed=seed))
    assert len(ours._recent_batches) == 2
    assert torch.equal(ours._recent_batches[-1][0], images(seed=3))


def test_half_the_prediction_is_the_images_and_a_quarter_the_students() -> None:
    source, student = torch.full((1, 2), 4.0), torch.full((1, 2), 8.0)
    teacher = torch.stack([torch.full((1, 2), 2.0), torch.full((1, 2), 1.0)])
    found = script.predictions(source, teacher, student)
    assert [output[0, 0].item() for output in found.values()] == [2.0, 3.5]


def test_a_row_is_written_once_and_shown(tmp_path, monkeypatch) -> None:
    weights, out = tmp_path / "digits.safetensors", tmp_path / "rows.json"
    save_weights(digits_network(0), weights)
    command = ["--dataset", "digits", "--weights", str(weights), "--starts", "plain", "--limit", "20"]
    for _ in range(2):
        script.main([*command, "--variants", "default", "tca", "--out", str(out)])
    rows = json.loads(out.read_text())
    assert [row["variant"] for row in rows] == ["default", "tca"]
    assert list(rows[0]["predictions"]) == list(script.PREDICTIONS)
    monkeypatch.setattr(page, "read_result", lambda *_: rows)
    assert "| default |" in page.learning_text()

"""The study of shares: rules that weigh source, teacher and student in the prediction."""

from __future__ import annotations

import json

import pytest
import torch

from studies.posterior import shares as script
from studies.posterior import table as page

SURE, UNSURE, WRONG = (torch.tensor(row).log() for row in ([0.98, 0.01, 0.01], [0.4, 0.3, 0.3], [0.01, 0.98, 0.01]))


def batch(*rows: torch.Tensor, images: int = 200) -> list[torch.Tensor]:
    return [row.expand(images, 3) for row in rows]


def test_a_fixed_share_pools_log_probabilities() -> None:
    rule = script.Rule([0.25, 0.75])
    for _ in range(2):
        assert torch.allclose(rule(batch(SURE, WRONG, UNSURE)), 0.25 * SURE + 0.75 * WRONG, atol=1e-6)


def test_a_network_without_a_share_is_left_out_whatever_it_says() -> None:
    nothing = torch.full_like(SURE, -torch.inf)
    assert torch.equal(script.Rule([0.0, 1.0])(batch(nothing, SURE)), SURE.expand(200, 3))


@pytest.mark.parametrize(
    ("penalty", "log_probs", "trusted"),
    [(script.mean_entropy, (UNSURE, SURE, SURE), 1), (script.disagreement, (WRONG, SURE, SURE), 1)],
)
def test_shares_move_after_the_batch_to_the_network_that_is_surer_or_agrees(penalty, log_probs, trusted) -> None:
    rule = script.Rule([1 / 3, 1 / 3, 1 / 3], penalty)
    before, after = rule(batch(*log_probs)), rule(batch(*log_probs))
    assert torch.allclose(before, torch.stack(batch(*log_probs)).mean(0))
    assert (after - log_probs[trusted]).abs().max() < (before - log_probs[trusted]).abs().max()


def test_scores_are_those_of_each_rule_on_the_same_answers() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    batches = [(SURE.expand(4, 3), batch(WRONG, SURE, WRONG, images=4), labels)] * 2
    found = {row["rule"]: row["error"] for row in script.scores(batches)}
    assert (found["default"], found["source 0"], found["source 1"]) == (50.0, 50.0, 50.0)
    assert found["a third each, with the student"] == 50.0
    right = [(SURE.expand(4, 3), batch(WRONG, SURE, WRONG, images=4), torch.zeros(4, dtype=torch.long))]
    found = {row["rule"]: row["error"] for row in script.scores(right)}
    assert (found["source 0"], found["source 0.75"], found["source 1"]) == (0.0, 100.0, 100.0)


def test_regret_is_counted_from_the_best_fixed_share_of_each_stream(monkeypatch) -> None:
    def rows(stream: str, **errors: float) -> list[dict]:
        return [
            {"network": "net", "seed": 0, "stream": stream, "rule": rule.replace("_", " "), "error": error, "nll": 0.5}
            for rule, error in errors.items()
        ]

    found = rows("a", source_0=4.0, source_1=6.0, default=5.0) + rows("b", source_0=8.0, source_1=2.0, default=2.5)
    monkeypatch.setattr(page, "read_result", lambda *_: found)
    lines = page.shares_text().splitlines()
    assert "| default | 3.75 | 0.500 | 0.75 | 1.00 |" in lines
    assert "| source 0 | 6.00 | 0.500 | 3.00 | 6.00 |" in lines


@pytest.mark.slow
def test_a_file_that_is_there_is_written_anew_and_the_default_is_the_adapters_prediction(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(script, "STREAMS", {"continual": {}})
    out = tmp_path / "shares.json"
    words = ["--networks", "small", "--seeds", "0", "--limit", "20", "--out", str(out)]
    script.main(words)
    first = json.loads(out.read_text())
    script.main(words)
    assert json.loads(out.read_text()) == first
    assert [row["rule"] for row in first] == ["default", *script.rules()]
    assert all(0 <= row["error"] <= 100 for row in first)

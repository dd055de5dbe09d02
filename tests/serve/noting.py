"""A stand-in for what an adapter notes about its steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from vcotta.serve.engine import Engine

FEW: dict[str, Any] = {
    "effective_classes": 1.25,
    "class_diversity": 0.1,
    "batch_share": 0.05,
    "guard": {"causes": ["diversity"], "action": "note"},
}
MANY: dict[str, Any] = {"effective_classes": 3.75, "class_diversity": 1.0, "batch_share": 0.5}


def note_steps(engine: Engine, notes: Iterable[dict[str, Any]]) -> None:
    """Let the adapter's next steps note these values in addition, one after the other."""
    adapter, each = engine.adapter, iter(notes)
    real = adapter.predict_and_adapt

    def noting(images: Tensor) -> Tensor:
        answer = real(images)
        adapter.note(**next(each))
        return answer

    adapter.predict_and_adapt = noting

"""The README's table of VCoTTA's presets, drawn from the presets themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from vcotta.methods import VCoTTAConfig

PRESETS = ("paper", "authors", "best")
WHAT = {
    "alpha": "weight of the source, by rule or fixed",
    "source_views": "the source looks at the views, too",
    "scope": "one alpha for the batch, or for each image",
    "margin": "how much surer than the image a view must be to be kept; -1 keeps all",
    "target": "what the student learns: the teacher's opinion, or both priors'",
    "temperature": "sharpens that target",
    "loss": "cross-entropy, one way or both ways",
    "student": "what the student is trained on: the image, or a random view of it, too",
    "sampling": "the student's pass draws outputs (local reparameterisation), weights, or nothing",
    "mixup": "mixes each image with a partner",
    "inference": "predicts from the image, the filtered views, or both together",
    "lr": "step size",
    "relative": "steps are measured in the size of what they change",
    "beta": "decay of the teacher's average",
    "full_batch": "below it steps become smaller",
    "prior_images": "what the source's statistics are worth to a smaller batch",
    "kl_weight": "weight of the divergence, divided by the number of weights",
    "kl_lambda": "or what it is divided by",
}


def presets_text() -> str:
    """One row an option in which the presets differ, with the values of CIFAR-10."""
    configs = {name: VCoTTAConfig.preset(name) for name in PRESETS}
    lines = [f"| option | | {' | '.join(f'`{name}`' for name in PRESETS)} |", "|:--|:--" + "|:--" * len(PRESETS) + "|"]
    for name in (field.name for field in fields(VCoTTAConfig)):
        values = [getattr(config, name) for config in configs.values()]
        if len(set(values)) > 1:
            lines.append(f"| `{name}` | {WHAT[name]} | {' | '.join(map(_shown, values))} |")
    return "\n".join(lines)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else f"{value}"


PRESETS_TABLE: dict[str, Callable[[], str]] = {"presets": presets_text}

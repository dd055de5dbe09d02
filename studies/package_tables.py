"""Tables of the package itself: its methods and VCoTTA's presets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from studies.markdown import table
from vcotta.methods import VCoTTAConfig, configure, find_method, list_methods

PRESETS = ("paper", "authors", "best")
MEANINGS = {
    "views": "random views beside the image",
    "alpha": "weight of the source, by rule or fixed",
    "source_views": "the source predicts the views, too",
    "scope": "one alpha for the batch, or for each image",
    "margin": "how much more confident than on the image the network must be on a view to keep it; -1 keeps all",
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
    "statistics": "BatchNorm uses the batch's statistics, or infers them from source, batch and recent batches",
    "label_prior": "learns along the stream which classes are likely",
    "kl_weight": "weight of the divergence, divided by the number of weights",
    "kl_lambda": "or what it is divided by",
}


def presets_text() -> str:
    """Return a row for each option in which the presets differ, with the values of CIFAR-10."""
    configs = [configure("vcotta", preset=name) for name in PRESETS]
    rows = []
    for name in (field.name for field in fields(VCoTTAConfig)):
        values = [getattr(config, name) for config in configs]
        if len(set(values)) > 1:
            rows.append((f"`{name}`", MEANINGS[name], *map(_shown, values)))
    headings = ["option", "", *(f"`{name}`" for name in PRESETS)]
    return table(headings, rows, left=len(headings))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else f"{value}"


def methods_text() -> str:
    """Return a row for each method, from its own card."""
    headings = ["Method", "What it does", "Trains", "Needs of the source", "Cost per batch", "Written from"]
    rows = []
    for name in list_methods():
        method = find_method(name)
        card = method.card
        cells = (method.summary, card.trains, card.source, card.passes, card.provenance)
        rows.append((f"`{name}`", *cells))
    return f"{table(headings, rows, left=len(headings))}\n\nN is the number of views."


TABLES: dict[str, Callable[[], str]] = {"presets": presets_text, "methods": methods_text}

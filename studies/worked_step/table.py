"""The worked step on the page *How VCoTTA works*."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from studies.files import read_result
from studies.markdown import table


def images_text() -> str:
    """Return what each part of the step says of the three images."""
    found = read_result("worked_step", "worked_step.json")
    images = found["images"]

    def row(heading: str, cell: Callable[[dict[str, Any]], str]) -> tuple[str, ...]:
        return (heading, *map(cell, images))

    rows = [
        row("true class (the adapter never sees it)", lambda image: f"{image['label']}"),
        row("source: class, probability", lambda image: _said(image["source"])),
        row("teacher: class, probability", lambda image: _said(image["teacher"])),
        row("entropy of the source, nats", lambda image: f"{image['source']['entropy']:.3f}"),
        row("entropy of the teacher, nats", lambda image: f"{image['teacher']['entropy']:.3f}"),
        row("alpha by the paper's rule", lambda image: f"{image['alpha_by_entropy']:.3f}"),
        row("alpha in the target (`best`)", lambda image: f"{image['alpha']:.3f}"),
        row("**prediction returned**", lambda image: f"**{_said(image['before'])}**"),
        row("target of the student", lambda image: _said(image["target"])),
        row("prediction after the step", lambda image: _said(image["after"])),
    ]
    return table(["", "image A", "image B", "image C"], rows)


def loss_text() -> str:
    """Return the terms of the loss, how far the networks moved, and the errors on the batch."""
    found = read_result("worked_step", "worked_step.json")
    loss, moved, wrong = found["loss"], found["moved_in_sigmas"], found["errors"]
    kappa, alpha, count = loss["kappa"], found["images"][0]["alpha"], found["batch_size"]
    mixed = f"{alpha:g} KL to the source + {1 - alpha:g} KL to the teacher"
    rows = [
        ("cross-entropy of the student to the target", f"{loss['cross_entropy']:.4f}"),
        ("KL(student, source), nats per weight", f"{loss['kl_to_source']:.4f}"),
        ("KL(student, teacher), nats per weight", f"{loss['kl_to_teacher']:.4f}"),
        (f"divergence term: {kappa:g} x ({mixed})", f"{loss['kl_term']:.4f}"),
        ("loss, the sum of cross-entropy and divergence term", f"{loss['sum']:.4f}"),
        ("how far the student moved, in standard deviations of its weights", f"{moved['student']:.4f}"),
        ("how far the teacher moved", f"{moved['teacher']:.4f}"),
        ("KL(student, source) after the step", f"{found['kl_to_source_after']:.4f}"),
        (f"wrong of {count}: source alone, teacher alone", f"{wrong['source']}, {wrong['teacher']}"),
        (f"wrong of {count}: prediction returned, the same after the step", f"{wrong['before']}, {wrong['after']}"),
    ]
    note = (
        f"Step {found['step']} of a stream of digits, a batch of {count} images in low {found['corruption']}; the "
        f"digits' WideResNet (`wrn-10-1`), seed 0, without a guard; torch {found['torch']}, one CPU thread "
        "(`python -m studies.worked_step.run`)."
    )
    return f"{table(['whole batch', 'value'], rows)}\n\n{note}"


def _said(answer: dict[str, Any]) -> str:
    return f"{answer['class']}, {answer['probability']:.3f}"


TABLES: dict[str, Callable[[], str]] = {"worked-step-images": images_text, "worked-step-loss": loss_text}

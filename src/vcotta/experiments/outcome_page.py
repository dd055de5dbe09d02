"""The outcome of an experiment as a page of Markdown: what was asked, what came out, and the picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vcotta.experiments.entries import ENTRIES
from vcotta.experiments.outcome import by_corruption, read_rows, table
from vcotta.experiments.pictures import CAPTIONS, MARKS, SPREAD

__all__ = ["command", "listed", "made_of", "outcome_page", "outcome_section"]


def outcome_page(told: Mapping[str, Any], picture: str = "picture.png") -> str:
    """Return the whole page.

    Args:
        told: What ``outcome.json`` holds.
        picture: Where the picture is, as seen from the page.
    """
    entry = ENTRIES[told["experiment"]]
    where = "Not in the paper." if entry.where == "ours" else f"In the paper: {entry.where}."
    return f"# {entry.name}\n\n{entry.title} {where}\n\n{outcome_section(told, picture)}"


def outcome_section(told: Mapping[str, Any], picture: str) -> str:
    """Return tables, what they were made of, and the picture, without a heading."""
    entry, dataset, rows = ENTRIES[told["experiment"]], told["asked"]["dataset"], read_rows(told["rows"])
    parts = [f"```console\n$ {command(told)}\n```", table(entry, rows).markdown().rstrip()]
    if entry.by_corruption is not None:
        parts.append(by_corruption(entry, dataset, rows).markdown().rstrip())
    caption = [CAPTIONS.get(entry.picture, "")]
    if len(told["asked"]["seeds"]) > 1:
        caption.append(SPREAD.get(entry.picture, ""))
    if entry.picture in MARKS and any(row.paper for row in rows):
        caption.append(f"{MARKS[entry.picture]} are the paper's values.")
    parts += [made_of(told), f"![{entry.name}: {entry.title}]({picture})", " ".join(filter(None, caption))]
    return "\n\n".join(filter(None, parts)) + "\n"


def command(told: Mapping[str, Any]) -> str:
    """Return the command that asks for an outcome; files of networks are named, not located."""
    asked = told["asked"]
    words = ["vcotta", "reproduce", told["experiment"], "--dataset", asked["dataset"]]
    words += ["--scale", "quick" if asked["quick"] else "full", "--preset", asked["preset"]]
    words += ["--seeds", listed(asked["seeds"])]
    for option in ("methods", "values"):
        if asked[option] is not None:
            words += [f"--{option}", listed(asked[option])]
    if asked["limit"] is not None:
        words += ["--limit", str(asked["limit"])]
    for kind, option in (("source", "--weights"), ("warmed", "--warmed")):
        if kind in told["networks"]:
            words += [option, f"{kind.upper()}.safetensors"]
    return " ".join(words)


def made_of(told: Mapping[str, Any]) -> str:
    """Return in words what the numbers were made of, and what that took."""
    stream, cost, asked = told["stream"], told["cost"], told["asked"]
    images = f"{stream['images_per_domain']} images" if stream.get("images_per_domain") else "All images"
    several = len(asked["seeds"]) > 1
    part = "".join(f", only the {kind} {listed(asked[kind], ', ')}" for kind in ("methods", "values") if asked[kind])
    few = asked["views"] is not None and told["experiment"] != "augmentations"  # whose rows tell their views
    views = f", at most {asked['views']} views" if few else ""
    given = "".join(f", {kind} network {digest[:12]}" for kind, digest in told["networks"].items())
    on_cpu = told["runtime"]["device"] == "cpu" and "cpu_seconds" in cost
    cpu = f" and {cost['cpu_seconds']:.0f} s of CPU" if on_cpu else ""
    ran = "" if cost["ran"] == cost["cells"] else f" ({cost['ran']} of {cost['cells']} runs; the others were there)"
    return (
        f"{images} of each corruption{views}, seed{'s' * several} {listed(asked['seeds'], ', ')}{part}"
        f"{', ± is the 95 % interval of the mean' if several else ''}; {told['network']}{given}, preset "
        f"{asked['preset']}, {stream['pixels']} pixels ({told['frost']} frost), {told['runtime']['precision']}, torch "
        f"{told['versions']['torch']}, {told['hardware']}. It took {cost['seconds']:.0f} s by the clock"
        f"{cpu}{ran}."
    )


def listed(values: Any, between: str = ",") -> str:
    """Return what was asked for as the command takes it: one word, or several with something between them.

    Example:
        >>> listed((0, 0.5, 32.0)), listed(["bn", "tent"], ", "), listed(2000), listed(None)
        ('0,0.5,32', 'bn, tent', '2000', 'all')
    """
    if isinstance(values, list | tuple):
        return between.join(map(listed, values))
    return "all" if values is None else f"{values:g}" if isinstance(values, float) else str(values)

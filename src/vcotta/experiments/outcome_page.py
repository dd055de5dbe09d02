"""The results of an experiment as a Markdown page: the command, the tables, the settings and the figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vcotta.experiments.benchmarks import find_benchmark
from vcotta.experiments.outcome import by_corruption, read_rows, table
from vcotta.experiments.paper.experiments import EXPERIMENTS
from vcotta.experiments.pictures import CAPTIONS, INTERVALS, PAPER_MARKS

__all__ = ["listed", "outcome_page", "outcome_section"]


def outcome_page(results: Mapping[str, Any]) -> str:
    """Return the whole page from the contents of ``outcome.json`` and the path of the figure, relative to the page."""
    experiment = EXPERIMENTS[results["experiment"]]
    where = "Not in the paper." if experiment.where == "ours" else f"In the paper: {experiment.where}."
    return f"# {experiment.name}\n\n{experiment.title} {where}\n\n{outcome_section(results, 'picture.png')}"


def outcome_section(results: Mapping[str, Any], picture: str) -> str:
    """Return the command, the tables, the settings and the figure, without a heading; see `outcome_page`."""
    experiment, chosen, rows = EXPERIMENTS[results["experiment"]], results["asked"], read_rows(results["rows"])
    parts = [f"```console\n$ {_command(results)}\n```", table(experiment, rows).markdown().rstrip()]
    if experiment.by_corruption is not None:
        parts.append(by_corruption(experiment, chosen["dataset"], rows).markdown().rstrip())
    caption = [CAPTIONS.get(experiment.picture, "")]
    if len(chosen["seeds"]) > 1:
        caption.append(INTERVALS.get(experiment.picture, ""))
    if experiment.picture in PAPER_MARKS and any(row.paper for row in rows):
        caption.append(f"{PAPER_MARKS[experiment.picture]} are the paper's values.")
    parts += [_settings(results), f"![{experiment.name}: {experiment.title}]({picture})"]
    return "\n\n".join(filter(None, [*parts, " ".join(filter(None, caption))])) + "\n"


def _command(results: Mapping[str, Any]) -> str:
    """The command that gives these results; files of networks have placeholders for their names."""
    chosen = results["asked"]
    words = ["vcotta", "reproduce", results["experiment"], "--dataset", chosen["dataset"]]
    words += ["--scale", "quick" if chosen["quick"] else "full", "--preset", chosen["preset"]]
    words += ["--seeds", listed(chosen["seeds"])]
    for option in ("methods", "values", "limit"):
        if chosen[option] is not None:
            words += [f"--{option}", listed(chosen[option])]
    if results["network"] != find_benchmark(chosen["dataset"]).network:
        words += ["--model", results["network"]]
    if source := results.get("source"):
        words += ["--source", "folder:SOURCE" if source.startswith("folder:") else source]
    for kind, option in (("source", "--weights"), ("warmed", "--warmed")):
        if kind in results["networks"]:
            words += [option, f"{kind.upper()}.safetensors"]
    return " ".join(words)


def _settings(results: Mapping[str, Any]) -> str:
    """A sentence about data, seeds, network and machine, and one about the time."""
    stream, cost, chosen = results["stream"], results["cost"], results["asked"]
    images = f"{stream['images_per_domain']} images" if stream.get("images_per_domain") else "All images"
    several = len(chosen["seeds"]) > 1
    part = "".join(f", only the {kind} {listed(chosen[kind], ', ')}" for kind in ("methods", "values") if chosen[kind])
    few = chosen["views"] is not None and results["experiment"] != "augmentations"  # whose rows name their views
    views = f", at most {chosen['views']} views" if few else ""
    given = "".join(f", {kind} network {digest[:12]}" for kind, digest in results["networks"].items())
    on_cpu = results["runtime"]["device"] == "cpu" and "cpu_seconds" in cost
    cpu = f" and {cost['cpu_seconds']:.0f} s of CPU" if on_cpu else ""
    ran = "" if cost["ran"] == cost["cells"] else f" ({cost['ran']} of {cost['cells']} runs; the others were there)"
    frost = stream.get("frost") or results.get("frost")  # earlier versions wrote it beside the stream
    pixels = f"{stream['pixels']} pixels ({frost} frost)" if frost else f"{stream['pixels']} pixels"
    return (
        f"{images} of each corruption{views}, seed{'s' * several} {listed(chosen['seeds'], ', ')}{part}"
        f"{', ± is the 95 % interval of the mean' if several else ''}; {results['network']}{given}, preset "
        f"{chosen['preset']}, {pixels}, {results['runtime']['precision']}, torch {results['versions']['torch']}, "
        f"{results['hardware']}. It took {cost['seconds']:.0f} s by the clock{cpu}{ran}."
    )


def listed(values: Any, between: str = ",") -> str:
    """Return an option's value, or several with something between them, as the command line takes them.

    Example:
        >>> listed((0, 0.5, 32.0)), listed(["bn", "tent"], ", "), listed(2000), listed(None)
        ('0,0.5,32', 'bn, tent', '2000', 'all')
    """
    if isinstance(values, list | tuple):
        return between.join(map(listed, values))
    return "all" if values is None else f"{values:g}" if isinstance(values, float) else str(values)

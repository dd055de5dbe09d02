"""The sentences on a fleet under load, and the table of throughput."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from studies.files import read_result
from studies.markdown import table


def fleet_text() -> str:
    """Return what was sent, what was answered, and how evenly streams were served."""
    found = read_result("fleet", "fleet.json")
    lost, resident = found["acknowledged_steps_lost_by_the_kill"], found["resident_mib"]
    most, least = found["images_of_the_busiest_stream"], found["images_of_the_least_busy_stream"]
    refused = sum(count for status, count in found["by_status"].items() if status not in ("200", "429"))
    busy = found["by_status"].get("429", 0)
    share = 1 - found["states_in_memory_at_the_end"] / found["streams"]
    rows = [
        ("Requests", f"{found['requests']}"),
        ("valid ones answered", f"{found['by_status']['200']}"),
        ("malformed or forbidden ones refused, as they must be", f"{refused}"),
        ("asked to come back (429)", f"{busy}"),
        ("server errors (5xx)", f"{found['server_errors']}"),
        ("wrong answers and refusals", f"{found['wrong_answers']}"),
        (
            "answers compared, digit for digit, with those of the stream alone",
            f"{found['answers_compared']} of {found['streams_compared']} streams",
        ),
        ("Images a second, all streams", f"{found['images_a_second']:.0f}"),
        ("Images of the busiest and the least busy stream, before the kill", f"{most[0]} and {least[0]}"),
        ("the same after the restart", f"{most[1]} and {least[1]}"),
        (
            "Seconds to an answer, median and 99th percentile",
            f"{found['seconds_p50']:.1f} and {found['seconds_p99']:.1f}",
        ),
        ("Size of a state, KiB", f"{found['state_kib']}"),
        ("States in memory at the end", f"{found['states_in_memory_at_the_end']} ({share:.0%} are on the disk)"),
        ("States put to disk, loaded or made", f"{found['states_put_to_disk']}, {found['states_loaded']}"),
        (
            "Resident memory of the server, MiB: start, most, end",
            f"{resident['start']}, {resident['max']}, {resident['end']}",
        ),
        (
            "Acknowledged steps lost by SIGKILL: of all, most of one stream",
            f"{lost['all']} of {lost['of']}, {lost['most']}",
        ),
        ("Failures in the server's log", f"{found['failures_in_the_log']}"),
        ("Seconds to start anew with all states", f"{found['seconds_to_start'][1]:.1f}"),
    ]
    cpu = found["cpu_share"]
    about = (
        f"{found['streams']} streams for {found['minutes']:g} minutes, {found['images_a_request']} digits a request, "
        f"VCoTTA with eight views, {found['memory_mib']} MiB for states, a checkpoint every "
        f"{found['checkpoint_seconds']:g} s; {found['machine']}, which used {cpu['server_and_clients']:.0%} of its CPU "
        f"time, other processes {cpu['others']:.0%}; {found['runs']} run; torch {found['versions']['torch']} "
        "(`studies/fleet/run.py`)."
    )
    return f"{table(['', ''], rows)}\n\n{about}"


def throughput_text() -> str:
    """Return how many images a server adapts to in a second, by the number of streams and what is trained."""
    found = read_result("fleet", "throughput.json")
    rows = [
        (
            row["streams"],
            f"`{row['trains']}`",
            f"{row['images_a_second']:.0f}",
            f"{row['cpu_ms_an_image']:.1f}",
            f"{row['seconds_p50']:.2f}",
            f"{row['seconds_p99']:.2f}",
            f"{row['state_bytes'] / 1024:.0f}",
            row["states_in_memory"],
            row["states_loaded"],
            "" if row["merged"] is None else f"{row['merged']} in {row['seconds_to_merge']:.1f} s",
        )
        for row in found["rows"]
    ]
    headings = (
        "streams",
        "`trains`",
        "images / s",
        "CPU ms an image",
        "p50, s",
        "p99, s",
        "KiB a state",
        "states in memory",
        "loads",
        "merged",
    )
    before, after = found["load_average"]
    about = (
        f"{found['images_a_request']} digits a request, VCoTTA with eight views, one torch thread, "
        f"{found['memory_mib']} MiB for states, in one process without HTTP; {found['machine']}, load average "
        f"{before:g} before and {after:g} after, as others used the machine; {found['minutes']:g} minutes, "
        f"{found['runs']} run; torch {found['versions']['torch']} (`studies/fleet/run_throughput.py`)."
    )
    return f"{table(headings, rows, left=2)}\n\n{about}"


def replicas_text() -> str:
    """Return what a killed replica's streams lost, by how often states are saved."""
    found = read_result("fleet", "replicas.json")
    headings = ["Checkpoints", *(_checkpoints(row["checkpoint_seconds"]) for row in found["rows"])]
    lines: dict[str, Callable[[dict[str, Any]], str]] = {
        "Kills, of a replica with so many streams": lambda row: (
            f"{len(row['kills'])}, {_range(each['streams'] for each in row['kills'])} of {found['streams']}"
        ),
        "Requests answered: before the first, after": lambda row: (
            f"{row['before'].get('200', 0)}, {row['after'].get('200', 0)}"
        ),
        "refused with 503: before the first, after": lambda row: (
            f"{row['before'].get('503', 0)}, {row['after'].get('503', 0)}"
        ),
        "Acknowledged steps lost: of all, most of one stream by one kill": lambda row: (
            f"{row['acknowledged_steps_lost']} of {row['acknowledged_steps']}, "
            f"{max(each['most_of_one_stream'] for each in row['kills'])}"
        ),
        "Lost although called saved, of another replica, other errors": lambda row: f"{row['wrong_answers']}",
        "Seconds until every stream was answered again": lambda row: _range(
            round(each["seconds_until_all_are_answered"]) for each in row["kills"]
        ),
        "Seconds to an answer before the first kill, median and 99th percentile": lambda row: (
            f"{row['seconds_p50']:.2f} and {row['seconds_p99']:.2f}"
        ),
    }
    rows = [(name, *(show(row) for row in found["rows"])) for name, show in lines.items()]
    versions = found["versions"]
    about = (
        f"Two replicas, {found['streams']} streams, {found['images_a_request']} digits a request; {found['machine']}, "
        f"load average {found['load_average_before']:g} before it began, as others used the machine; {found['runs']} "
        f"run; torch {versions['torch']}, Ray {versions['ray']} (`studies/fleet/run_replicas.py`)."
    )
    return f"{table(headings, rows)}\n\n{about}"


def _range(numbers: Iterable[int]) -> str:
    found = list(numbers)
    least, most = min(found), max(found)
    return f"{least}" if least == most else f"{least} to {most}"


def _checkpoints(seconds: float) -> str:
    return f"every {seconds:g} s" if seconds else "before each answer"


def shared_pass_text() -> str:
    """Return what passes for several streams would save, and where they would change an answer."""
    found = read_result("fleet", "shared_pass.json")
    alone, shared, step = (found[name] for name in ("pass_ms", "shared_pass_ms", "step_ms"))
    view, streams, each = found["ms_an_image_of_views"], found["streams"], found["images"]
    counts = sorted({row["images"] for row in found["rows"]})
    networks = dict.fromkeys(row["network"] for row in found["rows"])
    rows = [
        (
            f"`{network}`",
            *(
                "same" if row["same_bytes"] else f"{row['largest_change']:.0e}"
                for row in found["rows"]
                if row["network"] == network
            ),
        )
        for network in networks
    ]
    headings = ("images of a stream", *map(str, counts))
    return (
        f"A stream's step on {each} images takes {step:.0f} ms of CPU time with `trains=norm`, of which the source's "
        f"pass takes {alone:.2f} ms, or {shared:.2f} ms a stream if {streams} streams share it: that would save "
        f"{(alone - shared) / step:.1%} of the step. A pass over the eight views of a stream takes {view['alone']:.3f} "
        f"ms an image, over those of {streams} streams {view['shared']:.3f} ms. Largest change of an output if "
        f"{streams} streams share a pass:\n\n{table(headings, rows)}\n\n"
        f"Median of {found['runs']}, {found['machine']}, one thread, random weights in the table; torch "
        f"{found['versions']['torch']} (`studies/fleet/run_shared_pass.py`)."
    )


TABLES: dict[str, Callable[[], str]] = {
    "fleet": fleet_text,
    "fleet_throughput": throughput_text,
    "fleet_shared_pass": shared_pass_text,
    "fleet_replicas": replicas_text,
}

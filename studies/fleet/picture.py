"""The picture of a server's throughput against the number of its streams.

python -m studies.fleet.picture
"""

from __future__ import annotations

from pathlib import Path

from studies.files import read_result, results_of
from vcotta.report.canvas import canvas

PICTURE = results_of("fleet") / "throughput.png"


def draw_throughput(path: Path = PICTURE) -> None:
    """Draw images a second of CPU time, and dashed those by the clock, by the number of streams and what is trained."""
    rows = read_result("fleet", "throughput.json")["rows"]
    with canvas(path, 6.4, 3.2) as figure:
        axes = figure.axes[0]
        for trains, colour in (("all", "#0072B2"), ("norm", "#D55E00")):
            chosen = [row for row in rows if row["trains"] == trains]
            streams = [row["streams"] for row in chosen]
            label = f"{trains}, {chosen[0]['state_bytes'] / 1024:.0f} KiB a stream"
            axes.plot(streams, [1000 / row["cpu_ms_an_image"] for row in chosen], color=colour, marker="o", label=label)
            clock = [row["images_a_second"] for row in chosen]
            axes.plot(streams, clock, color=colour, linestyle="--", label=f"{trains}, by the clock")
        axes.set_xscale("log")
        axes.set_xticks(streams, [str(count) for count in streams])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("streams")
        axes.set_ylabel("images a CPU second")
        figure.legend(axes)


if __name__ == "__main__":
    draw_throughput()

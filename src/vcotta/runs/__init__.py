"""Runs: what a run is (`RunSpec`), an adapter along a stream (`run_stream`), its files and scores (`Run`)."""

from vcotta.runs import metrics
from vcotta.runs.run import Run
from vcotta.runs.runner import run_stream
from vcotta.runs.spec import RunSpec

__all__ = ["Run", "RunSpec", "metrics", "run_stream"]

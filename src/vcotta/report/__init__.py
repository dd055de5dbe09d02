"""Tables, figures and one page, drawn from finished runs and nothing else."""

from vcotta.report.figures import alpha_along_stream, error_by_corruption, priors_along_stream, reliability
from vcotta.report.find import find_runs
from vcotta.report.tables import Grid, by_corruption, comparison, rows
from vcotta.report.write import write_report

__all__ = [
    "Grid",
    "alpha_along_stream",
    "by_corruption",
    "comparison",
    "error_by_corruption",
    "find_runs",
    "priors_along_stream",
    "reliability",
    "rows",
    "write_report",
]

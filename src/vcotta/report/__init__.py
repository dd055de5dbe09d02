"""Tables and figures, drawn from finished runs and nothing else."""

from vcotta.report.figures import alpha_along_stream, error_by_corruption, reliability
from vcotta.report.tables import Grid, by_corruption, comparison, rows

__all__ = ["Grid", "alpha_along_stream", "by_corruption", "comparison", "error_by_corruption", "reliability", "rows"]

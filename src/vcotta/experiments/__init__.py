"""Whole experiments: `run_spec` runs a `RunSpec`; benchmarks, the demo, the search for settings, the paper's tables."""

"""Whole experiments: a data set with its network and settings, the demo, and the search for settings."""

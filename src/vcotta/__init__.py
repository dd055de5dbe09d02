"""Continual test-time adaptation: VCoTTA and its rivals."""

from vcotta._version import __version__

__all__ = ["__version__"]

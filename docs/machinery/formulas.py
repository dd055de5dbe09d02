"""Formulas of docstrings as MathML, which browsers show without a script."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

FORMULA = re.compile(r":(display-)?math:<code>(.*?)</code>", re.DOTALL)


def with_formulas(page: str) -> str:
    """Return a page's HTML with MathML in place of :math:`LaTeX`."""
    return FORMULA.sub(lambda found: _mathml(found[2], "block" if found[1] else "inline"), page)


def _mathml(latex: str, display: str) -> str:
    text = html.unescape(latex).replace(r"\;", r"\ ")
    return re.sub(r"\s*\n\s*", "", convert(" ".join(text.split()), display=display))

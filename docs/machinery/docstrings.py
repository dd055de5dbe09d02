"""Docstrings as mkdocstrings wants them: our ``Example:`` sections and Sphinx's formulas, in its own form."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

MATH = re.compile(r"^( *)\.\. math::[ \n]*(.+?)(?=\n *\n|\Z)", re.MULTILINE | re.DOTALL)


class PlainDocstrings(Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value)


def rewritten(text: str) -> str:
    r"""Return a docstring with its examples as a section and its formulas as code, which Markdown leaves alone.

    Example:
        >>> rewritten("With\n\n.. math:: x_1")
        'With\n\n:display-math:`x_1`'
    """
    text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)
    return MATH.sub(lambda found: f"{found[1]}:display-math:`{' '.join(found[2].split())}`", text)

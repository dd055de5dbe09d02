"""Writing HTML and SVG so that nothing from a run's files can become markup: text is escaped unless it is `Html`."""

from __future__ import annotations

import html
import math

__all__ = ["Html", "join", "tag"]

VOID = frozenset({"br", "img", "link", "meta"})


class Html(str):
    """Text that is markup already, made by `tag` and `join` alone."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: object) -> Html:
    """Return an element.

    Args:
        name: Name of the element.
        *children: What stands in it: `Html` as it is, other text escaped, None left out.
        **attributes: ``stroke_width`` stands for ``stroke-width``, ``class_`` for ``class``; None and False are left
            out, True is written without a value, floats with two decimals.

    Example:
        >>> print(tag("p", "a < b & ", tag("b", "bold"), class_="note", hidden=True))
        <p class="note" hidden>a &lt; b &amp; <b>bold</b></p>
    """
    written = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def join(*parts: str | None) -> Html:
    r"""Return parts one after another, escaped unless they are `Html`.

    Example:
        >>> print(join("<script>", tag("br")))
        &lt;script&gt;<br>
    """
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts if part is not None))


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    if isinstance(value, float):
        value = f"{value:.2f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"
    return f' {name}="{html.escape(str(value))}"'

"""HTML pages from Jinja templates: values are escaped, scripts are allowed by their hash, nothing else is loaded."""

from __future__ import annotations

import base64
import hashlib
from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["page_policy", "render"]


def render(
    template: str, *, package: str = "vcotta.report", script: str = "", connect: bool = False, **values: object
) -> str:
    """Return a page from a template that extends ``base.html.j2``.

    Args:
        template: Name of the template.
        package: Package whose folder ``templates`` is searched before this package's.
        script: JavaScript file among the templates to put into the page; "" for none.
        connect: Whether the script may send requests to the page's own server.
        **values: Variables of the template; strings are escaped unless they are ``markupsafe.Markup``.
    """
    pages = _environment(package)
    code = pages.get_template(script).render() if script else ""
    frame = {"script": Markup(code), "policy": page_policy(code, connect=connect)}
    return pages.get_template(template).render(values | frame)


def page_policy(script: str, *, connect: bool = False) -> str:
    """Return a Content-Security-Policy that lets one inline script run and loads nothing from other addresses.

    Example:
        >>> page_policy("")
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    scripts = f"; script-src 'sha256-{digest}'" if script else ""
    server = "; connect-src 'self'" if connect else ""
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:{scripts}{server}"


@cache
def _environment(package: str) -> Environment:
    loaders = [PackageLoader(name) for name in dict.fromkeys((package, "vcotta.report"))]
    return Environment(
        loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )

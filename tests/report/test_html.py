from __future__ import annotations

import base64
import hashlib

import pytest
from jinja2 import UndefinedError

from vcotta.report.html import page_policy, render


def test_a_value_that_the_template_misses_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("report.html.j2")


def test_the_policy_allows_the_script_of_the_page_and_no_other() -> None:
    digest = base64.b64encode(hashlib.sha256(b"run()").digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page_policy("run()")
    assert "script-src" not in page_policy("")
    assert page_policy("").startswith("default-src 'none'")
    assert "connect-src 'self'" in page_policy("run()", connect=True)

from __future__ import annotations

import pytest

from vcotta._util.plain_math import plain_docstring, plain_formula


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\tfrac12 \mathrm{CE}(\bar p' \to q)", "1/2 CE(p\u0304' -> q)"),
        (r"\frac{1 - q}{P + 1 - q}", "(1 - q) / (P + 1 - q)"),
        (r"\frac{1}{|S|}\sum_{i \in S} e^{-a_i}", "1/|S| Σ_(i ∈ S) e^(-a_i)"),
        (r"\sqrt{\sigma^2}, \quad q_{t-1}", "√(σ²), q_(t-1)"),
        (r"\begin{cases} 1 & u \ge t \\ 0 & u < t \end{cases}", "1 if u >= t\n0 if u < t"),
    ],
)
def test_a_formula_is_text(latex, text) -> None:
    assert "\n".join(" ".join(line.split()) for line in plain_formula(latex).split("\n")) == text


def test_a_block_is_indented_and_its_paragraphs_stay() -> None:
    text = "It minimises\n\n.. math:: L = \\lambda\n    + 1\n\nwith ``lr``."
    assert plain_docstring(text) == "It minimises\n\n    L = λ + 1\n\nwith `lr`."

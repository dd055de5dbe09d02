from __future__ import annotations

from inspect import getdoc

import pytest

from vcotta._util.plain_math import plain_docstring, plain_formula
from vcotta.methods import find_method


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\tfrac12 \mathrm{CE}(\bar p' \to q)", "1/2 CE(p\u0304' -> q)"),
        (r"\frac{1 - q}{P + 1 - q}", "(1 - q) / (P + 1 - q)"),
        (r"\frac{1}{|S|}\sum_{i \in S} e^{-a_i}", "1/|S| Σ_(i ∈ S) e^(-a_i)"),
        (r"\sqrt{\sigma^2}, \quad q_{t-1}", "√(σ²), q_(t-1)"),
        (r"\begin{cases} 1 & u \ge t \\ 0 & u < t \end{cases}", "1 if u >= t; 0 if u < t"),
        (r"e^{z_c} \frac{e^{-a} + 1}{2} x", "e^(z_c) ((e^(-a) + 1) / 2) x"),
        (r"\frac12 \|a - b\|^2 + \frac{|a - b|}{c}", "1/2 ‖a - b‖² + |a - b| / c"),
    ],
)
def test_a_formula_is_text(latex, text) -> None:
    assert "\n".join(" ".join(line.split()) for line in plain_formula(latex).split("\n")) == text


def test_a_block_is_indented_and_its_paragraphs_stay() -> None:
    text = "It minimises\n\n.. math:: L = \\lambda\n    + 1\n\nwith ``lr``."
    assert plain_docstring(text) == "It minimises\n\n    L = λ + 1\n\nwith `lr`."


@pytest.mark.parametrize(
    ("method", "formula"),
    [
        (
            "come",
            "b_c = e^(z_c) / (Σ_j e^(z_j) + C), u = C / (Σ_j e^(z_j) + C), L = -1/B Σ_i (u log u + Σ_c b_c log b_c)_i",
        ),
        ("surgeon", "I_l = (‖g_l‖_2 / √(N_l)) log((Σ_k m_k) / m_l)"),
        (
            "vida",
            "u = 1/10 mean_n,c var_v z_vnc, (s_1, s_2) = (1 - u, 1 + u) if u >= θ; (1 + u, 1 - u) if u < θ.",
        ),
        ("petal", "CE(p\u0304 -> p) + λ/2 Σ_j (θ_j - μ_j)² / (σ_j² + 10^-6)"),
        ("rotta", "1/n Σ_j w_j CE(p\u0304_j -> p_j), w_j = e^(-a_j / N) / (1 + e^(-a_j / N))"),
    ],
)
def test_the_formula_of_a_method_is_printed_as_it_is_meant(method, formula) -> None:
    assert formula in " ".join(plain_docstring(getdoc(find_method(method)) or "").split())

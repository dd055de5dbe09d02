"""Formulas of docstrings as text for a terminal: LaTeX to Unicode."""

from __future__ import annotations

import re
import textwrap

__all__ = ["plain_docstring", "plain_formula"]

_BLOCK = re.compile(r"^( *)\.\. math::[ \n]*(.+?)(?=\n *\n|\Z)", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r":math:`([^`]*)`")
_CASES = re.compile(r"\\begin\{cases\}(.*?)\\end\{cases\}", re.DOTALL)
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\s+|.", re.DOTALL)
_NAMED = (
    "alpha α beta β gamma γ epsilon ε lambda λ mu μ eta η pi π rho ρ sigma σ tau τ theta θ xi ξ omega ω Lambda Λ "
    "nabla ∇ sum Σ top T times × cdot · odot ⊙ in ∈ leftarrow <- to -> ge >= le <= ne ≠ propto ∝ "
    "| ‖ lVert ‖ rVert ‖ langle ⟨ rangle ⟩"
)
_SPACES = {",": " ", " ": " ", "quad": "  ", "qquad": "  ", "\\": "\n"}
_SYMBOLS = {
    **dict(re.findall(r"(\S+) (\S+)", _NAMED)),
    **_SPACES,
    **dict.fromkeys(("left", "right", "big", "Big", "!"), ""),
}
_ACCENTS = {"bar": "\N{COMBINING MACRON}", "tilde": "\N{COMBINING TILDE}", "hat": "\N{COMBINING CIRCUMFLEX ACCENT}"}
_TEXT = ("mathrm", "operatorname", "text")
_NAME = re.compile(r"[\w.,'*|‖²\u0302-\u0304]+|-?\d+")
_IN_BRACKETS = re.compile(r"\([^()]*\)|‖[^‖]*‖|\|[^|]*\|")
_AFTER_A_TERM = re.compile(
    r"[})\]=+\-,.;<>]|\\(?:quad|qquad|text|right|\\|cdot|times|odot|in|leftarrow|to|ge|le|ne|propto)"
)
"""What follows a whole term, and is no further factor of it."""


def plain_docstring(text: str) -> str:
    r"""Return a docstring without its markup, formulas as text.

    Example:
        >>> plain_docstring(r"With :math:`\alpha p_0` as in ``x``")
        'With α p_0 as in `x`'
    """
    text = _INLINE.sub(lambda found: " ".join(plain_formula(found[1]).split()), _BLOCK.sub(_block, text))
    return text.replace("``", "`")


def plain_formula(latex: str) -> str:
    r"""Return a formula as text.

    Example:
        >>> print(plain_formula(r"\frac{1}{B}\sum_{i \in S} e^{E_0 - H_i} \bar p_i^2"))
        1/B Σ_(i ∈ S) e^(E_0 - H_i) p̄_i²
    """
    latex = _CASES.sub(lambda found: found[1].replace("&", " if ").replace(r"\\", ";"), latex).replace("&", "")
    tokens = _TOKEN.findall(latex)
    return re.sub(r" +([,.;])", r"\1", _sequence(tokens)).strip()


def _block(found: re.Match[str]) -> str:
    lines = [" ".join(line.split()) for line in plain_formula(found[2]).split("\n")]
    indent = found[1] + 4 * " "
    return "\n".join(
        textwrap.fill(line, 110, initial_indent=indent, subsequent_indent=indent + "    ") for line in lines
    )


def _sequence(tokens: list[str]) -> str:
    """Take tokens up to the end of their group."""
    parts: list[str] = []
    while tokens and (token := tokens.pop(0)) != "}":
        tokens.insert(0, token)
        parts.append(_one(tokens))
    return "".join(parts)


def _one(tokens: list[str]) -> str:
    """Take a token with its arguments."""
    token = tokens.pop(0)
    if token == "{":
        return _sequence(tokens)
    if token in ("_", "^"):
        return _script(token, _argument(tokens))
    if token.isspace():
        return " "
    if not token.startswith("\\"):
        return token
    name = token[1:]
    if name in ("frac", "tfrac"):
        return _fraction(tokens)
    if name == "log" and _next(tokens) in ("\\frac", "\\tfrac"):
        while tokens.pop(0).isspace():
            pass
        return f"log({_quotient(tokens)})"
    if name == "sqrt":
        return f"√({_argument(tokens)})"
    if name in _ACCENTS:
        return _argument(tokens) + _ACCENTS[name]
    return _argument(tokens) if name in _TEXT else _SYMBOLS.get(name, name)


def _argument(tokens: list[str]) -> str:
    while tokens and tokens[0].isspace():
        tokens.pop(0)
    return _one(tokens) if tokens else ""


def _next(tokens: list[str]) -> str:
    """The next token that is no space, if there is one."""
    return next((token for token in tokens if not token.isspace() and token != "\\,"), "}")


def _fraction(tokens: list[str]) -> str:
    """Take a fraction's arguments; it is in parentheses if a factor after it could seem to be below the line."""
    text = _quotient(tokens)
    if " / " in text and not _AFTER_A_TERM.fullmatch(_next(tokens)):
        text = f"({text})"
    return text + " " * bool(tokens and tokens[0].startswith("\\"))


def _quotient(tokens: list[str]) -> str:
    above, below = _argument(tokens), _argument(tokens)
    between = "/" if _NAME.fullmatch(above) and _NAME.fullmatch(below) else " / "
    return between.join(text if _is_factor(text) else f"({text})" for text in (above, below))


def _is_factor(text: str) -> bool:
    """Whether it is no sum, product or quotient, outside of brackets."""
    while (rest := _IN_BRACKETS.sub("", text)) != text:
        text = rest
    return not re.search(r"[\s+\-/]", text)


def _script(mark: str, text: str) -> str:
    if mark == "^" and text in ("2", "T"):
        return {"2": "²", "T": "ᵀ"}[text]
    return mark + (text if _NAME.fullmatch(text) and "_" not in text else f"({text})")

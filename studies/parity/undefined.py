"""Finds the names that a module uses and nobody defines."""

from __future__ import annotations

import ast
import builtins


def undefined_names(text: str) -> list[str]:
    r"""Return the names that a function of a module reads and neither it nor the module sets.

    Example:
        >>> undefined_names("import os\ndef f(x):\n    y = os.sep + x\n    return z + y")
        ['z']
    """
    tree = ast.parse(text)
    known = set(dir(builtins)) | _bound(tree, inside=False)
    missing: list[str] = []
    for function in _functions(tree):
        nodes = list(ast.walk(function))
        own = _bound(function, inside=True) | {node.arg for node in nodes if isinstance(node, ast.arg)}
        read = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
        missing += [name for name in read if name not in own | known]
    return list(dict.fromkeys(missing))


def _functions(tree: ast.AST) -> list[ast.FunctionDef]:
    """The functions of a module and its classes, without those inside of others."""
    inside = [node for node in ast.iter_child_nodes(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [one for node in inside for one in ([node] if isinstance(node, ast.FunctionDef) else _functions(node))]


def _bound(tree: ast.AST, *, inside: bool) -> set[str]:
    """The names that a module sets outside of its functions, or that a function sets."""
    names: set[str] = set()
    todo = list(ast.iter_child_nodes(tree))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if inside or not isinstance(node, ast.FunctionDef):
            todo += ast.iter_child_nodes(node)
    return names

"""``where``: which nodes a consumer wants, as an expression over their facts.

    hw.kind == 'gpu' and zone == 'a'
    hw.memory >= 16 * 2**30 and tag.pool in ('ads', 'search')

The grammar is Python's own expressions, read with ``ast`` and never evaluated by Python: only comparisons, ``and``,
``or``, ``not``, ``in``, literals, arithmetic over literals, and these names:

    hw.kind hw.model hw.cores hw.quota hw.memory hw.accelerators (device names)   zone host port weight state
    application protocol version group     tag.NAME or tags['NAME'] (the user's own tags)

A fact that a node does not have is None: it equals only None, and every order comparison with it is false, so a node
that says nothing is never picked by accident.
"""

from __future__ import annotations

import ast
import keyword
import operator
import re
from collections.abc import Callable
from typing import Any

from steelyard.errors import ConfigError
from steelyard.setting import near
from steelyard_registry import Node

Predicate = Callable[[Node], bool]
_Value = Callable[[Node], Any]

MAX_LENGTH = 4096

_HARDWARE: dict[str, _Value] = {
    "kind": lambda node: node.hardware.kind,
    "model": lambda node: node.hardware.model,
    "cores": lambda node: node.hardware.cores,
    "quota": lambda node: node.hardware.quota,
    "memory": lambda node: node.hardware.memory_bytes,
    "accelerators": lambda node: node.hardware.accelerators,
}
_FACTS: dict[str, _Value] = {
    "zone": lambda node: node.zone,
    "host": lambda node: node.host,
    "port": lambda node: node.port,
    "weight": lambda node: node.weight,
    "state": lambda node: node.state.value,
    "application": lambda node: node.application,
    "protocol": lambda node: node.protocol,
    "version": lambda node: node.version,
    "group": lambda node: node.group,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, container: item in container,
    ast.NotIn: lambda item, container: item not in container,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


def where(expression: str) -> Predicate:
    """The predicate of an expression. Raises ConfigError that shows the expression and points at the place."""
    if len(expression) > MAX_LENGTH:
        raise ConfigError(f"where: an expression of {len(expression)} characters; at most {MAX_LENGTH}")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"where: cannot read {expression!r}: {_advice(expression) or error}") from None
    try:
        value = _compile(tree.body, expression)
    except RecursionError:
        raise ConfigError("where: an expression nested too deeply") from None

    def predicate(node: Node) -> bool:
        return bool(value(node))

    return predicate


def _advice(expression: str) -> str:
    """What Python's own message about a slip does not say, because it takes this for Python."""
    for name in re.findall(r"\btag\.([A-Za-z_]+)", expression):
        if keyword.iskeyword(name):
            return f"{name!r} is a word of the language; write tags[{name!r}]"
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "''", expression)
    if re.search(r"(?<![=!<>:])=(?!=)", bare):
        return "a comparison is written with two signs: =="
    return ""


def _compile(tree: ast.expr, expression: str) -> _Value:
    match tree:
        case ast.BoolOp(op=joiner, values=values):
            parts = [_compile(part, expression) for part in values]
            if isinstance(joiner, ast.And):
                return lambda node: all(part(node) for part in parts)
            return lambda node: any(part(node) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _compile(operand, expression)
            return lambda node: not inner(node)
        case ast.Compare():
            return _compile_comparison(tree, expression)
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return _compile_name(tree, expression)
        case _:
            literal = _literal(tree, expression)
            return lambda node: literal


def _compile_comparison(tree: ast.Compare, expression: str) -> _Value:
    sides = [_compile(side, expression) for side in (tree.left, *tree.comparators)]
    steps = [(_COMPARE[type(op)], sides[at], sides[at + 1]) for at, op in enumerate(tree.ops)]

    def compare(node: Node) -> bool:
        try:
            return all(check(left(node), right(node)) for check, left, right in steps)
        except TypeError:  # None < 3, 'a' in None: the node lacks the fact, or it is of another kind
            return False

    return compare


def _compile_name(tree: ast.expr, expression: str) -> _Value:
    match tree:
        case ast.Name(id=name) if name in _FACTS:
            return _FACTS[name]
        case ast.Attribute(value=ast.Name(id="hw"), attr=name) if name in _HARDWARE:
            return _HARDWARE[name]
        case ast.Attribute(value=ast.Name(id="tag"), attr=name):
            return lambda node: node.tags.get(name)
        case ast.Subscript(value=ast.Name(id="tags"), slice=ast.Constant(value=str(name))):
            return lambda node: node.tags.get(name)
    names = ", ".join([*sorted(_FACTS), *(f"hw.{name}" for name in sorted(_HARDWARE)), "tag.NAME", "tags['NAME']"])
    names += _quoting(tree)
    raise ConfigError(f"where: {ast.unparse(tree)!r} in {expression!r} is not a fact of a node; there are: {names}")


def _quoting(tree: ast.expr) -> str:
    if not isinstance(tree, ast.Name):
        return ""
    return near(tree.id, _FACTS) or f"; if it is a text, quote it: {tree.id!r}"


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def _literal(tree: ast.expr, expression: str) -> Any:
    match tree:
        case ast.Constant(value=value) if value is None or isinstance(value, str | int | float | bool):
            return value
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            return tuple(_literal(item, expression) for item in items)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)) if 0 <= power <= 64:
            return _number(left, expression) ** power
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](_number(left, expression), _number(right, expression))
    raise ConfigError(
        f"where: {ast.unparse(tree)!r} in {expression!r} is not allowed; "
        "use comparisons, 'and', 'or', 'not', 'in', literals and facts of a node"
    )


def _number(tree: ast.expr, expression: str) -> float:
    value = _literal(tree, expression)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 2**64:
        raise ConfigError(f"where: {ast.unparse(tree)!r} in {expression!r} is not a number within 2**64")
    return value

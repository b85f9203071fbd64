"""Costs of algorithms: formulas in the notation of papers, such as ``2(n-1)a + 2(n-1)/n s b``.

Factors may stand beside each other, and products and quotients are read from left to right:
``s/pieces b`` is ``(s/pieces) b``. A function of one symbol needs no parentheses: ``ceil(lg n)``.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from types import MappingProxyType
from typing import Any

from simcoll.errors import ConfigError, nearest

__all__ = ["CONDITIONS", "SYMBOLS", "AlgorithmCost", "Formula", "parse_cost"]

SYMBOLS: Mapping[str, str] = MappingProxyType(
    {
        "a": "latency of a message",
        "b": "time per byte of a rank's port or, between ranks with direct links, of one link",
        "g": "time per byte reduced",
        "s": "bytes: of the vector, of all blocks together, or of what a rank sends to all",
        "n": "ranks",
        "box": "ranks of a node",
        "nodes": "n/box",
        "b_box": "time per byte of a rank's port inside its node",
        "b_net": "time per byte of a rank's NIC",
        "pieces": "the parameter",
        "channels": "the parameter",
        "radix": "the parameter",
        "dims": "the parameter, the sizes of a torus",
        "links": "links from a rank",
        "rings": "rings along the links of a node",
        "diameter": "links on the way to the farthest rank",
        "bound": "lower bound of the collective on its machine",
    }
)
"""The symbols of formulas with their meanings."""


def _is_power(number: int, base: int) -> bool:
    while number > 1 and number % base == 0:
        number //= base
    return number == 1


Condition = Callable[[Mapping[str, int]], bool]

CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    {
        "n = 2^k": lambda values: _is_power(values["n"], 2),
        "n = 2^j - 2^k": lambda values: "01" not in f"{values['n']:b}",
        "n = radix^k": lambda values: _is_power(values["n"], values["radix"]),
        "channels = box": lambda values: values["channels"] == values["box"],
    }
)
"""Conditions that may follow a formula, and whether they hold. Powers may have another base:
``n = 3^k``.
"""


def _condition(text: str) -> Condition | None:
    power = re.fullmatch(r"n = ([2-9]|[1-9]\d{1,5})\^k", text)
    if power is None:
        return CONDITIONS.get(text)
    base = int(power[1])
    return lambda values: _is_power(values["n"], base)


def _lg(number: Any) -> Any:
    is_power = number == int(number) and _is_power(int(number), 2)
    return int(number).bit_length() - 1 if is_power else Fraction(math.log2(number))


_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "ceil": math.ceil,
        "floor": math.floor,
        "lg": _lg,
        "max": max,
        "min": min,
        "sum": sum,
    }
)
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        ast.Add: lambda x, y: x + y,
        ast.Sub: lambda x, y: x - y,
        ast.Mult: lambda x, y: x * y,
        ast.Div: lambda x, y: Fraction(x) / y,
    }
)
_TOKEN = re.compile(r"\s*(\d+|[^\W\d]\w*|[-+*/(),])")
_SIGNS = frozenset("-+*/(),")
_AT_MOST, _LIMIT = "at most ", "many pieces: "


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula over :data:`SYMBOLS`."""

    text: str
    tree: ast.expr

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols that it names.

        >>> sorted(parse_cost("(n-1)a + (n-1)/n s b").formula.symbols)
        ['a', 'b', 'n', 's']
        """
        return (
            frozenset(node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name))
            & SYMBOLS.keys()
        )

    def value(self, values: Mapping[str, int | Fraction | tuple[int, ...]]) -> Fraction:
        """Its value, exact unless a logarithm is not whole.

        >>> parse_cost("2(n-1)/n s b").formula.value({"n": 4, "s": 100, "b": 3})
        Fraction(450, 1)
        """
        return Fraction(_value(self.tree, values))


@dataclass(frozen=True, slots=True)
class AlgorithmCost:
    """The time that an algorithm takes.

    Attributes
    ----------
    formula
        The time in one piece, or in ``pieces`` if the formula names them; None if only the limit is
        stated.
    conditions
        Those of :data:`CONDITIONS`, under which alone the formula holds.
    limit
        What the time tends to for many bytes in many pieces, when latencies no longer count; None
        if none is stated.
    at_most
        Whether the formulas are upper bounds, which some numbers of ranks attain; otherwise they
        are equal to the time.
    """

    formula: Formula | None
    conditions: tuple[str, ...]
    limit: Formula | None
    at_most: bool

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether the conditions hold for these ranks and parameters."""
        conditions = filter(None, map(_condition, self.conditions))
        return all(condition(values) for condition in conditions)


@cache
def parse_cost(text: str) -> AlgorithmCost:
    """Parse ``at most FORMULA, CONDITION; many pieces: LIMIT``, of which a formula is enough.

    >>> cost = parse_cost("2 lg n a + 2(n-1)/n s b, n = 2^k")
    >>> cost.conditions, cost.holds({"n": 8}), cost.holds({"n": 6})
    (('n = 2^k',), True, False)

    Raises
    ------
    ConfigError
        For anything else; says what is wrong, and names the nearest symbol.
    """
    exact, in_limit, limit = text.removeprefix(_AT_MOST).partition(_LIMIT)
    formula, *conditions = re.split(r", (?=\w+ = )", exact.removesuffix("; "))
    for condition in conditions:
        if _condition(condition) is None:
            raise ConfigError(
                f"cost {text!r}: unknown condition {condition!r}; {nearest(condition, CONDITIONS)}"
            )
    return AlgorithmCost(
        None if in_limit and not formula else _formula(formula, text),
        tuple(conditions),
        _formula(limit, text) if in_limit else None,
        text.startswith(_AT_MOST),
    )


def _formula(formula: str, cost: str) -> Formula:
    try:
        tree = ast.parse(_expression(formula.strip(), cost), mode="eval").body
    except SyntaxError:
        tree = None
    if tree is None or not _is_formula(tree):
        raise ConfigError(
            f"cost {cost!r}: {formula!r} is no formula; expected one such as 2(n-1)a + (n-1)/n s b"
        )
    return Formula(formula, tree)


def _is_formula(node: ast.expr) -> bool:
    match node:
        case ast.Constant():
            return isinstance(node.value, int)
        case ast.Name():
            return node.id in SYMBOLS
        case ast.BinOp():
            return (
                type(node.op) in _OPERATORS and _is_formula(node.left) and _is_formula(node.right)
            )
        case ast.Call(func=ast.Name() as function):
            several = function.id in {"max", "min"}
            return (
                len(node.args) == 1 + several
                and function.id in _FUNCTIONS
                and all(map(_is_formula, node.args))
            )
    return False


def _expression(formula: str, cost: str) -> str:
    """The formula as a Python expression: with signs between factors, and parentheses around
    arguments.
    """
    parts: list[str] = []
    position, previous = 0, ""
    while position < len(formula):
        token = _TOKEN.match(formula, position)
        if token is None:
            raise ConfigError(
                f"cost {cost!r}: unexpected {formula[position:].lstrip()[:1]!r} in {formula!r}"
            )
        position, word = token.end(), token[1]
        is_sign = word in _SIGNS
        if not (is_sign or word.isdecimal() or word in SYMBOLS or word in _FUNCTIONS):
            raise ConfigError(
                f"cost {cost!r}: unknown symbol {word!r}; {nearest(word, [*SYMBOLS, *_FUNCTIONS])}"
            )
        if previous in _FUNCTIONS:
            parts.append(word if word == "(" else f"({word})")
            previous = word if word == "(" else ")"
            continue
        if (
            (not is_sign or word == "(")
            and previous
            and (previous not in _SIGNS or previous == ")")
        ):
            parts.append("*")
        parts.append(word)
        previous = word
    return " ".join(parts)


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return values[node.id]
        case ast.BinOp():
            operand, right, operator = (
                _value(node.left, values),
                _value(node.right, values),
                _OPERATORS[type(node.op)],
            )
            if isinstance(operand, tuple):  # for every dimension
                return tuple(operator(size, right) for size in operand)
            return operator(operand, right)
        case ast.Call(func=ast.Name() as function):
            return _FUNCTIONS[function.id](*(_value(argument, values) for argument in node.args))
    raise TypeError(ast.dump(node))

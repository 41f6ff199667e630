"""Expressions over receipts, as the table of published figures has them: arithmetic, fields, a few functions.

A small part of Python's syntax is read into a tree and walked; nothing is ever handed to the interpreter. `a.b` is a
key of an object, `r` the list of the receipts named in the row and `a`, `b` the first two of them. A field that is not
there raises `KeyError` with its name.
"""

from __future__ import annotations

import ast
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from neuronbench.training.overlay import overlay


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression. Raises `ValueError` for syntax that is none of ours, `KeyError` for what is missing
    in a receipt, `TypeError` and `ArithmeticError` for values that do not go together."""
    return _value(ast.parse(text, mode="eval").body, names)


def _value(node: ast.AST, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value) if isinstance(value, (int, float, str)):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.Attribute(value=of, attr=key):
            return _key(_value(of, names), key)
        case ast.Subscript(value=of, slice=ast.Slice(lower=lower, upper=upper, step=None)):
            ends = [None if end is None else int(_value(end, names)) for end in (lower, upper)]
            return _value(of, names)[slice(*ends)]
        case ast.Subscript(value=of, slice=index):
            return _key(_value(of, names), _value(index, names))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(_value(operand, names))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](_number(_value(left, names)), _number(_value(right, names)))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            return _COMPARISONS[type(op)](_value(left, names), _value(right, names))
        case ast.List(elts=items):
            return [_value(item, names) for item in items]
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_value(one, names) for one in given))
    raise ValueError(f"expected arithmetic over fields, found {ast.unparse(node)!r}")


def _key(of: Any, key: Any) -> Any:
    if isinstance(of, Mapping):
        return of[str(key)]
    if isinstance(of, (list, tuple)) and isinstance(key, int):
        return of[key]
    raise KeyError(str(key))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"expected a number, found {value!r:.40}")
    return value


_ARITHMETIC: Final[dict[type, Callable[[float, float], float]]] = {
    ast.Add: lambda x, y: x + y,
    ast.Sub: lambda x, y: x - y,
    ast.Mult: lambda x, y: x * y,
    ast.Div: lambda x, y: x / y,
}
_COMPARISONS: Final[dict[type, Callable[[Any, Any], bool]]] = {
    ast.Eq: lambda x, y: x == y,
    ast.Gt: lambda x, y: x > y,
    ast.Lt: lambda x, y: x < y,
}

# --------------------------------------------------------------------------------------------------------------------
# functions


def _column(rows: Any, key: str, start: int = 0) -> list[Any]:
    return [row.get(key) for row in rows[start:]]


def _numbers(values: Any) -> list[float]:
    return [_number(value) for value in values]


def _step_rate(run: Any) -> float:
    """The study's rate of training: tokens of a step / median of its timer after the warm-up."""
    return 1e3 * _number(run["tokens_per_optimizer_step"]) / _step_ms(run)


def _step_ms(run: Any) -> float:
    return statistics.median(_numbers(_column(run["loss_trace"], "ms", int(run["warmup_steps_excluded"]))))


def _mfu(run: Any, peak: float | None = None) -> float:
    """Percent of a peak in FLOP/s; by default the one in the receipt."""
    return 100 * _number(run["flops_per_token"]) * _step_rate(run) / (peak or _number(run["peak_bf16_flops"]))


def _rate(point: Any) -> float:
    """The study's throughput of a point: all counted tokens / the whole run."""
    return _number(point["total_output_tokens"]) / _number(point["duration"])


def _tokens(run: Any) -> float:
    return _number(run["steps_recorded"]) * _number(run["tokens_per_optimizer_step"])


def _overlay(first: Any, second: Any) -> Mapping[str, Any]:
    one, other = (
        {int(row["step"]): math.nan if row["loss"] is None else float(row["loss"]) for row in run["loss_trace"]}
        for run in (first, second)
    )
    return overlay(one, other).to_json()


def _ratios(upper: Sequence[float], lower: Sequence[float]) -> list[float]:
    return [x / y for x, y in zip(upper, lower, strict=True)]


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "column": _column,
    "count": len,
    "count_true": lambda values: sum(value is True for value in values),
    "count_given": lambda values: sum(bool(value) for value in values),
    "count_missing": lambda values: sum(value is None for value in values),
    "same": lambda one, other: sum(other.get(key) == value for key, value in one.items()),
    "distinct": lambda values: sorted({round(value, 9) for value in _numbers(values)}),
    "median": lambda values: statistics.median(_numbers(values)),
    "mean": lambda values: math.fsum(_numbers(values)) / len(values),
    "total": lambda values: math.fsum(_numbers(values)),
    "largest": lambda values: max(_numbers(values)),
    "least": lambda values: min(_numbers(values)),
    "spread": lambda values: max(_numbers(values)) / min(_numbers(values)) - 1,
    "largest_gap": lambda upper, lower: max(abs(ratio - 1) for ratio in _ratios(upper, lower)),
    "ratios": _ratios,
    "step_ms": _step_ms,
    "step_rate": _step_rate,
    "mfu": _mfu,
    "rate": _rate,
    "rates": lambda points: [_rate(point) for point in points],
    "tokens": _tokens,
    "overlay": _overlay,
    "word": lambda condition, yes, no: yes if condition else no,
}

"""Judges one request by policies of a template, as IAM would: as much of its rules as these policies use, no more."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Mapping
from typing import Any

PSEUDO = {
    "AWS::Partition": "aws", "AWS::Region": "ap-southeast-2", "AWS::AccountId": "1" * 12,
    "AWS::URLSuffix": "amazonaws.com",
}  # fmt: skip
Statement = Mapping[str, Any]


def settled(value: Any) -> Any:
    """A value of a template as it could be after the deployment: what is not known before is called by its own name."""
    if isinstance(value, list):
        return [settled(each) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((kind, told),) = value.items()
        if kind == "Ref":
            return PSEUDO.get(told, told)
        if kind == "Fn::GetAtt":
            return f"arn:of:{told[0]}" if told[1] == "Arn" else ".".join(told)
        if kind == "Fn::Join":
            return str(told[0]).join(str(settled(each)) for each in told[1])
        if kind.startswith("Fn::"):
            return json.dumps(value)
    return {key: settled(each) for key, each in value.items()}


def allowed(said: Iterable[Statement], action: str, resource: str, /, **context: Any) -> bool:
    """Whether the statements together allow an action on a resource; `context`: condition keys, with `__` for `:`."""
    asked = {key.replace("__", ":"): each for key, each in context.items()}
    hits = [each["Effect"] for each in said if _fits(each, action, resource, asked)]
    return "Allow" in hits and "Deny" not in hits


def _fits(each: Statement, action: str, resource: str, asked: Mapping[str, Any]) -> bool:
    return (
        any(fnmatch.fnmatchcase(action, one) for one in _list(each["Action"]))
        and any(fnmatch.fnmatchcase(resource, one) for one in _list(each["Resource"]))
        and all(
            _holds(operator, key, _list(values), asked)
            for operator, keys in each.get("Condition", {}).items()
            for key, values in keys.items()
        )
    )


def _holds(operator: str, key: str, values: list[str], asked: Mapping[str, Any]) -> bool:
    if operator == "Null":
        return (key not in asked) is (values == ["true"])
    every, _, operator = operator.rpartition(":")
    if key not in asked:
        return every == "ForAllValues" or operator.endswith("IfExists")
    given = _list(asked[key])
    assert every == "ForAllValues" or len(given) == 1, (operator, key)
    return all(any(_one(operator.removesuffix("IfExists"), value, one) for value in values) for one in given)


def _one(operator: str, value: str, given: str) -> bool:
    if operator in ("StringEquals", "Bool"):
        return value == given
    if operator == "StringEqualsIgnoreCase":
        return value.lower() == given.lower()
    assert operator in ("StringLike", "ArnLike"), operator
    return fnmatch.fnmatchcase(given, value)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]

"""cdk-nag's AWS Solutions rules over everything, and the way to explain an exception beside its resource."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import cdk_nag
from aws_cdk import App, Aspects
from constructs import IConstruct


def check(app: App) -> None:
    """Have every resource judged while templates are made; findings are errors of the synthesis."""
    Aspects.of(app).add(cdk_nag.AwsSolutionsChecks(verbose=True))


def explain(
    resource: IConstruct, rule: str, reason: str, *, applies_to: Sequence[str] = (), children: bool = False
) -> None:
    """Accept a finding of a rule on one resource, for a reason that the template then carries.

    `applies_to` limits that to what is granted on resources that match these regular expressions, whole.
    """
    limits = [cdk_nag.RegexAppliesTo(regex=f"/^Resource::{pattern}$/") for pattern in applies_to]
    suppression = cdk_nag.NagPackSuppression(id=f"AwsSolutions-{rule}", reason=reason, applies_to=limits or None)
    cdk_nag.NagSuppressions.add_resource_suppressions(resource, [suppression], children)


def findings(assembly: Path) -> list[str]:
    """Errors that the synthesis left in a folder of templates: `STACK: what is wrong`, none where all is well."""
    found: list[str] = []
    for name, artifact in json.loads((assembly / "manifest.json").read_text(encoding="utf-8"))["artifacts"].items():
        if artifact["type"] != "aws:cloudformation:stack":
            continue
        metadata = dict(artifact.get("metadata", {}))
        beside = artifact.get("properties", {}).get("additionalMetadataFile") or artifact.get("additionalMetadataFile")
        if beside:
            metadata.update(json.loads((assembly / beside).read_text(encoding="utf-8")))
        for path, entries in metadata.items():
            found += [f"{name}: {path}: {entry['data']}" for entry in entries if entry["type"] == "aws:cdk:error"]
    return found

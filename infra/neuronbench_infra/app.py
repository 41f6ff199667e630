"""The application: which stacks there are."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from aws_cdk import App, Environment

from neuronbench_infra import rules
from neuronbench_infra.base import BaseStack
from neuronbench_infra.box import BoxStack
from neuronbench_infra.keys import SettingsError
from neuronbench_infra.settings import Settings, read_settings
from neuronbench_infra.tracking import TrackingStack

FLAGS: Final[Mapping[str, Any]] = {
    "@aws-cdk/aws-iam:minimizePolicies": False,  # statements stay as they are written, with their names
    "@aws-cdk/aws-s3:createDefaultLoggingPolicy": True,
    "@aws-cdk/aws-s3:serverAccessLogsUseBucketPolicy": True,
    "@aws-cdk/aws-ec2:launchTemplateDefaultUserData": True,
    "@aws-cdk/aws-ecs:arnFormatIncludesClusterName": True,
    "@aws-cdk/aws-kms:aliasNameRef": True,
    "@aws-cdk/aws-sns-subscriptions:restrictSqsDescryption": True,
    "@aws-cdk/core:checkSecretUsage": True,
    "@aws-cdk/core:defaultCrossStackReferences": "strong",  # the base cannot lose what boxes still use
    "@aws-cdk/core:enablePartitionLiterals": True,
    "@aws-cdk/core:target-partitions": ["aws"],
    "aws:cdk:enable-path-metadata": False,
    "aws:cdk:version-reporting": False,
    "analyticsReporting": False,
}
"""Behaviour of the CDK that does not hang on which version made a deployment first."""


def make_app(
    context: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None, *, outdir: str | None = None
) -> App:
    """The application for a context and an environment; by default those that the CDK's command gives to its program.

    Raises `neuronbench_infra.keys.SettingsError`.
    """
    environ = os.environ if environ is None else environ
    given = _context(environ.get("CDK_CONTEXT_JSON") or "{}") if context is None else dict(context)
    settings = read_settings(given, environ)
    app = App(context={**FLAGS, **given}, outdir=outdir, analytics_reporting=False)
    add_stacks(app, settings)
    rules.check(app)
    return app


def _context(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        found = error
    if not isinstance(found, dict):
        raise SettingsError(
            f"CDK_CONTEXT_JSON: expected JSON of an object, as the CDK's command sets it, found {found}"
        )
    return found


def add_stacks(app: App, settings: Settings) -> None:
    """A stack for the base, one for each kind of box, one for the tracking server where one is wanted."""
    env = Environment(account=settings.account, region=settings.region)
    name = settings.deployment
    base = BaseStack(app, f"{name}-base", settings=settings, env=env)
    for box in settings.boxes:
        BoxStack(app, f"{name}-{box.kind}", settings=settings, box=box, base=base, env=env)
    if settings.tracking:
        TrackingStack(app, f"{name}-tracking", settings=settings, tracking=settings.tracking, base=base, env=env)

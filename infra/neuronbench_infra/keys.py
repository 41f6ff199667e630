"""What can be set, and reading it: context of the CDK first, then the environment, then the default.

`-c neuronbench:NAME=VALUE` (or `cdk.json`) and `NEURONBENCH_INFRA_NAME=VALUE` say the same. A name that is not known
is an error with the nearest one that is, since a misspelt limit would otherwise be no limit.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

PREFIX: Final = "neuronbench:"
ENV_PREFIX: Final = "NEURONBENCH_INFRA_"
KINDS: Final = ("trn1", "trn2", "inf2")

GENERAL: Final[Mapping[str, str]] = {
    "deployment": "name of the deployment: lower-case letters, digits, hyphens; several can be in one account",
    "account": "account to deploy to; else CDK_DEFAULT_ACCOUNT; else the templates fit any",
    "region": "region to deploy to; else CDK_DEFAULT_REGION; else the templates fit any",
    "kinds": "boxes to make stacks for, comma-separated: trn1, trn2, inf2",
    "zones": "number of availability zones of a new VPC, 2 to 6",
    "azs": "names of the zones instead, comma-separated; with vpc-id those of the subnets, in the same order",
    "vpc-id": "use this VPC instead of making one",
    "subnet-ids": "its subnets for boxes, comma-separated",
    "private-subnet-ids": "its subnets without a way in, for the tracking server's database",
    "egress": "public: boxes have public addresses and no ingress; nat: private subnets behind one NAT gateway",
    "egress-ports": "TCP ports boxes may reach outside, comma-separated",
    "budget-usd": "dollars a month at which all boxes are stopped; none: no budget",
    "budget-mail": "who is told, comma-separated, at most ten",
    "budget-scope": "account: all that the account spends; tag: what has the deployment's tag (activate it first)",
    "idle-stop-min": "minutes of idleness after which a box shuts itself down",
    "max-hours": "hours after which a box is stopped that says nothing about when it expires",
    "on-shutdown": "what becomes of a box that shuts itself down: stop or terminate",
    "tracking-host": "host name of the tracking server; without it there is none",
    "tracking-certificate": "ARN of its certificate in ACM",
    "tracking-cidrs": "networks that may reach it, comma-separated",
    "tracking-open": "true: also networks wider than /8, such as the whole internet",
    "tracking-scheme": "internal or internet-facing",
    "tracking-zone-id": "Route 53 zone in which to name it",
    "tracking-image": "container image of neuronbench_infra/tracking_server; else the CDK makes it (needs docker)",
    "tracking-database": "instance class of PostgreSQL, such as db.t4g.small",
    "tracking-multi-az": "true: a standby database in a second zone",
}
"""Key without prefix → what it means."""

OF_A_KIND: Final[Mapping[str, str]] = {
    "instance-type": "instance type",
    "ami-parameter": "SSM parameter that holds the id of the image",
    "ami": "id of an image instead: a pin",
    "disk-gib": "size of the disk",
    "disk-mib-s": "throughput of the disk, 125 to 1000",
    "disk-iops": "operations a second of the disk, 3000 to 16000",
    "purchase": "on-demand, capacity-block or asg (a group that can scale to zero)",
    "reservation": "id of the Capacity Block's reservation",
    "az": "the one zone to start in; needs azs",
    "max": "with asg: most boxes at a time",
}
"""Key of a box, without prefix and `trn1-`, `trn2-`, `inf2-` → what it means."""


class SettingsError(Exception):
    """A setting cannot be used. The text is complete: what was expected, what was found, what to do."""


def known_keys() -> dict[str, str]:
    """Every key without prefix → what it means."""
    return dict(GENERAL) | {f"{kind}-{key}": f"{kind}: {text}" for kind in KINDS for key, text in OF_A_KIND.items()}


def usage() -> str:
    """What the application is, how it is run, and all its keys."""
    width = max(map(len, [*GENERAL, *(f"KIND-{key}" for key in OF_A_KIND)])) + 2

    def listed(prefix: str, meanings: Mapping[str, str]) -> str:
        return "\n".join(f"  {prefix + key:{width}}{text}" for key, text in meanings.items())

    return f"""python -m neuronbench_infra

The CDK application of neuronbench: what an AWS account needs to run benchmarks on boxes with Trainium and Inferentia.
Without arguments it makes the templates in cdk.out, or says what is wrong with the settings; that needs Node.js and no
account. The CDK's command runs it to deploy (infra/README.md):

  npx aws-cdk@2 deploy neuronbench-base -c {PREFIX}budget-usd=500 -c {PREFIX}budget-mail=you@example.com

Settings are keys of the CDK's context, -c {PREFIX}KEY=VALUE or in cdk.json, or variables, {ENV_PREFIX}KEY=VALUE
with the key in capitals and _ for -. The context goes before the variable, that before the default. A key that does
not exist is an error. The budget has no default: say budget-usd, an amount or none.

{listed("", GENERAL)}

For each kind of box, KIND being {", ".join(KINDS)}:

{listed("KIND-", OF_A_KIND)}

Exit status: 0 templates are made, 1 a setting is wrong or a rule of cdk-nag is broken, 2 wrong usage."""


def env_name(key: str) -> str:
    """The variable that says the same as a key of the context."""
    return ENV_PREFIX + key.upper().replace("-", "_")


class Source:
    """Values by key, as texts without surrounding blanks; an empty text counts as not given."""

    def __init__(self, context: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        keys = known_keys()
        given = {name.removeprefix(PREFIX): value for name, value in context.items() if name.startswith(PREFIX)}
        _check_names(given, keys, PREFIX, lambda key: key)
        for name in context:
            _check_prefix(name, keys)
        variables = {env_name(key): key for key in keys}
        found = [name for name in environ if name.startswith(ENV_PREFIX)]
        _check_names(found, variables, "", lambda key: key)
        self._values = {variables[name]: environ[name] for name in found}
        if environ.get("NEURONBENCH_DEPLOYMENT"):
            self._values.setdefault("deployment", environ["NEURONBENCH_DEPLOYMENT"])
        self._values.update({key: _text(value) for key, value in given.items()})
        self._values = {key: value.strip() for key, value in self._values.items() if value.strip()}

    def text(self, key: str, default: str = "") -> str:
        return self._values.get(key, default)

    def given(self, key: str) -> bool:
        return key in self._values

    def matching(self, key: str, pattern: str, expected: str, default: str = "") -> str:
        """A text of a certain form; empty where it is not given and has no default."""
        value = self.text(key, default)
        if value and not re.fullmatch(pattern, value):
            raise wrong(key, expected, value)
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        value = self.text(key, default)
        if value not in choices:
            raise wrong(key, " or ".join(choices), value)
        return value

    def flag(self, key: str) -> bool:
        return self.choice(key, ("true", "false"), "false") == "true"

    def whole(self, key: str, default: int, least: int, most: int) -> int:
        value = self.text(key, str(default))
        if not re.fullmatch(r"\d{1,9}", value) or not least <= int(value) <= most:
            raise wrong(key, f"a whole number from {least} to {most}", value)
        return int(value)

    def several(self, key: str, pattern: str, expected: str, default: str = "") -> tuple[str, ...]:
        """Comma-separated texts of a certain form, in their order; one given twice is an error."""
        values = tuple(part for part in re.split(r"[,\s]+", self.text(key, default)) if part)
        for value in values:
            if not re.fullmatch(pattern, value):
                raise wrong(key, expected, value)
        if len(set(values)) != len(values):
            raise wrong(key, "each only once", ", ".join(values))
        return values


def wrong(key: str, expected: str, found: str) -> SettingsError:
    """The error of a value; it names both ways of setting it."""
    return SettingsError(
        f"{PREFIX}{key}: expected {expected}, found {found if found == 'nothing' else repr(found)}\n"
        f"  set it with -c {PREFIX}{key}=… or {env_name(key)}=… ({known_keys()[key]})"
    )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


def _check_prefix(name: str, known: Mapping[str, Any]) -> None:
    """Names of others are none of our business, unless they can only be meant for us."""
    head, colon, key = name.rpartition(":")
    close = bool(colon) and bool(difflib.get_close_matches(head, [PREFIX.rstrip(":")], cutoff=0.75))
    if not name.startswith(PREFIX) and key in known and (close or not colon):
        raise SettingsError(f"{name}: there is no such setting; did you mean {PREFIX}{key}?")


def _check_names(found: Any, known: Mapping[str, Any], prefix: str, shown: Any) -> None:
    for name in found:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known are {', '.join(map(shown, known))}"
            raise SettingsError(f"{prefix}{name}: there is no such setting; {hint}")

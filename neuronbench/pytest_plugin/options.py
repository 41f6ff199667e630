"""The options `--nb-...` and the settings they make."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest

from neuronbench import config as configuration
from neuronbench.redaction import redact
from neuronbench.session import PROFILE


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("neuronbench", "benchmarks whose numbers can be quoted")
    add = group.addoption
    add("--nb-grid", metavar="SIZE", help="size of the grids: quick (default), full, or one that the grid files have; "
        "or the name of another grid, such as serving/long")  # fmt: skip
    add("--nb-set", metavar="KEY=V1,V2", action="append", default=[],
        help="values of an axis or a setting, over the grid's: --nb-set concurrency=1,16 (repeatable)")  # fmt: skip
    add("--nb-repeats", metavar="N", type=int, help="repeats of every point; they interleave (default 1)")
    add("--nb-resume", metavar="SESSION", nargs="?", const="last", help="skip points that have a successful receipt "
        "of the same spec and environment, provisional or not, from any earlier session or from SESSION")  # fmt: skip
    add("--nb-stack", metavar="KIND=PATH", action="append", default=[],
        help="interpreter or venv to use for KIND (serving, compile, train, any)")  # fmt: skip
    add("--nb-tracking-uri", metavar="URI", help="MLflow store or server; 'off' for receipts only")
    add("--nb-traces", metavar="N", type=int, help="request traces kept per point in MLflow (default 30)")
    add("--nb-profile", action="store_true", default=False,
        help="have a profile captured where the runtime can; times of such a run are no result")  # fmt: skip
    add("--nb-deadline", metavar="NAME=S", action="append", default=[],
        help="deadline in seconds: boot, point, request, first_token, stop (repeatable)")  # fmt: skip
    add("--nb-endpoint", metavar="URL", help="measure this running server instead of booting one")
    add("--nb-tokenizer", metavar="PATH", help="with --nb-endpoint: tokenizer.json of its model, or the folder it is "
        "in; prompts of an exact length need it where the server has no /tokenize")  # fmt: skip
    add("--nb-port", metavar="PORT", type=int, help="port for served models (default: a free one)")
    add(
        "--nb-strict",
        metavar="LEVEL",
        nargs="?",
        const="invalid",
        choices=("invalid", "provisional"),
        help="fail items whose record a gate made invalid (with =provisional: or provisional); the receipt is the same",
    )
    add("--nb-record-benchmarks", action="store_true", default=False,
        help="leave a receipt of every test that uses pytest-benchmark's fixture, not only of benchmarks")  # fmt: skip
    add("--nb-data-root", metavar="DIR", help="folder of receipts and the MLflow store (default mlruns)")
    parser.addini("neuronbench", "discover bench_*.py files and bench_* functions", type="bool", default=False)


def settings_of(config: pytest.Config) -> configuration.Settings:
    """The settings of this run; a wrong one is a usage error."""
    option = config.option
    try:
        settings = configuration.load(
            config.rootpath,
            overrides={
                "grid": option.nb_grid,
                "repeats": option.nb_repeats,
                "resume": option.nb_resume,
                "tracking_uri": option.nb_tracking_uri,
                "traces": option.nb_traces,
                "endpoint": option.nb_endpoint,
                "tokenizer": os.path.abspath(option.nb_tokenizer) if option.nb_tokenizer else None,
                "port": option.nb_port,
                "data_root": os.path.abspath(option.nb_data_root) if option.nb_data_root else None,
                "overrides": {
                    **{key: tuple(value.split(",")) for key, value in without_secrets("--nb-set", option.nb_set)},
                    **({PROFILE: ("true",)} if option.nb_profile else {}),
                },
                "stacks": dict(pairs("--nb-stack", option.nb_stack)),
                "deadlines": {
                    key: configuration.seconds("--nb-deadline", key, value)
                    for key, value in pairs("--nb-deadline", option.nb_deadline)
                },
            },
        )
    except configuration.ConfigError as error:
        raise pytest.UsageError(str(error)) from error
    if settings.resume not in ("", "last") and not (settings.receipts_dir / settings.resume).is_dir():
        raise pytest.UsageError(
            f"--nb-resume {settings.resume}: no such session in {settings.receipts_dir}; write it last, or "
            "as --nb-resume=last, to resume from all sessions (`neuronbench list` shows them)"
        )
    return settings


def pairs(option: str, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    for text in given:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise pytest.UsageError(f"{option}: expected KEY=VALUE, found {text!r}")
        yield key.strip(), value.strip()


def without_secrets(option: str, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """As `pairs`; a value that looks like a secret is refused without being shown: parameters are in every receipt."""
    for key, value in pairs(option, given):
        if redact(f"{key}={value}") != f"{key}={value}":
            raise pytest.UsageError(
                f"{option} {key}: its value looks as if it had a password or a key in it, and parameters are written "
                "into every receipt; leave it out here, and put it into the environment variable that is read for it"
            )
        yield key, value

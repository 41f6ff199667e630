"""What is asked of a run, checked before anything is sent, and before AWS is asked where it need not be."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from neuronbench.redaction import is_secret_name, redact, redact_argv
from neuronbench_fleet import bundle, checks, runs
from neuronbench_fleet.boxes import checked_name
from neuronbench_fleet.errors import UsageError
from neuronbench_fleet.remote import bootstrap
from neuronbench_fleet.remote.state import After

_OWN: Final = (
    "--after", "--max-hours", "--max-usd", "--follow", "--no-follow", "--replace", "--require-clean", "--setup",
    "--python", "--deployment", "--region", "--profile", "--dry-run",
)  # fmt: skip
"""What is not known here goes to pytest; a misspelt limit must not."""
_WITH_VALUE: Final = frozenset({"-k", "-m", "-p", "-o", "-c", "-W", "-n", "-r"})
"""Options of pytest whose value comes behind a space: it is no path, whatever folder has its name."""
_PUT_IT_THERE: Final = "put it into /etc/neuronbench/environment on the box (aws ssm start-session)"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A run as the command line has it. Raises `UsageError` for what cannot be meant."""

    name: str
    arguments: Sequence[str]
    """For pytest, as given."""
    run_id: str
    after: After
    max_hours: float | None
    max_usd: float | None
    require_clean: bool
    environment: Mapping[str, str]
    setup: str
    python: str

    def __post_init__(self) -> None:
        checked_name(self.name)
        if self.run_id:
            runs.check_run_id(self.run_id)
        checks.positive(max_hours=self.max_hours, max_usd=self.max_usd)
        _check_arguments(self.arguments)
        bootstrap.check_python(self.python)
        runs.check_size(self.arguments, self.environment, self.setup)

    def check_code(self, root: Path, results: Path) -> None:
        """Raise `FleetError` where the project at `root` is not one that can be set up as asked. Asks git."""
        shipped = bundle.shipped(root, results)
        makefile = checks.makefile_of(shipped)
        text = None if makefile is None else (root / makefile).read_text(encoding="utf-8", errors="replace")
        checks.check_setup(self.setup, frozenset(shipped), text)

    def pytest_args(self, root: Path, kind: str) -> list[str]:
        """The folder of benchmarks where no path was named, the kind's marker where nothing was."""
        given = list(self.arguments)
        if not given:
            return ["benchmarks", "-m", kind] if kind else ["benchmarks"]
        values = {place + 1 for place, argument in enumerate(given) if argument in _WITH_VALUE}
        words = [
            argument for place, argument in enumerate(given) if place not in values and argument[:1] not in ("-", "")
        ]
        if any((root / word.split("::")[0]).exists() for word in words):
            return given
        return ["benchmarks", *given]

    def check_same(self, asked: runs.Asked, given: Sequence[str]) -> None:
        """Raise `UsageError` where a run that was asked for already is to go on in another way.

        `given`: options that were given and not left to their defaults, by their parameters' names.
        """
        if self.arguments:
            raise UsageError(
                f"{asked.run} is a run already; it goes on with its own arguments:"
                f" {runs.shown_args(asked.pytest_args)}",
                remedy="give none behind --, or leave --run out for a new run",
            )
        for option in given:
            mine: Any = getattr(self, option)
            its: Any = getattr(asked, option)
            if mine != its:
                shown = {"environment": "--env"}.get(option, f"--{option.replace('_', '-')}")
                raise UsageError(
                    f"{asked.run} is a run already; it goes on with its own {shown}: {its or 'none'}",
                    remedy=f"leave {shown} out; or leave --run out for a new run",
                )


def _check_arguments(given: Sequence[str]) -> None:
    shown = redact_argv(list(given))
    if shown != list(given):
        raise UsageError(
            f"{' '.join(shown)}: it may hold a secret, and what is asked of a run is kept for all to read",
            remedy=_PUT_IT_THERE,
        )
    for argument in given:
        option = argument.split("=")[0]
        meant = difflib.get_close_matches(option, _OWN, n=1, cutoff=0.85) if option[:2] == "--" else []
        if meant:
            raise UsageError(
                f"{option} is neither an option of this command nor one of pytest's: did you mean {meant[0]}?"
            )
        if option == "--nb-data-root":
            raise UsageError("--nb-data-root: a run on a box has a folder of its own, from which receipts are sent")


def environment(given: Sequence[str]) -> dict[str, str]:
    """Variables of `--env NAME=VALUE`. Raises `UsageError`."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name.isidentifier() and equals):
            raise UsageError(f"--env {text!r}: expected NAME=VALUE")
        if is_secret_name(name) or redact(value) != value:
            raise UsageError(
                f"--env {name}: it may be a secret, and what is asked of a run is kept for all to read",
                remedy=_PUT_IT_THERE,
            )
        found[name] = value
    return found

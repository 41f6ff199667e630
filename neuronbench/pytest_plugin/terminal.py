"""What a person at a terminal sees: progress on long steps, a word per point, and the summary."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from neuronbench.model import Outcome, Record
from neuronbench.pytest_plugin.keys import ERRORS, PLUGINS, POINT, SPEC, WARNINGS, session_or_none
from neuronbench.pytest_plugin.not_run import CACHED, cached_line, skipped_lines
from neuronbench.report.lines import fitted
from neuronbench.session import Session

HEARTBEAT_S = 10.0
"""Between two progress lines where the output is not a terminal."""
REDRAW_S = 0.25
"""Between two updates of the line on a terminal."""


class Terminal:
    """Registered as a plugin of its own, so that all that is printed is in one place."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._last = 0.0
        self._open_line = False
        self._started = time.monotonic()

    # -- progress -----------------------------------------------------------------------------------------------------

    def progress(self, text: str) -> None:
        """Show what a long step is doing: rewritten in place on a terminal, a line now and then elsewhere."""
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or self._config.get_verbosity() < 0:
            return
        now = time.monotonic()
        tty = bool(reporter.isatty)
        if now - self._last < (REDRAW_S if tty else HEARTBEAT_S):
            return
        self._last = now
        capture: Any = self._config.pluginmanager.get_plugin("capturemanager")
        if capture is None:
            self._write(reporter, text, tty)
        else:
            with capture.global_and_fixture_disabled():
                self._write(reporter, text, tty)

    def _write(self, reporter: Any, text: str, tty: bool) -> None:
        width = self._config.get_terminal_writer().fullwidth
        if tty:
            if not self._open_line:
                reporter.ensure_newline()
            reporter.rewrite(f"  {fitted(text, width - 3)}", erase=True)
            self._open_line = True
        else:
            reporter.ensure_newline()
            reporter.write_line(f"  [{time.monotonic() - self._started:6.0f} s] {text}")
        reporter.flush()

    def _end_line(self) -> None:
        if self._open_line:
            reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
            reporter.rewrite("", erase=True)
            reporter.write("\r")
            self._open_line = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._last = 0.0
        self._end_line()

    # -- words --------------------------------------------------------------------------------------------------------

    @staticmethod
    def headline(record: Record, keys: Sequence[str]) -> str:
        from neuronbench.report.tables import headline

        return headline(record, keys)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> Any:
        if report.when == "setup" and report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            if reason.startswith(f"Skipped: {CACHED}"):
                return "cached", "c", ("CACHED", {"blue": True})
        if report.when != "call" or not report.passed or hasattr(report, "wasxfail"):
            return None
        said = dict(report.user_properties)
        if "neuronbench.validity" not in said:
            return None
        words = "  ".join(word for word in ("PASSED", str(said.get("neuronbench.headline", ""))) if word)
        if said["neuronbench.validity"] == "invalid":
            return "passed", "I", (words.replace("PASSED", "INVALID"), {"yellow": True})
        return "passed", ".", (words, {"green": True})

    # -- header and summary -------------------------------------------------------------------------------------------

    def pytest_report_header(self) -> list[str]:
        return [
            f"neuronbench: plugin {report.name!r} is left out: {report.error}"
            for report in self._config.stash[PLUGINS].reports.values()
            if not report.ok
        ]

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> list[str]:
        chosen = [item for item in items if POINT in item.stash]
        session = session_or_none(self._config)
        if self._config.stash[ERRORS]:
            return []  # they are about to be said, and alone
        if not items and not self._config.getini("neuronbench") and self._named_benchmarks():
            return [
                "neuronbench: nothing is collected of bench_*.py: that takes `neuronbench = true` under [tool.pytest]"
                " in the project's pyproject.toml"
            ]
        if not chosen or session is None:
            return []
        boots = len({item.stash[SPEC].key for item in chosen if SPEC in item.stash})
        skipped = sum(1 for item in chosen if item.get_closest_marker("skip"))
        backends = list(dict.fromkeys(item.stash[POINT].backend for item in chosen))
        lines = [
            f"neuronbench: {len(chosen)} points ({session.settings.grid} grid, repeats {session.settings.repeats}), "
            f"{boots} {'boot' if boots == 1 else 'boots'}, {skipped} skipped or cached"
        ]
        for name in backends:
            probe = session.probe(name)
            lines.append(f"neuronbench: {name}: " + ("ready" if probe.available else probe.reason))
        return [*lines, *self._config.stash[WARNINGS]]

    def _named_benchmarks(self) -> bool:
        """Whether what pytest was told to look at are files of benchmarks, or a folder with some at its top."""
        named = [self._config.invocation_params.dir / argument.split("::")[0] for argument in self._config.args]
        return any(path.match("bench_*.py") or next(path.glob("bench_*.py"), None) is not None for path in named)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        self._end_line()
        session = session_or_none(self._config)
        if session is None or not session.records:
            return
        from neuronbench.receipts import validities_now
        from neuronbench.report import beside, compiles, tables
        from neuronbench.report.rates import rate_notes

        ran = [record for record in session.records if record.outcome not in (Outcome.SKIPPED, Outcome.CACHED)]
        now = validities_now(ran, session.store)
        writer = self._config.get_terminal_writer()
        width = max(80, writer.fullwidth)
        color = bool(writer.hasmarkup)
        show = terminalreporter.write_line
        by_pytest = terminalreporter.hasopt("skipped") and not terminalreporter.no_summary
        skipped = [] if by_pytest else skipped_lines(session, session.records)
        cached = cached_line(session, session.records)
        if ran or skipped or cached:
            terminalreporter.section("neuronbench")
        for (lane, name, backend), records in tables.by_benchmark(ran).items():
            keys = session.plugins.lanes[lane].headline if lane in session.plugins.lanes else ()
            keys = keys or tuple(dict.fromkeys(key for record in records for key in record.metrics))[:6]
            title = f"{lane}: {name} on {backend}"
            show(tables.render(tables.lane_table(title, records, keys, now), width=width, color=color).rstrip())
            told = (*tables.sample_notes(records, keys), *tables.utilisation_notes(records), *rate_notes(records))
            for line in (*told, *beside.published_lines(records)):
                show(f"  {line}")
        boots = [record for record in ran if record.kind == "boot"]
        if boots:
            show(tables.render(tables.boot_table(boots), width=width, color=color).rstrip())
        made = [record for record in ran if record.kind == "compile"]
        if made:
            show(tables.render(compiles.compile_table(made), width=width, color=color).rstrip())
            show(compiles.compile_line(made))
        if references := compiles.reference_line(ran):
            show(references)
        for title, lines in (
            ("marked by gates", [*tables.gate_lines(ran, now), *tables.later_lines(ran, now)]),
            ("failures by cause", tables.failure_lines(ran)),
            ("skipped", skipped),
        ):
            if lines:
                terminalreporter.write_line(title, bold=True)
                for line in lines:
                    show(f"  {line}")
        if cached:
            show(cached)
        for title, text in session.plugins.report_sections(session, session.records):
            terminalreporter.write_line(title, bold=True)
            show(text)
        for line in closing_lines(session):
            show(line)


def closing_lines(session: Session) -> list[str]:
    """Where the results are and what to do next."""
    lines = [f"receipts: {session.folder}"]
    if not session.settings.mlflow_uri:
        return [*lines, "MLflow: switched off"]
    if session.pending:
        reason = next(iter(session.pending.values()))
        lines.append(f"MLflow: {len(session.pending)} receipts are pending ({reason})")
        lines.append("        deliver them with: neuronbench push")
    else:
        lines.append(f"MLflow: {session.settings.mlflow_uri}  (open it with: neuronbench ui)")
    return lines

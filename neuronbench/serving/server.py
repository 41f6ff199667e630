"""A server that answers, as a resource: alive or not, why not, stopped."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from neuronbench import failures
from neuronbench.model import Failure, Json, Metric, ResourceSpec
from neuronbench.protocols import Vocabulary
from neuronbench.serving import http

if TYPE_CHECKING:
    from neuronbench.processes import Process

HEALTH_TIMEOUT_S: Final = 2.0
ENDING_S: Final = 8.0
"""How long a server that no longer answers may take to end by itself; vLLM needs five seconds."""


class OpenAIServer:
    """A server that answers. Satisfies `neuronbench.protocols.Endpoint`; made by `boot` or `attach`."""

    def __init__(
        self,
        *,
        spec: ResourceSpec,
        base_url: str,
        model: str,
        facts: Mapping[str, Json],
        boot_metrics: Sequence[Metric] = (),
        vocabulary: Vocabulary | None = None,
        metrics_url: str | None = None,
        api_key: str | None = None,
        process: Process | None = None,
        watch: Watch | None = None,
        health: str = "/health",
        external_pid: int | None = None,
    ) -> None:
        self.spec, self.base_url, self.model, self.facts = spec, base_url, model, facts
        self.boot_metrics, self.vocabulary = boot_metrics, vocabulary
        self.metrics_url, self.api_key = metrics_url, api_key
        self.logs: Sequence[Path] = [watch.log] if watch else []
        self._process, self._watch, self._health, self._external_pid = process, watch, health, external_pid

    def alive(self) -> bool:
        """Whether its process runs, or, of a server somebody else runs, whether it answers."""
        return self._process.alive() if self._process is not None else self._healthy()

    def pids(self) -> Sequence[int]:
        if self._process is not None:
            return [self._process.pid] if self._process.alive() else []
        return [self._external_pid] if self._external_pid else []

    def _healthy(self) -> bool:
        try:
            answer = http.request(self.base_url, self._health, timeout_s=HEALTH_TIMEOUT_S, api_key=self.api_key)
        except http.Unreachable:
            return False
        return answer.status == 200

    def diagnose(self, phase: str) -> Failure | None:
        """Why it is dead or does not answer; None when it is well. Only what it logged since it was ready counts."""
        if self._process is None or self._watch is None:
            if self._healthy():
                return None
            return Failure(
                kind="endpoint_unreachable", phase=phase, message=f"{self.base_url} no longer answers",
                remedy="Look at the server's own log; neuronbench did not start it.",
            )  # fmt: skip
        if self._process.alive():
            if self._healthy():
                return None
            try:  # a server whose engine has died takes some seconds to end
                self._process.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                return self._watch.unresponsive(phase)
        return self._watch.died(self._process.returncode, phase)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()


class Watch:
    """A server's log and what can be told from it."""

    def __init__(self, log: Path, rules: Sequence[failures.Rule]) -> None:
        self.log, self.rules = log, rules
        self.ready_at = 0
        """Bytes of the log at the moment it was ready; what stands before is no cause of what comes after."""
        self._oom_kills = failures.oom_kills()

    def text(self) -> str:
        return failures.read_log(self.log, start=self.ready_at)

    def died(self, status: int | None, phase: str) -> Failure:
        now = failures.oom_kills()
        oom = None if now is None or self._oom_kills is None else now > self._oom_kills
        return failures.classify(
            self.text(), phase=phase, exit_status=status, extra_rules=self.rules, log_name=self.log.name,
            message=f"the server {failures.describe_exit(status) or 'ended'}", oom_killed=oom,
        )  # fmt: skip

    def unresponsive(self, phase: str) -> Failure:
        found = failures.match(self.text(), phase=phase, extra_rules=self.rules)
        return Failure(
            kind=found[0].kind if found else "server_unresponsive",
            phase=phase,
            message="the server's process runs but its health check does not answer",
            causal_line=found[1] if found else "",
            cause=found[0].cause if found else "",
            remedy=found[0].remedy if found else "Read the end of its log; the engine may hang or be overloaded.",
            log=self.log.name,
        )

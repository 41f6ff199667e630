"""What several tests of the client need besides fixtures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from neuronbench.load.bodies import Bodies, request_body
from neuronbench.load.plan import Plan, write_plan
from neuronbench.load.reduce import Reduction
from neuronbench.load.run import Drive, Timeouts
from neuronbench.protocols import Vocabulary

VOCABULARY = Vocabulary(size=32_000, special_ids=(0, 1, 2))
SHORT = Timeouts(connect_s=2, first_token_s=1, inter_token_s=1, total_s=5, drain_s=2)
"""Where it is the time-outs that are tried, or servers that answer in no time-out at all."""
LONG = Timeouts(connect_s=30, first_token_s=60, inter_token_s=60, total_s=120, drain_s=60)
"""Where they are not: however long a busy host takes, it is the answers that count."""


@dataclass(frozen=True)
class Ran:
    """A finished run."""

    plan: Plan
    drive: Drive
    reduction: Reduction
    out: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.reduction.table).to_pylist()
        return rows

    @property
    def inside(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["in_window"]]

    def __getitem__(self, key: str) -> float | None:
        return self.reduction[key]


Run = Callable[..., Ran]


def mean_between(rows: Sequence[dict[str, Any]], begin: str, opened: int, closed: int) -> float:
    """Requests that were between their instant `begin` and their end, on average over the window."""
    spans = [(row[begin], row["end_ns"]) for row in rows if row[begin] is not None]
    return sum(max(min(end, closed) - max(start, opened), 0) for start, end in spans) / (closed - opened)


def check_in_flight(ran: Ran, concurrency: int) -> None:
    """Each slot of a closed loop has a request due or in flight at every instant, however late the client is with the
    next; and what is said to be in flight is what the rows say."""
    opened, closed = ran.drive.opened_ns, ran.drive.closed_ns
    assert opened is not None
    assert closed is not None
    load = [row for row in ran.rows if not row["warmup"]]
    assert mean_between(load, "scheduled_ns", opened, closed) == pytest.approx(concurrency, rel=1e-9)
    assert ran["in_flight_requests"] == pytest.approx(mean_between(load, "sent_ns", opened, closed), rel=1e-6)


def check_achieved(ran: Ran) -> None:
    """The achieved rate and its gate are what the rows say; whether it is the rate asked for, the host decides."""
    opened, closed = ran.drive.opened_ns, ran.drive.closed_ns
    assert opened is not None
    assert closed is not None
    due = len(ran.inside)
    written = sum(opened <= row["sent_ns"] < closed for row in ran.rows if not row["warmup"] and row["sent_ns"])
    gate = ran.reduction.gate("achieved_rate")
    assert gate.observed == pytest.approx(written / ((closed - opened) / 1e9))
    assert gate.passed is (abs(written - due) <= max(0.01 * due, 1))
    assert ran["achieved_rate_req_s"] == gate.observed


def plan_of_models(
    folder: Path,
    models: Sequence[str],
    *,
    api: str = "completions",
    tokens: int = 16,
    concurrency: int = 4,
    cancel_after: Sequence[int] | None = None,
) -> Plan:
    """One request per model string, each exactly `tokens` long: the truth server's scenarios side by side."""
    bodies = []
    for number, model in enumerate(models):
        body: dict[str, Any] = request_body(api, model, tokens, None)
        if api == "chat":
            body["messages"] = [{"role": "user", "content": f"prompt {number}"}]
        elif api == "responses":
            body["input"] = f"prompt {number}"
        else:
            body["prompt"] = [100 + number, 7, 7, 7]
        bodies.append(orjson.dumps(body))
    arrivals = {"kind": "closed", "concurrency": concurrency, "in_flight": concurrency, "requests": len(models)}
    return write_plan(
        folder,
        sets=(
            Bodies(bodies=[], input_tokens=[], output_tokens=[]),
            Bodies(bodies=bodies, input_tokens=[-1] * len(bodies), output_tokens=[tokens] * len(bodies)),
        ),
        arrivals={**arrivals, "duration_s": None, "ramp_s": 0.0, "rate": None},
        api=api,
        model="truth",
        workload={"kind": "scenarios"},
        seed=0,
        exact=api != "responses",
        rule="one per scenario",
        columns={"cancel_after": cancel_after} if cancel_after else None,
    )

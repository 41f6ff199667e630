"""What is really there: PostgreSQL and S3 asked directly, and held against what the boxes have on their disks.

No pusher is asked, and no MLflow: a client that counts wrong, or a server that shows a run twice, cannot hide here.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from neuronbench.testing.tracking.boxes import LANE, Expected
from neuronbench.testing.tracking.team import Team

_SHOWN: Final = 20
_RUNS: Final = """
SELECT receipt.value, run.run_uuid, run.status, parent.value, run.experiment_id, run.artifact_uri
FROM runs run
JOIN tags receipt ON receipt.run_uuid = run.run_uuid AND receipt.key = 'nb.receipt'
JOIN tags kind ON kind.run_uuid = run.run_uuid AND kind.key = 'nb.kind' AND kind.value <> 'summary'
LEFT JOIN tags parent ON parent.run_uuid = run.run_uuid AND parent.key = 'mlflow.parentRunId'
WHERE run.lifecycle_stage = 'active'
"""
_PARENTS: Final = """
SELECT lane.value, run.run_uuid, run.status FROM runs run
JOIN tags lane ON lane.run_uuid = run.run_uuid AND lane.key = 'nb.session.lane'
WHERE run.lifecycle_stage = 'active'
"""
_TAKEN_BACK: Final = """
SELECT session.value FROM runs run JOIN tags session ON session.run_uuid = run.run_uuid AND session.key = 'nb.session'
WHERE run.lifecycle_stage <> 'active'
"""


@dataclass(kw_only=True)
class Audit:
    """What was found; `problems` is empty when every receipt has its one run, whole, and nothing else is there."""

    receipts: int = 0
    runs: int = 0
    parents: int = 0
    missing: int = 0
    doubled: int = 0
    open: int = 0
    metrics: int = 0
    params: int = 0
    objects: int = 0
    object_bytes: int = 0
    database_bytes: int = 0
    traces: int = 0
    taken_back: int = 0
    """Runs in MLflow's bin: begun by two at once, or twice by one whose answer was lost."""
    problems: list[str] = field(default_factory=list)
    """In words, the first of each kind."""

    @property
    def ok(self) -> bool:
        return not self.problems


def audit(team: Team, expected: Iterable[Expected]) -> Audit:
    """Hold the team's database and bucket against what is `expected`, and the sessions in it against nothing more."""
    wanted = {each.receipt: each for each in expected}
    found = Audit(receipts=len(wanted))

    def rows(query: str) -> list[tuple[Any, ...]]:
        return list(team.database.connection.execute(query).fetchall())

    runs = rows(_RUNS)
    parents = rows(_PARENTS)
    metrics = {run: (n, total) for run, n, total in
               rows("SELECT run_uuid, count(*), sum(value) FROM metrics GROUP BY 1")}  # fmt: skip
    latest = dict(rows("SELECT run_uuid, count(*) FROM latest_metrics GROUP BY 1"))
    params = dict(rows("SELECT run_uuid, count(*) FROM params GROUP BY 1"))
    inputs = dict(rows("SELECT destination_id, count(*) FROM inputs GROUP BY 1"))
    traces = dict(rows("SELECT value, count(*) FROM trace_request_metadata WHERE key = 'mlflow.sourceRun' GROUP BY 1"))
    incomplete = rows("SELECT run_uuid, value FROM tags WHERE key = 'nb.incomplete'")
    ((found.database_bytes,),) = rows("SELECT pg_database_size(current_database())")
    told = _Told(found)
    sessions = {each.session for each in wanted.values()}
    parents = [row for row in parents if row[0].partition(" ")[0] in sessions]
    runs = [row for row in runs if row[0].partition("/")[0] in sessions]
    parent_of = _parents(parents, sessions, told)
    found.runs, found.parents = len(runs), len(parents)
    found.taken_back = sum(session in sessions for (session,) in rows(_TAKEN_BACK))
    found.open = sum(row[2] != "FINISHED" for row in (*runs, *parents))
    if found.open:
        told("open", f"{found.open} runs are not FINISHED")
    of: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for run in runs:
        of[run[0]].append(run)
    ours = {run[1] for run in runs}
    for run, text in incomplete:
        if run in ours:
            told("incomplete", f"run {run} says of itself that it is incomplete: {text}")
    for receipt in of.keys() - wanted.keys():
        told("stranger", f"{receipt}: has a run, and no box has that receipt")
    objects = _by_run(team.objects())
    found.objects = sum(len(files) for files in objects.values())
    found.object_bytes = sum(size for files in objects.values() for size in files.values())
    for receipt, each in wanted.items():
        there = of.get(receipt, [])
        found.missing += not there
        found.doubled += max(0, len(there) - 1)
        if len(there) != 1:
            told("lost or doubled", f"{receipt}: expected one run, found {len(there)}")
            continue
        _, run, _, parent, _, _ = there[0]
        if parent != parent_of.get(each.session):
            told("parent", f"{receipt}: its parent is {parent}, expected {parent_of.get(each.session)}")
        n, total = metrics.get(run, (0, 0.0))
        found.metrics += n
        found.params += params.get(run, 0)
        found.traces += traces.get(run, 0)
        if n != each.metrics or latest.get(run, 0) != each.metrics or not math.isclose(total, each.total):
            told("metrics", f"{receipt}: {n} metrics with sum {total}, expected {each.metrics} with {each.total}")
        for what, counted, right in (
            ("params", params.get(run, 0), each.params),
            ("inputs", inputs.get(run, 0), each.inputs),
            ("traces", traces.get(run, 0), each.traces),
        ):
            if counted != right:
                told(what, f"{receipt}: {counted} {what}, expected {right}")
        files = objects.get(run, {})
        wrong = {name for name, size in each.files.items() if files.get(name) != size}
        if wrong or "files.json" not in files:
            told("artifacts", f"{receipt}: missing, or of another size, in S3: {sorted(wrong) or ['files.json']}")
    return found


class _Told:
    """Problems, a few of each kind."""

    def __init__(self, audit: Audit) -> None:
        self._audit, self._count = audit, Counter[str]()

    def __call__(self, kind: str, text: str) -> None:
        self._count[kind] += 1
        if self._count[kind] <= _SHOWN:
            self._audit.problems.append(text)


def _parents(rows: list[tuple[Any, ...]], sessions: set[str], told: _Told) -> dict[str, str]:
    """Session → its parent run."""
    count = Counter(lane for lane, _, _ in rows)
    for session in sessions:
        if count[f"{session} {LANE}"] != 1:
            told("parents", f"session {session}: expected one parent run, found {count[f'{session} {LANE}']}")
    return {lane.partition(" ")[0]: run for lane, run, _ in rows}


def _by_run(objects: dict[str, int]) -> dict[str, dict[str, int]]:
    """Run → artifact → bytes, of the keys `.../<experiment>/<run>/artifacts/<artifact>`."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for key, size in objects.items():
        place, _, artifact = key.partition("/artifacts/")
        found[place.rpartition("/")[2]][artifact] = size
    return found

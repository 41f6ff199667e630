"""A load from several nodes: what each of them did, and whether together they were the load that was planned.

A latency is a difference between two instants of one node's clock, whatever the others show. What mixes clocks is where
the window begins and ends, and how the requests of different nodes lie to each other: both are known to the bound of
the clock offsets, and the gates hold that bound against the window and against the gaps between arrivals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from neuronbench.load.pool import Pool
from neuronbench.model import Gate, Json, Metric

if TYPE_CHECKING:
    from neuronbench.load.crew import Node
    from neuronbench.load.derive import Derived
    from neuronbench.load.plan import Plan
    from neuronbench.load.records import Batch
    from neuronbench.load.window import Edges

WINDOW_SHARE: Final = 0.001
"""Of the window, by which its edges may be uncertain."""
GAP_SHARE: Final = 0.5
"""Of the mean gap between arrivals, by which two nodes may be apart."""
MIXED: Final = ("output_throughput", "request_throughput", "achieved_rate", "in_flight", "goodput")
"""Metrics over the window of all nodes; the others are of one clock each."""


class NodeTally:
    """What is added up for each node."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self._of = {worker: k for k, node in enumerate(nodes) for worker in node.workers}
        self.requests = [0] * len(nodes)
        self.failed = [0] * len(nodes)
        self.lags = [Pool() for _ in nodes]

    def add(self, batch: Batch, derived: Derived) -> None:
        k = self._of.get(batch.worker)
        if k is None:
            return
        self.requests[k] += int(derived.in_window.sum())
        self.failed[k] += int((derived.in_window & derived.failed).sum())
        self.lags[k].add(derived.send_lag[derived.in_window])

    @property
    def bound_ns(self) -> int | None:
        """What two clocks may be apart at most: the largest bound; None when one could not be told."""
        bounds = [node.bound_ns for node in self.nodes]
        return None if None in bounds else max((bound for bound in bounds if bound is not None), default=0)

    def facts(self, edges: Edges) -> list[Json]:
        """For the record, node by node: its share of the load, how late it was, how its clock was told."""
        found: list[Json] = []
        for k, node in enumerate(self.nodes):
            cpu = [edges.cpu_of[worker] for worker in node.workers if worker in edges.cpu_of]
            lags = self.lags[k]
            p50, p99 = (lags.quantile(p, failures=False).value for p in (0.5, 0.99))
            found.append(
                {
                    "name": node.name,
                    "workers": list(node.workers),
                    "same_host": node.same_host,
                    "requests": self.requests[k],
                    "failed": self.failed[k],
                    "send_lag_ms": {"p50": p50, "p99": p99, "mean": lags.mean, "max": lags.largest if lags.n else None},
                    "cpu_pct": round(100 * max(cpu), 2) if cpu else None,
                    "clock": {
                        "offset_ns": node.offset_ns,
                        "bound_ns": node.bound_ns,
                        "drift_ns": node.drift_ns,
                        "meaning": "offset: added to the node's monotonic clock it is this host's, to within the bound",
                    },
                    "lost": node.lost or None,
                    **node.facts,
                }
            )
        return found

    def gates(self, plan: Plan, seconds: float | None, send_lag: Gate | None) -> list[Gate]:
        """Whether all nodes were there, whether their clocks are one, whether each of them kept its instants."""
        lost = [node for node in self.nodes if node.lost]
        gates = [
            Gate(
                id="load_nodes",
                passed=not lost,
                observed=len(self.nodes) - len(lost),
                limit=len(self.nodes),
                unit="nodes",
                message="; ".join(f"{node.name}: {node.lost}" for node in lost)
                or "every node drove its part to the end",
            )
        ]
        if seconds is None:
            return gates
        bound_ms = None if self.bound_ns is None else self.bound_ns / 1e6
        worst = max(self.nodes, key=lambda node: node.bound_ns or 0).name
        gates.append(
            Gate(
                id="clock_offset",
                passed=None if bound_ms is None else bound_ms <= WINDOW_SHARE * seconds * 1e3,
                observed=bound_ms,
                limit=WINDOW_SHARE * seconds * 1e3,
                unit="ms",
                message=f"a node's clock ({worst}) is this host's to within so much: {self.effect(seconds)}"
                if bound_ms is not None
                else "the clock of a node could not be told from this host's",
            )
        )
        rate = plan.arrivals.get("rate")
        if plan.arrivals["kind"] == "open" and rate and len(self.nodes) > 1:
            limit = GAP_SHARE * 1e3 / float(rate)
            gates.append(
                Gate(
                    id="clock_arrivals",
                    passed=None if bound_ms is None else bound_ms <= limit,
                    observed=bound_ms,
                    limit=limit,
                    unit="ms",
                    severity="provisional",
                    message="by so much the requests of one node may have come early or late among those of another; "
                    "the limit is half a mean gap between arrivals, and no latency depends on it",
                )
            )
        if send_lag is not None and isinstance(send_lag.limit, (int, float)):
            gates.append(self._late(plan, float(send_lag.limit)))
        return gates

    def _late(self, plan: Plan, limit: float) -> Gate:
        closed = plan.arrivals["kind"] == "closed"

        def lateness(pool: Pool) -> float | None:
            found = pool.mean if closed else pool.quantile(0.99, failures=False).value
            return pool.largest if found is None and pool.n else found

        late = {node.name: lateness(pool) for node, pool in zip(self.nodes, self.lags, strict=True)}
        known = {name: value for name, value in late.items() if value is not None}
        worst = max(known, key=known.__getitem__) if known else ""
        return Gate(
            id="node_send_lag",
            passed=known[worst] <= limit if known else None,
            observed=known.get(worst),
            limit=limit,
            unit="ms",
            message=f"{'mean' if closed else 'p99'} of writing behind the schedule on the node that was latest, {worst}"
            if known
            else "no request was written",
        )

    def effect(self, seconds: float) -> str:
        """What the uncertainty of the clocks does to rates over the window, in words."""
        bound = self.bound_ns
        if bound is None:
            return "how well the window's edges agree is not known"
        return (
            f"the window's edges agree to ±{bound / 1e6:.3g} ms, rates over it to ±{_edges_pct(bound, seconds):.2g} %"
        )

    def noted(self, metrics: Sequence[Metric], seconds: float | None) -> list[Metric]:
        """The metrics, with a remark on those that mix clocks."""
        if seconds is None or len(self.nodes) < 2:
            return list(metrics)
        bound = self.bound_ns
        share = "by an unknown share" if bound is None else f"to ±{_edges_pct(bound, seconds):.2g} %"
        words = f"over the clocks of {len(self.nodes)} nodes, which agree on it {share}"
        return [
            dataclasses.replace(one, note="; ".join(filter(None, (one.note, words)))) if one.id in MIXED else one
            for one in metrics
        ]


def _edges_pct(bound_ns: int, seconds: float) -> float:
    """Both edges off by the bound, in per cent of the window."""
    return 2 * bound_ns / 1e7 / seconds


def of(drive: Any) -> NodeTally | None:
    """A tally for a drive that had nodes."""
    return NodeTally(drive.nodes) if drive is not None and drive.nodes else None

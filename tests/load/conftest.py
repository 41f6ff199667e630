"""A truth server for all tests of the client, and a short way to plan, drive and reduce against it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from load_helpers import LONG, VOCABULARY, Ran, Run

from neuronbench.load.arrivals import closed_loop
from neuronbench.load.plan import Plan, make_plan
from neuronbench.load.run import drive, reduce_run
from neuronbench.load.workload import Warmup, synthetic
from neuronbench.processes import spawn
from neuronbench.protocols import Vocabulary
from neuronbench.testing.truth_server import TruthServer


@pytest.fixture(scope="session")
def truth() -> Iterator[TruthServer]:
    with TruthServer(ttft_ms=5, tpot_ms=1) as server:
        yield server


@pytest.fixture
def run(tmp_path: Path, truth: TruthServer) -> Run:
    """`run(arrivals, model=...)`: plan, drive and reduce; keyword arguments of all three."""
    count = 0

    def go(
        arrivals: Any = None,
        *,
        workload: Any = None,
        model: str = "truth",
        api: str = "completions",
        url: str | None = None,
        warmup: Warmup | None = None,
        extra_body: dict[str, Any] | None = None,
        slo: dict[str, float] | None = None,
        plan: Plan | None = None,
        seed: int = 0,
        vocabulary: Vocabulary | None = VOCABULARY,
        **options: Any,
    ) -> Ran:
        nonlocal count
        count += 1
        folder = tmp_path / f"run{count}"
        base_url = url or truth.url
        if plan is None:
            plan = make_plan(
                folder / "plan",
                arrivals=arrivals or closed_loop(2, requests=8),
                workload=workload or synthetic(input_tokens=8, output_tokens=6),
                api=api,
                model=model,
                vocabulary=vocabulary,
                warmup=warmup,
                seed=seed,
                extra_body=extra_body,
                base_url=base_url,
            )
        options.setdefault("timeouts", LONG)
        options.setdefault("deadline_s", 200.0)
        drove = drive(plan, base_url=base_url, out=folder / "out", spawn=spawn, **options)
        return Ran(plan, drove, reduce_run(plan, folder / "out", drive=drove, slo=slo), folder / "out")

    return go

"""What the input costs: real data against synthetic of equal shapes, all else equal."""

import neuronbench as nb


@nb.bench(lane="data_isolation", grid="data_isolation/packed")
def bench_data_isolation(trainer, measure, point):
    """Real, synthetic, synthetic, real, so that a drift of the host falls on both alike."""
    job = nb.TrainJob.from_point(point)
    jobs = {"real": job, "synthetic": job.changed(dataset=f"synthetic:{job.seed}")}
    runs = {"real": [], "synthetic": []}
    for kind in ("real", "synthetic", "synthetic", "real"):
        runs[kind].append(measure.train(trainer, jobs[kind], check_loss=False))
    shapes = {
        kind: (few[0]["tokens_tokens"], few[0]["padding_share_share"], [run.steps.numbers for run in few])
        for kind, few in runs.items()
    }
    same = shapes["real"] == shapes["synthetic"]
    measure.gate(nb.Gate(id="equal_shapes", passed=same, observed=str(shapes["real"]), limit=str(shapes["synthetic"])))
    rates = {kind: [run["train_throughput_tok_s"] for run in few] for kind, few in runs.items()}
    if all(rate for few in rates.values() for rate in few):
        cost = 1 - sum(rates["real"]) / sum(rates["synthetic"])
        spread = max(max(few) / min(few) - 1 for few in rates.values())
        measure.metric("input_cost", cost, n=2, note=f"two runs of one kind differ by up to {spread:.1%}")
        resolved = abs(cost) > spread
        why = "" if resolved else "runs of one kind differ by more than that: it is not distinguishable from nothing"
        gate = nb.Gate(
            id="input_cost_resolved", passed=resolved, observed=cost, limit=spread, severity="info", message=why
        )
        measure.gate(gate)

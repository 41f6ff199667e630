"""Training from random weights, on one rank and on several that start alike and see the same."""

import neuronbench as nb


@nb.bench(lane="pretrain", grid="pretrain/small")
def bench_pretrain(trainer, measure, point):
    """All weights from a seed, loss on every token."""
    measure.train(trainer, nb.TrainJob.from_point(point))


@nb.bench(lane="pretrain", grid="pretrain/width", leases=("trainer",))
def bench_width(measure, point):
    """One rank that accumulates N micro-batches, then N ranks: the same steps, so the same losses, in less time."""
    ranks = point["ranks"]
    runs = []
    for world_size, accumulation in ((1, ranks), (ranks, 1)):
        with measure.lease("trainer", world_size=world_size, accumulation=accumulation) as trainer:
            job = nb.TrainJob.from_point(point, world_size=world_size, accumulation=accumulation)
            runs.append(measure.train(trainer, job))
    one, many = runs
    started = [run.steps.start["init_digest"] for run in runs]
    measure.gate(nb.Gate(id="same_start", passed=started[0] == started[1], observed=started[1], limit=started[0]))
    seen = [run["tokens_tokens"] for run in runs]
    measure.gate(
        nb.Gate(
            id="same_tokens", passed=seen[0] == seen[1], observed=seen[1], limit=seen[0], unit="tokens",
            message="" if seen[0] == seen[1] else "the ranks share a model instead of the data: other steps",
        )
    )  # fmt: skip
    gap = max(abs(a - b) for a, b in zip(one.losses, many.losses, strict=True))
    measure.metric(
        "loss_difference", gap, stat="max", n=len(one.losses), note=f"1 rank and {ranks}, sums in another order"
    )
    if one["train_throughput_tok_s"] and many["train_throughput_tok_s"]:
        share = many["train_throughput_tok_s"] / (ranks * one["train_throughput_tok_s"])
        measure.metric("scaling_efficiency", share, note=f"{ranks} ranks against 1, threads of a rank alike")
    measure.check("loss_difference_max", at_most=point["tolerance"])

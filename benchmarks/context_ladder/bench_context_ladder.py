"""Rates over the sequence length, up to the wall, which is bisected; why it is there is recorded by its class."""

import neuronbench as nb


@nb.bench(lane="context_ladder", grid="context_ladder/ladder", leases=("trainer",))
def bench_context_ladder(measure, point):
    """Tokens of a step stay, so a longer sequence means fewer of them; what the model cannot take is refused."""

    def attempt(length):
        shape = {"sequence_length": length, "accumulation": max(point["tokens_per_step"] // length, 1)}
        with measure.lease("trainer", **shape) as trainer:
            return measure.train(trainer, nb.TrainJob.from_point(point, **shape), check_loss=False)

    ladder = measure.ladder(point["rungs"], attempt, metric="largest_context", resolution=point["resolution"])
    for rung in ladder.rungs:
        if rung.result is not None:
            measure.metric("train_throughput", rung.result["train_throughput_tok_s"], stat=f"s{rung.value}")

"""Rates over the micro-batch, up to the wall or the last rung."""

import neuronbench as nb


@nb.bench(lane="batch_ladder", grid="batch_ladder/ladder")
def bench_batch_ladder(trainer, measure, point):
    """Accumulation stays, so a step grows with the micro-batch; where memory ends is part of the result."""

    def attempt(batch_size):
        job = nb.TrainJob.from_point(point, batch_size=batch_size)
        return measure.train(trainer, job, check_loss=False)

    ladder = measure.ladder(point["rungs"], attempt, metric="largest_batch")
    for rung in ladder.rungs:
        if rung.result is not None:
            measure.metric("train_throughput", rung.result["train_throughput_tok_s"], stat=f"b{rung.value}")

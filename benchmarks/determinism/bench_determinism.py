"""Same seed, same losses to the bit; another seed, others. A flag that does nothing is found here."""

import neuronbench as nb


@nb.bench(lane="determinism", grid="determinism/seeds")
def bench_determinism(trainer, measure, point):
    """Three runs: two of one job, one of another seed."""
    job = nb.TrainJob.from_point(point)
    first, again = (measure.train(trainer, job, check_loss=False) for _ in range(2))
    other = measure.train(trainer, job.changed(seed=job.seed + 1), check_loss=False)
    measure.same_losses(first, again)
    measure.different_losses(first, other)

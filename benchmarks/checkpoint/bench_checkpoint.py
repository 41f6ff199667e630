"""What saving and restoring costs, and whether training goes on as if nothing had happened."""

import neuronbench as nb


@nb.bench(lane="checkpoint", grid="checkpoint/resume")
def bench_checkpoint(trainer, measure, point):
    """Train to the end, then once more from the latest checkpoint: the losses that both have must be equal."""
    job = nb.TrainJob.from_point(point)
    whole = measure.train(trainer, job, check_loss=False)
    resumed = measure.train(trainer, job, resume=whole, check_loss=False)
    measure.same_losses(whole, resumed)

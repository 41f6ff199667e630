"""Whether training taught anything: loss on what was split off before packing and never trained on."""

import neuronbench as nb


@nb.bench(lane="quality", grid="quality/holdout")
def bench_quality(trainer, measure, point):
    """Before and after, by the same examples."""
    measure.train(trainer, nb.TrainJob.from_point(point))
    measure.check("holdout_loss_ratio", at_most=point["ratio"])

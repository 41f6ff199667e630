"""Preference tuning on pairs of a chosen and a rejected answer, by odds ratio (ORPO) and directly (DPO)."""

import neuronbench as nb


@nb.bench(lane="preference", grid="preference/pairs")
def bench_preference(trainer, measure, point):
    """Rates, and how often the chosen answer is the likelier one of pairs that were split off before."""
    measure.train(trainer, nb.TrainJob.from_point(point))

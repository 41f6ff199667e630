"""Preference tuning on pairs of a chosen and a rejected answer, by odds ratio (ORPO) and directly (DPO)."""

import neuronbench as nb


@nb.bench(lane="preference", grid="preference/pairs")
def bench_preference(trainer, measure, point):
    """Rates, and how often the chosen answer is the likelier one of pairs that were never trained on."""
    job = nb.TrainJob.from_point(point)
    trained = measure.train(trainer, job)
    held_out = trainer.evaluate(job, folder=trained.folder, split="holdout")
    measure.metric("preference_accuracy", held_out["preferred"])

"""Fine-tuning of all weights: what the adapter saves is the difference to `lora_sft`."""

import neuronbench as nb


@nb.bench(lane="full_sft", grid="full_sft/sft")
def bench_full_sft(trainer, measure, point):
    """The data and the shapes of `lora_sft`, every weight trained."""
    measure.train(trainer, nb.TrainJob.from_point(point))

"""Fine-tuning with a low-rank adapter: rates by barrier and by wall, utilisation, and a loss that falls."""

import neuronbench as nb


@nb.bench(lane="lora_sft", grid="lora_sft/sft")
def bench_lora_sft(trainer, measure, point):
    """A chat model learns a form of answers from instructions."""
    measure.train(trainer, nb.TrainJob.from_point(point))


@nb.bench(lane="lora_sft", grid="lora_sft/second")
def bench_second_architecture(trainer, measure, point):
    """The same method on another family of models."""
    measure.train(trainer, nb.TrainJob.from_point(point))

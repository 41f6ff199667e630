"""What this host can do at best, whatever it is asked: memory, arithmetic, its tokenizer."""

import neuronbench as nb


@nb.bench(lane="host", grid="host/floor")
def bench_floor(measure, point):
    """Short windows over thread counts; the records of the session cite it."""
    measure.host_floor(seconds=point["window_s"], model=point["model"])

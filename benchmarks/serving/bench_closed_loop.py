"""Latency and throughput of a served model at a fixed number of requests in flight."""

import neuronbench as nb


@nb.bench(lane="serving", grid="serving/short")
def bench_closed_loop(endpoint, measure, point):
    """The next request is sent when one ends; a window of steady load is measured."""
    measure.serve(
        endpoint,
        nb.closed_loop(point["concurrency"], duration_s=point["window_s"]),
        nb.synthetic(input_tokens=point["input_tokens"], output_tokens=point["output_tokens"]),
    )
    measure.check("error_rate_share", at_most=0.0)

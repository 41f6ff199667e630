"""How many requests a second a served model can take while it keeps its limits."""

import neuronbench as nb


@nb.bench(lane="serving", grid="serving/slo_rate")
def bench_slo_rate(endpoint, measure, point):
    """Poisson arrivals, one rate after the other, until the highest that keeps the limits is known."""
    measure.search_rate(
        endpoint,
        nb.synthetic(input_tokens=point["input_tokens"], output_tokens=point["output_tokens"]),
        slo={"ttft": point["ttft_ms"], "tpot": point["tpot_ms"]},
        percentile=point["percentile"],
        start=point["start_rate"],
        tolerance=point["tolerance"],
    )

"""What a prompt costs around the edges of compiled sizes: is one of exactly a size's length computed in that size?

Only where sizes are compiled. A first token that takes as long at 128 tokens as at 129, and longer than at 127, was
computed in the next size; the gate `bucket_map` says the same from the server's own counts, where it has them.
"""

import neuronbench as nb


@nb.bench(lane="serving", grid="serving/bucket_edges")
def bench_bucket_edges(endpoint, measure, point):
    """One request at a time, so that nothing but its own size delays its first token."""
    measure.serve(
        endpoint,
        nb.closed_loop(1, duration_s=point["window_s"]),
        nb.synthetic(input_tokens=point["input_tokens"], output_tokens=point["output_tokens"]),
    )

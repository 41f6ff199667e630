"""Whether a served model earns its numbers: no cache that nobody was told of, true first tokens, true counts."""

import neuronbench as nb


@nb.bench(lane="serving", grid="serving/audit")
def bench_audit(endpoint, measure):
    """Some forty small requests; each finding is a gate. A prefix cache that the server tells of is only reported."""
    measure.audit(endpoint)

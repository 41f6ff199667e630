"""Kernels of NKI: right by the simulator before they run, right on the device, and then how long one takes there.

A kernel that the simulator does not find equal to numpy's is never run. Times are the SDK's own (`nki.benchmark`): it
gives percentiles and no samples, so nobody can look for what escaped its timers, and the records say so.
"""

import neuronbench as nb


@nb.bench(lane="nki", grid="nki/kernels")
def bench_kernel(compiled_model, measure, point):
    """Time of one execution on one core; the device's answer beside numpy's."""
    measure.agreement(compiled_model, compiled_model.batch(seed=7))
    measure.check("max_abs_err", at_most=point["tolerance"])
    times = compiled_model.device_times(warmup=point["warmup"], iterations=point["iterations"])
    for time in times:
        measure.metric(time.id, time.value, stat=time.stat, n=time.n, note=time.note)
    measure.gate(
        nb.Gate(
            id="foreign_timer",
            passed=False,
            severity="provisional",
            observed="nki.benchmark",
            message="the times are another's, without samples: what escaped its timers cannot be told",
        )
    )

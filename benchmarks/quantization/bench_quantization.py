"""Quantised weights and caches beside the unquantised model: speed, memory, accuracy, and proof that anything changed.

An option that is ignored costs nothing and gains nothing, and looks harmless: so every option must change what the
server shows and it cannot leave as it is (tokens, bytes in the cache) against the same server without it, in the same
session.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from quantized_forms import Option, against, clean, drift, failed, gates, judged_by, look

import neuronbench as nb

PASSAGES = (Path(__file__).parents[1] / "serving" / "passages.txt").read_text(encoding="utf-8").splitlines()
COMPARED = (
    "output_throughput_tok_s", "tpot_p50_ms", "ttft_p50_ms", "server_rss_max_MiB", "weights_size_bytes",
    "kv_bytes_per_token_bytes", "device_memory_max_bytes", "accuracy_ratio",
)  # fmt: skip


@pytest.fixture(scope="session")
def unquantized():
    """What the unquantised server did, by repeat and model: the first option of a grid is it."""
    return {}


@nb.bench(lane="quantization", grid="quantization/served", leases=("endpoint",))
def bench_quantization(measure, point, nb_repeat, unquantized):
    """One option on a server of its own; `none` comes first, and `again` at the end says what chance does."""
    option = Option.of(point)
    if option.refused and not point.get("try_refused"):
        pytest.skip(f"{option.name}: {option.refused}")
    key = (nb_repeat, point.backend, point["model"], point["dtype"])
    base = unquantized.get(key)
    if base is None and not option.plain:
        raise failed(
            "no_baseline", "the unquantised server was not measured in this session, or failed",
            remedy="run the grid from its first option on (`none`), in one session",
        )  # fmt: skip
    with measure.lease("endpoint", **option.changes(point, base)) as endpoint:
        seen = look(endpoint, point)
        measure.metric("weights_size", seen.weights_size, note="" if seen.weights_size else "the weights are not known")
        kv = seen.kv_bytes_per_token
        measure.metric("kv_bytes_per_token", kv, note="" if kv else "the server does not say how many tokens fit")
        measure.metric("changed_tokens", seen.changed(base or seen), n=sum(map(len, seen.answers)))
        if base is not None:
            for gate in gates(option, seen, base):
                measure.gate(gate)
        accuracy(measure, endpoint, point, base or seen)
        measure.serve(
            endpoint,
            nb.closed_loop(point["concurrency"], duration_s=point["window_s"]),
            nb.synthetic(input_tokens=point["input_tokens"], output_tokens=point["output_tokens"]),
        )
    values = {name: measure.record.metrics[name].value for name in COMPARED if name in measure.record.metrics}
    if base is None:
        unquantized[key] = replace(seen, values=values, against=against(measure.record.gates))
        return
    measure.gate(clean(base))
    for name, value in values.items():
        before = base.values.get(name)
        ratio = value / before if value is not None and before else None
        measure.metric(
            "vs_unquantized", ratio, stat=name, note="one window each, in one session" if ratio else "one is missing"
        )
    if option.plain:
        rates = measure.record.metrics.get("vs_unquantized_output_throughput_tok_s")
        measure.gate(drift(rates.value if rates else None))


def accuracy(measure, endpoint, point, base):
    """Greedy tokens beside those of the unquantised weights in fp32."""
    if not base.model.get("path"):
        measure.gate(
            nb.Gate(
                id="reference", passed=None, severity="provisional",
                message="the server's weights are not known: there is nothing to hold its answers against",
            )
        )  # fmt: skip
        return
    measure.token_accuracy(
        judged_by(endpoint, base), PASSAGES[: point["prompts"]], prompt_tokens=point["prompt_tokens"],
        output_tokens=point["accuracy_tokens"], likelihoods=point["likelihoods"],
    )  # fmt: skip

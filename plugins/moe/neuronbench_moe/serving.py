"""A mixture of experts and its dense controls under the same load, one arm after the other in one session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import neuronbench as nb
from neuronbench.telemetry.prometheus import Prometheus, ScrapeError
from neuronbench_moe import checks, control
from neuronbench_moe.models import MoeModel
from neuronbench_moe.routing import touched_evenly

PASSAGES: Final = Path(__file__).parent / "passages.txt"
RATE: Final = "output_throughput_tok_s"
GIGA: Final = 1e9
PLAUSIBLE: Final = 1.2
"""How much faster than its control of equal active parameters a mixture may be before that needs an explanation."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Output tokens/s of an arm, and the gates that spoke against its record."""

    value: float | None
    against: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Session:
    """What one session has seen: rates of the controls, and which artifacts answer right."""

    name: str = ""
    rates: dict[tuple[Any, ...], Rate] | None = None
    judged: set[str] | None = None


_SEEN: Final = Session()


def session_of(name: str) -> Session:
    """The session's own memory; that of the one before is gone."""
    if _SEEN.name != name or _SEEN.rates is None or _SEEN.judged is None:
        _SEEN.name, _SEEN.rates, _SEEN.judged = name, {}, set()
    return _SEEN


def serve(measure: Any, point: nb.Point) -> None:
    """Serve the arm of the point, once judged by its tokens, and set it beside the controls."""
    seen = session_of(measure.record.session)
    with measure.lease("moe_model") as model:
        config = point.get("architecture")
        changes = checks.server_parameters(point)
        if model.facts["weights"] != "pretrained":
            changes |= {"model": f"file:{model.folder}", "served_model": f"{model.shape.kind}-{point['arm']}"}
        with measure.lease("endpoint", **changes) as endpoint:
            _accuracy(measure, point, endpoint, model, seen)
            served = measure.serve(
                endpoint,
                nb.closed_loop(point["concurrency"], duration_s=point["window_s"]),
                nb.synthetic(input_tokens=point["input_tokens"], output_tokens=point["output_tokens"]),
            )
            _balance(measure, endpoint, model)
    rate = served.metrics[RATE].value
    _parameters(measure, model, rate, int(point["concurrency"]))
    if point["arm"] != "moe" and config is not None:
        _control(measure, config, str(point["arm"]))
    key = (point.backend, measure.record.repeat, point["concurrency"], point["input_tokens"], point["output_tokens"])
    assert seen.rates is not None
    seen.rates[(point["arm"], *key)] = Rate(value=rate, against=_against(measure.record.gates))
    if point["arm"] == "moe":
        _beside(measure, rate, {arm: seen.rates.get((arm, *key)) for arm in control.ARMS if arm != "moe"})
    if model.facts["weights"] != "pretrained":
        measure.note("random weights: rates are those of the architecture with a router that was never trained")


def _accuracy(measure: Any, point: nb.Point, endpoint: nb.Endpoint, model: MoeModel, seen: Session) -> None:
    """Greedy tokens beside the same weights in fp32: of each server once in a session."""
    assert seen.judged is not None
    known = endpoint.facts.get("model")
    if model.facts["weights"] == "dummy" or not known or endpoint.spec.key in seen.judged:
        return
    texts = PASSAGES.read_text(encoding="utf-8").splitlines()
    measure.token_accuracy(
        endpoint,
        texts[: point["prompts"]],
        prompt_tokens=point["prompt_tokens"],
        output_tokens=point["accuracy_tokens"],
    )
    seen.judged.add(endpoint.spec.key)


def _parameters(measure: Any, model: MoeModel, rate: float | None, concurrency: int) -> None:
    shape = model.shape
    measure.record.workload["moe"] = {
        **shape.to_json(),
        "weights": model.facts["weights"],
        "key": model.facts.get("key"),
    }
    counted = "counted from the configuration"
    measure.metric("active_parameters", shape.active, note=counted)
    measure.metric("total_parameters", shape.total, note=counted)
    for name, count in (("active", shape.active), ("total", shape.total)):
        value = rate * count / GIGA if rate is not None else None
        measure.metric("parameter_rate", value, stat=name, note="" if value is not None else "no rate was measured")
    if shape.experts:
        used = touched_evenly(shape.experts, shape.top_k, concurrency)
        measure.metric(
            "step_parameters", shape.touched(used), stat=f"b{concurrency}",
            note=f"{used:.1f} of {shape.experts} experts a layer: what an even router would use",
        )  # fmt: skip


def _control(measure: Any, config: Any, arm: str) -> None:
    off = abs(control.off(config, arm))
    measure.metric("control_off", off, note=f"the width is a multiple of {control.STEP}")
    measure.gate(
        nb.Gate(
            id="control_equal", passed=off <= control.LIMIT, observed=off, limit=control.LIMIT, unit="share",
            message="the dense control has other parameters than it is to have: no ratio with it means anything",
        )
    )  # fmt: skip


def _against(gates: Iterable[nb.Gate]) -> tuple[str, ...]:
    return tuple(gate.id for gate in gates if gate.passed is False and gate.severity != "info")


def _beside(measure: Any, rate: float | None, controls: Mapping[str, Rate | None]) -> None:
    """Ratios with the controls; they are worth what the controls' own records are."""
    found = {arm: other for arm, other in controls.items() if other is not None and other.value}
    for arm in controls:
        below = found[arm].value if arm in found else None
        ratio = rate / below if rate is not None and below else None
        why = f"{arm} was not measured at this load in this session"
        measure.metric(
            "vs_dense", ratio, stat=arm.removeprefix("dense_"), note="one window each, in one session" if ratio else why
        )
        if arm == "dense_active" and ratio is not None:
            measure.gate(
                nb.Gate(
                    id="plausible_ratio", passed=ratio <= PLAUSIBLE, observed=ratio, limit=PLAUSIBLE,
                    severity="provisional",
                    message="a mixture computes what its control of equal active parameters does, and routes besides: "
                    "faster by this much, one of the two was held up by something else, or runs other kernels",
                )
            )  # fmt: skip
    measure.gate(
        nb.Gate(
            id="control_measured", passed=bool(found), observed=", ".join(found) or None, severity="provisional",
            message="" if found else "no dense control was measured in this session: run the grid from its first arm",
        )
    )  # fmt: skip
    tainted = [f"{arm}: {', '.join(other.against)}" for arm, other in found.items() if other.against]
    measure.gate(
        nb.Gate(
            id="control_clean", passed=not tainted if found else None, severity="provisional",
            message=f"gates speak against a control, so against the ratio with it ({'; '.join(tainted)})"
            if tainted else "",
        )
    )  # fmt: skip


def _balance(measure: Any, endpoint: nb.Endpoint, model: MoeModel) -> None:
    """Whether the server says anything about its experts; what that is goes into the note, nothing is made up."""
    if not model.shape.experts:
        return
    found, why = [], "the server has no metrics"
    if endpoint.metrics_url:
        sampler = Prometheus(endpoint.metrics_url, prefixes=("vllm", "nxd", "neuron"), timeout_s=5.0)
        try:
            found = sorted(name for name in sampler.read() if "expert" in name or "eplb" in name)
            why = "the server's metrics say nothing about experts; see the router's own figures (bench_routing)"
        except (OSError, ScrapeError) as error:
            why = f"the server's metrics could not be read: {error}"
        finally:
            sampler.close()
    note = f"not read: {', '.join(found)[:200]}" if found else why
    measure.metric("load_imbalance", None, stat="server", n=0, note=note)

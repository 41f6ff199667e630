"""What only several receipts show: flags that differ, options that changed nothing, failures that were overtaken."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from neuronbench.compare.effect import no_effect_gate
from neuronbench.compare.fields import COMPILER_FLAGS
from neuronbench.compare.protocol import Difference, of_environment, short
from neuronbench.importers.base import Imported
from neuronbench.importers.study.files import read_object
from neuronbench.importers.study.training import LANES
from neuronbench.model import Gate, Json
from neuronbench.training.overlay import overlay

_FLAGS: Final = COMPILER_FLAGS[0]
_CAST: Final = "auto-cast"
"""Compiler flags that change the arithmetic: losses of another arithmetic are others."""
_LEAST_STEPS: Final = 5
"""Fewer equal losses prove nothing."""


def together(found: Sequence[Imported]) -> list[Imported]:
    """The results with the gates that need their neighbours."""
    more: dict[int, list[Gate]] = defaultdict(list)
    for index, gate in (*_flags(found), *_idle_training(found), *_idle_serving(found), *_overtaken(found)):
        more[index].append(gate)
    return [replace(one, gates=[*one.gates, *more[i]]) if i in more else one for i, one in enumerate(found)]


def _runs(found: Sequence[Imported]) -> Iterator[tuple[int, Imported]]:
    """Training runs with their compiler flags."""
    for index, one in enumerate(found):
        if one.lane in LANES and _FLAGS in of_environment(one.facts):
            yield index, one


def _flags(found: Sequence[Imported]) -> Iterator[tuple[int, Gate]]:
    """Runs of one model on one box whose flags are not those of most of its runs: another experiment."""
    groups: dict[tuple[str, Json], list[tuple[int, str]]] = defaultdict(list)
    for index, one in _runs(found):
        groups[one.backend, one.params.get("model")].append((index, of_environment(one.facts)[_FLAGS]))
    for members in groups.values():
        if len(members) < 2:
            continue
        counts = Counter(flags for _, flags in members)
        usual, many = max(counts.items(), key=lambda pair: (pair[1], pair[0]))
        for index, flags in members:
            difference = Difference(field=_FLAGS, base=short([usual], 200), head=short([flags], 200))
            same = flags == usual
            yield (
                index,
                Gate(
                    id="compiler_flags",
                    passed=same,
                    observed=short([flags], 200),
                    limit=short([usual], 200),
                    severity="provisional",
                    message=""
                    if same
                    else f"{difference.field}: {many} of {len(members)} runs of this model here have the other",
                ),
            )


def _idle_training(found: Sequence[Imported]) -> Iterator[tuple[int, Gate]]:
    """Runs that differ in the seed or in the arithmetic they ask of the compiler, and in no loss."""
    runs = list(_runs(found))
    losses: dict[int, Mapping[int, float]] = {}
    for index, one in runs:
        gates = []
        for other_index, other in runs:
            option = _option(other, one)
            if not option:
                continue
            for each, result in ((index, one), (other_index, other)):
                if each not in losses:
                    losses[each] = _losses(result)
            common = losses[index].keys() & losses[other_index].keys()
            if len(common) >= _LEAST_STEPS:
                laid = overlay(losses[other_index], losses[index])
                pair = (0.0, 0.0 if laid.identical else (laid.max_gap or math.inf))
                gate = no_effect_gate(option, {f"losses of {len(common)} steps": pair})
                gates.append(replace(gate, message=f"{gate.message}; beside {other.name}"))
        if gates:
            yield index, min(gates, key=lambda gate: gate.passed is not False)  # one equal pair is enough


def _option(base: Imported, one: Imported) -> str:
    """The one thing that `one` changes of `base`, if it is a thing that has to change the losses; else empty."""
    if base.backend != one.backend:
        return ""
    names = {*base.params, *one.params}
    changed = [name for name in names if base.params.get(name) != one.params.get(name)]
    before, after = str(base.facts[_FLAGS]), str(one.facts[_FLAGS])
    if changed == ["seed"] and before == after:
        return f"seed {one.params['seed']}"
    added = [word for word in after.split() if word not in before.split()]
    if not changed and any(_CAST in word for word in added):
        return " ".join(added)
    return ""


def _losses(one: Imported) -> dict[int, float]:
    found: dict[int, float] = {}
    for row in read_object(one.source)["loss_trace"]:
        step, loss = row.get("step"), row.get("loss")
        if isinstance(step, int):
            found[step] = float(loss) if isinstance(loss, (int, float)) else math.nan
    return found


def _idle_serving(found: Sequence[Imported]) -> Iterator[tuple[int, Gate]]:
    """Points with quantised keys and values beside those without: less memory is what the option is for."""
    points = [(index, one) for index, one in enumerate(found) if one.lane == "serving" and one.record == "point"]
    for index, one in points:
        option = one.params.get("option")
        if option is None or "quant" not in one.name.split("/"):
            continue
        base = next((other for _, other in points if "option" not in other.params and _same(one, other)), None)
        if base is None:
            continue
        names = ("telemetry.peak_device_mem_mib", "output_throughput", "p50_tpot_ms")
        pairs: dict[str, tuple[Any, Any]] = {name: (base.own.get(name), one.own.get(name)) for name in names}
        gate = no_effect_gate(str(option), pairs, witnesses=names[:1])
        yield index, replace(gate, message=f"{gate.message}; beside {base.name}")


def _same(one: Imported, other: Imported) -> bool:
    plain = {name: value for name, value in one.params.items() if name != "option"}
    return one.backend == other.backend and plain == other.params and other.error is None


def _overtaken(found: Sequence[Imported]) -> Iterator[tuple[int, Gate]]:
    """Failures beside a later success of the same name or of the same folder's boot: which of the two holds?"""
    by_path = {one.source: one for one in found}
    for index, one in enumerate(found):
        if one.error is None or "failure" not in one.source.name:
            continue
        names = [one.source.name.replace(".failure", ""), "boot.json" if one.source.name == "load_failure.json" else ""]
        for name in names:
            other = by_path.get(one.source.with_name(name)) if name and name != one.source.name else None
            if other is not None and other.error is None and other.measured_at > one.measured_at > "":
                message = f"{other.name} is of {other.measured_at[:19]} and went well: nothing says which one holds"
                yield index, Gate(id="overtaken", passed=False, observed=one.measured_at[:19],
                                  limit=other.measured_at[:19], severity="info", message=message)  # fmt: skip

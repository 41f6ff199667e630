"""What `neuron-monitor` is asked for, and how often.

**The period.** The tool credits an execution to the period in which it ends, and cuts a core's utilisation off at 100
%. With a period of about an execution's length (study of long training graphs at 1 Hz: 100, 0, 0, 100, 0, 0, ...) the
mean of such samples is one over the execution's length and says nothing of the core. So a period has to hold many
executions: it is `PER_PERIOD` times the longest execution that the runtimes report, a second at least and `LONGEST_S`
at most, and it is made longer, never shorter, while the window runs. What was sampled before that is told apart by the
period that stands beside each sample; `neuronbench.telemetry.aliasing` says which samples count (three executions in a
period at least).
"""

from __future__ import annotations

import json
import math
from typing import Final

PER_PERIOD: Final = 10
"""Executions that fit into a period, at least: the one that a period's edge cuts off is then a tenth of it."""
SHORTEST_S: Final = 1.0
LONGEST_S: Final = 60.0
HARDWARE_PERIOD_S: Final = 5.0
"""Of counters that hardly ever move."""
RUNTIME_GROUPS: Final = ("neuroncore_counters", "execution_stats", "memory_used", "neuron_runtime_vcpu_usage")
SYSTEM_GROUPS: Final = ("memory_info", "neuron_hw_counters")


def period_for(execution_s: float | None) -> float:
    """Whole seconds between samples for executions of that length; the shortest while it is not known."""
    if execution_s is None or not execution_s > 0:
        return SHORTEST_S
    return min(max(float(math.ceil(PER_PERIOD * execution_s)), SHORTEST_S), LONGEST_S)


def configuration(period_s: float, *, tag: str = ".*") -> str:
    """The text of a configuration file: every group the record can use, `tag` chooses runtimes by their tag."""
    hardware_s = max(period_s, HARDWARE_PERIOD_S)
    return json.dumps(
        {
            "period": _duration(period_s),
            "neuron_runtimes": [{"tag_filter": tag, "metrics": [{"type": name} for name in RUNTIME_GROUPS]}],
            "system_metrics": [
                {"type": name, **({"period": _duration(hardware_s)} if name == "neuron_hw_counters" else {})}
                for name in SYSTEM_GROUPS
            ],
        },
        indent=2,
    )


def _duration(seconds: float) -> str:
    """As the tool reads it: `1s`, `500ms`."""
    return f"{seconds:g}s" if float(seconds).is_integer() else f"{round(seconds * 1e3)}ms"

"""Whether a server earns its numbers: caches nobody was told of, first tokens that are none, tokens never generated."""

from neuronbench.audit.run import Audit, audit
from neuronbench.audit.unchanged import DEADLINE_S as OUTPUTS_DEADLINE_S
from neuronbench.audit.unchanged import Outputs, outputs, unchanged_gate

__all__ = ["OUTPUTS_DEADLINE_S", "Audit", "Outputs", "audit", "outputs", "unchanged_gate"]

"""Results that others measured, as receipts beside our own.

Each importer keeps the definitions of its source: a figure gets one of our ids only where the definition is the same,
otherwise the id is null with the reason, and the figure stands under its own name. Whatever comes from here is marked
`imported` wherever it is shown.
"""

from __future__ import annotations

from typing import Final

from neuronbench.importers import aws, loops, study, tools
from neuronbench.importers.base import Checked, Imported, Kind
from neuronbench.importers.safe import ImportFailure
from neuronbench.importers.write import Import, gather, store

KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind(name="vllm", title="vllm bench serve", suffixes=(".json",), read=tools.vllm),
        Kind(name="guidellm", title="guidellm", suffixes=(".json",), read=tools.guidellm),
        Kind(name="aiperf", title="aiperf", suffixes=(".json",), read=tools.aiperf),
        Kind(name="llmperf", title="llmperf", suffixes=("summary.json",), read=tools.llmperf),
        Kind(name="inference-perf", title="inference-perf", suffixes=("metrics.json",), read=tools.inference_perf),
        Kind(name="pytest-benchmark", title="pytest-benchmark", suffixes=(".json",), read=loops.pytest_benchmark),
        Kind(name="nxdi", title="NxD Inference's benchmark report", suffixes=(".json",), read=loops.nxdi),
        Kind(
            name="optimum-training",
            title="optimum-neuron's training summary",
            suffixes=(".json",),
            read=loops.optimum_training,
        ),
        Kind(name="aws", title="AWS's published tables", suffixes=(".html", ".htm", ".txt", ".csv"), read=aws.aws),
        Kind(
            name="study",
            title="the torchneuronx study",
            suffixes=study.SUFFIXES,
            read=study.read,
            files=study.receipts,
            finish=study.together,
            check=study.check,
        ),
    )
}

__all__ = ["KINDS", "Checked", "Import", "ImportFailure", "Imported", "Kind", "gather", "store"]

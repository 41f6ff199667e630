"""The nodes of a Ray cluster, by Ray: who is there, leases of whole boxes, and what its errors mean.

All of Ray that the rest of `place` needs is here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuronbench_ray.cluster import LOAD_RESOURCE

CORES: Final = "neuron_cores"
"""Ray's name of the resource: a node finds its NeuronCores by `neuron-ls` as it starts, and counts them one by one."""
TAKEN_S: Final = 60.0
"""A lease that takes longer than an agent's start is told of: another run may have the box."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of the cluster."""

    id: str
    name: str
    address: str
    alive: bool
    cores: int
    cpus: float
    head: bool
    accelerator: str
    """Ray's label of what it is, such as `aws-neuron-core`; empty where it has none."""
    sends_load: bool = False
    """It was started with the resource for nodes that send load."""

    @property
    def measures(self) -> bool:
        """Whether points may be placed there. Not on a node that is kept for load: leased whole, it could send none."""
        return self.alive and bool(self.cores or (self.cpus and not self.sends_load))


def address() -> str:
    """Of the cluster that this process is connected to."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def nodes() -> list[Node]:
    """All nodes that the cluster knows, dead ones too. Names are host names, numbered where several share one."""
    import ray

    found = []
    known: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    hosts = Counter(str(told.get("NodeManagerHostname") or told["NodeManagerAddress"]) for told in known)
    for told in known:
        resources: Mapping[str, float] = told.get("Resources") or {}
        host = str(told.get("NodeManagerHostname") or told["NodeManagerAddress"])
        types = [name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")]
        found.append(
            Node(
                id=told["NodeID"],
                name=host if hosts[host] == 1 else f"{host}-{told['NodeID'][:6]}",
                address=str(told["NodeManagerAddress"]),
                alive=bool(told["Alive"]),
                cores=int(resources.get(CORES, 0)),
                cpus=float(resources.get("CPU", 0)),
                head="node:__internal_head__" in resources,
                accelerator=", ".join(types),
                sends_load=bool(resources.get(LOAD_RESOURCE)),
            )
        )
    return found


def pinned(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def ask(node: Node, order: Any, shipment: Any) -> Any:
    """A reference to what `agent.survey` says on a node; takes nothing of it away."""
    import ray

    from neuronbench_ray.place import agent

    survey = ray.remote(num_cpus=0, max_retries=1)(agent.survey)
    return survey.options(scheduling_strategy=pinned(node.id)).remote(order, shipment)


def lease(node: Node, order: Any, shipment: Any) -> Any:
    """An `Agent` on a node that holds all of its NeuronCores and CPUs: nothing else of Ray runs there meanwhile.

    It begins when they are free.
    """
    import ray

    from neuronbench_ray.place import agent

    made = ray.remote(max_restarts=0)(agent.Agent)
    resources = {CORES: node.cores} if node.cores else {}
    return made.options(
        num_cpus=node.cpus, resources=resources, scheduling_strategy=pinned(node.id), max_task_retries=0
    ).remote(order, shipment)


def ready(refs: Sequence[Any], timeout_s: float) -> list[Any]:
    import ray

    return list(ray.wait(list(refs), num_returns=len(refs), timeout=timeout_s)[0]) if refs else []


def value(ref: Any, timeout_s: float | None = None) -> Any:
    import ray

    return ray.get(ref, timeout=timeout_s)


def end(actor: Any) -> None:
    """End an agent's process at once; its guards end what it started."""
    import contextlib

    import ray

    with contextlib.suppress(Exception):  # it may be gone, with its node or with the cluster
        ray.kill(actor, no_restart=True)


def free() -> dict[str, dict[str, float]]:
    """Node → resource → how much of it is not leased."""
    from ray._private.state import available_resources_per_node

    return dict(available_resources_per_node())  # type: ignore[no-untyped-call]


def put(something: Any) -> Any:
    import ray

    return ray.put(something)


def kind_of(error: BaseException) -> str:
    """What an error of a call means: `gone` (the agent is, for good), `away` (it may answer again), `code` (its own
    code raised), or empty: nothing that Ray knows of."""
    from ray import exceptions

    if isinstance(error, (exceptions.ActorUnavailableError, exceptions.GetTimeoutError)):
        return "away"
    if isinstance(error, exceptions.RayTaskError):
        return "code"
    if isinstance(error, exceptions.RayError):
        return "gone"
    return ""


_SAYS_NODE: Final = re.compile(r"its node has died|node .*(?:died|dead)|The actor died because its node", re.IGNORECASE)


def why(error: BaseException) -> tuple[bool, str]:
    """Whether Ray says that the node died, and the line of its error that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    missing = [line for line in lines if "No module named" in line]
    if missing:
        return False, f"cannot run neuronbench: {missing[-1][:300]}; it is to be installed there, with its plugins"
    telling = [line for line in lines if re.search(r"\bdied\b|\bdead\b|exit|killed|terminated|unexpected", line, re.I)]
    line = (telling[1:] or telling or lines or [type(error).__name__])[0]
    return any(_SAYS_NODE.search(one) for one in lines), line[:400]

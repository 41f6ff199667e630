"""A backend without hardware: what it serves, compiles and trains is real in everything but the device.

For tests of lanes and of plugins. In a `conftest.py`:

```python
from neuronbench.testing.fake_backend import register_backends, register_resources  # noqa: F401
```

registers the backend `fake`: its endpoints are the truth server's (timings known to the nanosecond), its compiled
models and trainers the toys of `toy_model` and `toy_trainer`. Everything measured on it is marked `simulated`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from neuronbench.hookspecs import hookimpl
from neuronbench.model import FrozenMap, Json, Point, ResourceSpec
from neuronbench.protocols import (
    Backend,
    BackendInfo,
    BootContext,
    Probe,
    ProviderInfo,
    Stack,
    Unsupported,
    Vocabulary,
)
from neuronbench.serving.openai_server import ServerCommand, boot

if TYPE_CHECKING:
    from neuronbench.serving.server import OpenAIServer

NAME: Final = "fake"
SCENARIO: Final = "plain"


@hookimpl
def register_backends(register: Callable[[BackendInfo], None]) -> None:
    register(
        BackendInfo(name=NAME, title="No hardware", family=NAME, target="neuronbench.testing.fake_backend:FakeBackend")
    )


@hookimpl
def register_resources(register: Callable[[ProviderInfo], None]) -> None:
    for kind, target in (
        ("endpoint", "fake_backend:TruthProvider"),
        ("compiled_model", "toy_model:ToyProvider"),
        ("trainer", "toy_trainer:ToyTrainerProvider"),
    ):
        register(
            ProviderInfo(name=f"{kind}/{NAME}", kind=kind, families=(NAME,), target=f"neuronbench.testing.{target}")
        )


class FakeBackend:
    """`neuronbench.protocols.Backend`; always there, and says of everything that it is simulated."""

    def __init__(self, info: BackendInfo) -> None:
        self.info = info

    def probe(self) -> Probe:
        return Probe(available=True, cores=1, facts=FrozenMap(simulated=True))

    def stack(self, kind: str, settings: Any) -> Stack:
        raise LookupError(f"{self.info.name} needs no stack and has none for {kind!r}")

    def facts(self) -> Mapping[str, Json]:
        return {"fake.version": "1"}

    def failure_rules(self) -> Sequence[Any]:
        return ()


class TruthProvider:
    """Endpoints of the truth server, one to the test of which a benchmark's numbers can be put.

    | parameter | default | meaning |
    |---|---|---|
    | `scenario` | `plain` | what goes wrong: see `python -m neuronbench.testing.truth_server --list-scenarios` |
    | `ttft_ms`, `tpot_ms` | 20, 2 | its timings |
    | `server_args` | [] | more of its command line |
    """

    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

    def spec(self, point: Point, backend: Backend, settings: Any) -> ResourceSpec:
        given: dict[str, Json] = {
            "scenario": point.get("scenario", SCENARIO),
            "ttft_ms": point.get("ttft_ms", 20),
            "tpot_ms": point.get("tpot_ms", 2),
            "server_args": point.get("server_args", []),
        }
        return ResourceSpec(
            kind="endpoint", backend=backend.info.name, provider=self.info.name, settings=FrozenMap(given), cores=1
        )

    def check(self, spec: ResourceSpec, backend: Backend, settings: Any) -> Unsupported | None:
        return None

    def boot(self, spec: ResourceSpec, context: BootContext) -> OpenAIServer:
        given = spec.settings
        argv = [sys.executable, "-m", "neuronbench.testing.truth_server", "--port", "{port}"]
        argv += ["--ttft-ms", str(given["ttft_ms"]), "--tpot-ms", str(given["tpot_ms"]), *given["server_args"]]
        server = ServerCommand(argv=argv, env=dict(os.environ), model_name="truth")
        endpoint = boot(server, spec, context, vocabulary=Vocabulary(size=30000, max_model_len=4096))
        if given["scenario"] != SCENARIO:
            endpoint.model = f"truth:{given['scenario']}"  # what is verified is plain; the load asks for the scenario
        return endpoint

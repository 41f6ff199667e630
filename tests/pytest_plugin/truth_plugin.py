"""A backend whose endpoint is the truth server: put beside a throw-away project's conftest."""

import os
import sys

from neuronbench import Probe, ResourceSpec, Vocabulary
from neuronbench.model import FrozenMap
from neuronbench.serving.openai_server import ServerCommand, boot


class TruthBackend:
    def __init__(self, info):
        self.info = info

    def probe(self):
        return Probe(available=True, cores=1, facts=FrozenMap(simulated=True))

    def stack(self, kind, settings):
        raise LookupError("none")

    def facts(self):
        return {"fake.version": "1"}

    def failure_rules(self):
        return ()


class TruthProvider:
    def __init__(self, info):
        self.info = info

    def spec(self, point, backend, settings):
        given = {"scenario": point.get("scenario", "plain"), "server_args": point.get("server_args", [])}
        return ResourceSpec(
            kind="endpoint", backend=point.backend, provider=self.info.name, settings=FrozenMap(given), cores=1
        )

    def check(self, spec, backend, settings):
        return None

    def boot(self, spec, context):
        scenario = spec.settings["scenario"]
        model = "truth" if scenario == "plain" else f"truth:{scenario}"
        argv = [sys.executable, "-m", "neuronbench.testing.truth_server", "--port", "{port}"]
        argv += ["--ttft-ms", "20", "--tpot-ms", "2", *spec.settings["server_args"]]
        server = ServerCommand(argv=argv, env=dict(os.environ), model_name="truth", health="/health")
        endpoint = boot(server, spec, context, vocabulary=Vocabulary(size=30000, max_model_len=4096))
        endpoint.model = model  # the verified generation is a plain one; the load asks for the scenario
        return endpoint

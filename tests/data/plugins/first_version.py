"""A plugin written for version 1.0 of the hooks, using all of them. Not to be changed: old plugins have to load."""

from neuronbench import (
    BackendInfo,
    Delivery,
    LaneInfo,
    Metric,
    Probe,
    ProviderInfo,
    ResourceSpec,
    SamplerSpec,
    SinkInfo,
    hookimpl,
)
from neuronbench.model import FrozenMap

NEURONBENCH_API = "1.0"
SEEN = []


class Abacus:
    def __init__(self, info):
        self.info = info

    def probe(self):
        return Probe(available=True, cores=1)

    def stack(self, kind, settings):
        raise LookupError(f"an abacus has no stack for {kind}")

    def facts(self):
        return {"rows": 10}

    def failure_rules(self):
        return ()


class Served:
    def __init__(self, spec):
        self.spec, self.facts, self.boot_metrics, self.logs = spec, {}, (), ()
        self.base_url, self.model = "http://127.0.0.1:9", "m"
        self.vocabulary = self.metrics_url = self.api_key = None

    def alive(self):
        return True

    def pids(self):
        return ()

    def diagnose(self, phase):
        return None

    def stop(self):
        pass


class Provider:
    def __init__(self, info):
        self.info = info

    def spec(self, point, backend, settings):
        return ResourceSpec(kind="endpoint", backend=backend.info.name, provider=self.info.name, settings=FrozenMap())

    def check(self, spec, backend, settings):
        return None

    def boot(self, spec, context):
        return Served(spec)


class Wall:
    name = "wall"

    def __init__(self, settings):
        pass

    def write(self, receipt):
        return Delivery(state="delivered", reference="chalk")

    def close(self):
        pass


@hookimpl
def register_backends(register):
    register(BackendInfo(name="abacus", title="An abacus", target="first_version:Abacus", family="wood"))


@hookimpl
def register_lanes(register):
    register(
        LaneInfo(
            name="counting",
            title="Counting",
            headline=("beads_moved_beads",),
            needs=("endpoint",),
            definitions={"beads_moved": ("beads", "higher", "beads that were moved")},
        )
    )


@hookimpl
def register_resources(register):
    register(ProviderInfo(name="endpoint/abacus", kind="endpoint", families=("wood",), target="first_version:Provider"))


@hookimpl
def register_sinks(register):
    register(SinkInfo(name="wall", title="A wall", target="first_version:Wall"))


@hookimpl
def register_commands(cli):
    @cli.command("count")
    def count() -> None:
        print(10)


@hookimpl
def configured(session):
    SEEN.append("configured")


@hookimpl
def describe_environment(backend):
    return {"abacus.rows": 10}


@hookimpl
def check_point(point, backend):
    return None


@hookimpl
def boot(spec):
    return None


@hookimpl(wrapper=True)
def measuring(run):
    return (yield)


@hookimpl
def telemetry_samplers(point, resource):
    return [SamplerSpec(name="beads", target="first_version:Beads", options={"row": 1}, period_s=1.0)]


@hookimpl
def finish_record(record):
    return [Metric(id="beads_moved", value=3, unit="beads", better="higher", n=1)]


@hookimpl
def point_recorded(record, receipt):
    SEEN.append("recorded")


@hookimpl
def comparison_policy(metric, lane):
    return {"band": 0.5}


@hookimpl
def report_sections(records):
    return [("Counting", f"{len(records)} records")]


@hookimpl
def session_finished(status):
    SEEN.append("finished")

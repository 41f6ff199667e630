"""What is relied on in a provider, and in what it boots."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from neuronbench.model import FrozenMap, Json, Point, ResourceSpec
from neuronbench.plugins import Plugins
from neuronbench.processes import spawn
from neuronbench.protocols import (
    BootContext,
    BootError,
    CompiledModel,
    Endpoint,
    Provider,
    Resource,
    Trainer,
    Unsupported,
)
from neuronbench.testing.contracts.base import PluginContract

KINDS: Mapping[str, Any] = {"endpoint": Endpoint, "compiled_model": CompiledModel, "trainer": Trainer}


class ProviderContract(PluginContract):
    """`provider` and `backend`: names they are registered under; `params`: those of a point that it can boot.

    `impossible`: parameters that it must refuse before anything boots; `broken`: such that the boot fails. Tests that
    boot are skipped, with the reason, where the backend is not available.
    """

    provider: ClassVar[str]
    backend: ClassVar[str]
    params: ClassVar[Mapping[str, Json]] = {}
    impossible: ClassVar[Mapping[str, Json] | None] = None
    broken: ClassVar[Mapping[str, Json] | None] = None
    boot_deadline_s: ClassVar[float] = 300.0

    @pytest.fixture
    def made(self, plugins: Plugins) -> Provider:
        return plugins.provider(self.provider)

    @pytest.fixture
    def boot(self, plugins: Plugins, made: Provider, settings: Any, tmp_path: Path) -> Iterator[Any]:
        """`boot(params)`: the live resource. Whatever is left of it is stopped at the end."""
        backend = plugins.backend(self.backend)
        probe = backend.probe()
        if not probe.available:
            pytest.skip(f"{self.backend}: {probe.reason}")
        booted: list[Resource] = []

        def start(params: Mapping[str, Json]) -> Resource:
            folder = tmp_path / f"boot-{len(booted)}"
            folder.mkdir()
            context = BootContext(
                backend=backend, settings=settings, folder=folder, deadline_s=self.boot_deadline_s,
                progress=lambda text: None, spawn=partial(spawn, pid_dir=tmp_path / "pids"),
            )  # fmt: skip
            spec = made.spec(self.point(params), backend, settings)
            refused = made.check(spec, backend, settings)
            if refused is not None:
                pytest.skip(f"{self.provider}: {refused.reason}")
            booted.append(made.boot(spec, context))
            return booted[-1]

        yield start
        for resource in booted:
            resource.stop()

    def point(self, params: Mapping[str, Json]) -> Point:
        """A point with these parameters and an axis that is no provider's business."""
        return Point(
            benchmark="contract", lane="custom", backend=self.backend,
            params=FrozenMap({"concurrency": 4, **params}), axes=("concurrency",), id="contract",
        )  # fmt: skip

    def spec(self, plugins: Plugins, made: Provider, settings: Any, **more: Json) -> ResourceSpec:
        return made.spec(self.point({**self.params, **more}), plugins.backend(self.backend), settings)

    def test_it_is_a_provider(self, plugins: Plugins, made: Provider) -> None:
        """The pool calls these methods, and no others."""
        assert isinstance(made, Provider)
        info = plugins.providers[self.provider]
        assert made.info is info
        assert plugins.backends[self.backend].family in info.families
        assert info.name.startswith(f"{info.kind}/"), "a provider is called kind/what-it-is"

    def test_equal_points_have_equal_specs(self, plugins: Plugins, made: Provider, settings: Any) -> None:
        """One boot serves all points whose specs are equal: a spec that varies by itself boots for every point."""
        one, two = (self.spec(plugins, made, settings) for _ in range(2))
        assert one == two
        assert one.key == two.key
        assert (one.backend, one.provider) == (self.backend, self.provider)
        assert one.kind == plugins.providers[self.provider].kind

    def test_axes_of_the_load_are_no_part_of_a_spec(self, plugins: Plugins, made: Provider, settings: Any) -> None:
        """Points that differ in their load only share a server."""
        loads = [self.spec(plugins, made, settings, concurrency=value).key for value in (1, 64)]
        assert loads[0] == loads[1]

    def test_what_it_cannot_do_is_refused_before_anything_boots(
        self, plugins: Plugins, made: Provider, settings: Any
    ) -> None:
        """A refusal costs milliseconds; the same from a log costs a boot."""
        if self.impossible is None:
            pytest.skip("`impossible` names no parameters")
        backend = plugins.backend(self.backend)
        spec = made.spec(self.point({**self.params, **self.impossible}), backend, settings)
        verdict = made.check(spec, backend, settings)
        assert isinstance(verdict, Unsupported), f"{dict(self.impossible)} was not refused"
        assert len(verdict.reason.split()) >= 3, f"the reason tells too little: {verdict.reason!r}"

    def test_what_it_boots_is_what_its_kind_says(self, boot: Any) -> None:
        """Benchmarks get it through a fixture and use it by its protocol."""
        resource = boot(self.params)
        wanted: Any = KINDS.get(resource.spec.kind, Resource)
        assert isinstance(resource, wanted)
        assert resource.alive()
        FrozenMap(resource.facts)  # JSON
        keys = [each.key for each in resource.boot_metrics]
        assert len(keys) == len(set(keys))
        assert all(path.exists() for path in resource.logs)
        assert resource.diagnose("boot") is None or not resource.alive()

    def test_stopping_ends_all_of_it_and_may_be_asked_twice(self, boot: Any) -> None:
        """The next point gets the cores: a process that is left has them still."""
        resource = boot(self.params)
        started = [psutil.Process(pid) for pid in resource.pids()]
        family = [*started, *(child for process in started for child in process.children(recursive=True))]
        resource.stop()
        resource.stop()
        assert not resource.alive()
        _, left = psutil.wait_procs(family, timeout=5)
        assert not left, f"still there after stop: {left}"

    def test_a_boot_that_fails_says_why(self, boot: Any) -> None:
        """A failure is a result: class, causal line, remedy; and no process of it is left."""
        if self.broken is None:
            pytest.skip("`broken` names no parameters")
        before = {process.pid for process in psutil.Process().children(recursive=True)}
        with pytest.raises(BootError) as caught:
            boot({**self.params, **self.broken})
        failure = caught.value.failure
        assert failure.kind
        assert failure.phase == "boot"
        assert failure.causal_line or failure.message
        until = time.monotonic() + 5.0
        while _children() - before and time.monotonic() < until:
            time.sleep(0.05)
        assert not _children() - before


def _children() -> set[int]:
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found

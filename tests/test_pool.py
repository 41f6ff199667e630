"""The pool: who gets what, what goes when, and that nothing is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from neuronbench.model import Failure, FrozenMap, Json, Metric, ResourceSpec
from neuronbench.pool import BootNotRetried, Pool, PoolError
from neuronbench.protocols import BootError, Resource


def spec(name: str, cores: int = 1, backend: str = "trn2") -> ResourceSpec:
    return ResourceSpec(
        kind="endpoint", backend=backend, provider="endpoint/x", settings=FrozenMap(model=name), cores=cores
    )


class Thing:
    """A resource that writes down what happens to it."""

    def __init__(self, spec: ResourceSpec, events: list[str]) -> None:
        self.spec, self.events = spec, events
        self.facts: Mapping[str, Json] = {}
        self.boot_metrics: Sequence[Metric] = ()
        self.logs: Sequence[Path] = ()
        self.is_alive: bool | Exception = True
        self.stop_raises: BaseException | None = None

    def alive(self) -> bool:
        if isinstance(self.is_alive, Exception):
            raise self.is_alive
        return self.is_alive

    def pids(self) -> Sequence[int]:
        return ()

    def diagnose(self, phase: str) -> Failure | None:
        return None

    def stop(self) -> None:
        self.events.append(f"stop {self.spec.settings['model']}")
        if self.stop_raises is not None:
            raised, self.stop_raises = self.stop_raises, None  # once
            raise raised


class World:
    def __init__(self, capacity: int = 4) -> None:
        self.events: list[str] = []
        self.told: list[tuple[str, BaseException | None]] = []
        self.boot_raises: dict[str, BaseException] = {}
        self.pool = Pool(self.boot, lambda backend: capacity, self.on_stop)

    def on_stop(self, resource: Resource, error: BaseException | None) -> None:
        self.told.append((resource.spec.settings["model"], error))

    def boot(self, spec: ResourceSpec) -> Resource:
        name = spec.settings["model"]
        self.events.append(f"boot {name}")
        if name in self.boot_raises:
            raise self.boot_raises[name]
        return Thing(spec, self.events)

    def use(self, wanted: ResourceSpec) -> Thing:
        with self.pool.lease(wanted) as lease:
            assert isinstance(lease.resource, Thing)
            return lease.resource


def test_an_equal_spec_gets_the_same_live_resource() -> None:
    world = World()
    with world.pool.lease(spec("a")) as first:
        assert (first.reused, first.reboot_of) == (False, None)
    with world.pool.lease(spec("a")) as second:
        assert second.resource is first.resource
        assert (second.reused, second.reboot_of) == (True, None)
    assert world.events == ["boot a"]


@pytest.mark.parametrize("state", [False, RuntimeError("no answer")])
def test_a_dead_resource_is_booted_anew_and_the_lease_says_so(state: bool | Exception) -> None:
    world = World()
    old = world.use(spec("a"))
    old.is_alive = state
    with world.pool.lease(spec("a")) as lease:
        assert lease.resource is not old
        assert not lease.reused
        assert lease.reboot_of is old
    assert world.events == ["boot a", "stop a", "boot a"]


def test_room_is_made_by_the_least_recently_used() -> None:
    world = World(capacity=3)
    for name in ("a", "b", "c", "a"):
        world.use(spec(name))
    world.use(spec("d"))
    assert world.events == ["boot a", "boot b", "boot c", "stop b", "boot d"]
    assert [resource.spec.settings["model"] for resource in world.pool.live] == ["c", "a", "d"]
    world.use(spec("e", cores=3))
    assert world.events[5:] == ["stop c", "stop a", "stop d", "boot e"]


def test_a_resource_without_cores_and_another_backend_make_no_room() -> None:
    world = World(capacity=2)
    world.use(spec("database", cores=0))
    world.use(spec("other", cores=2, backend="cpu"))
    world.use(spec("a", cores=2))
    world.use(spec("b", cores=2))
    assert world.events == ["boot database", "boot other", "boot a", "stop a", "boot b"]


def test_two_at_once_and_an_idle_one_goes_for_them() -> None:
    world = World(capacity=2)
    world.use(spec("idle"))
    with world.pool.lease(spec("a")) as a, world.pool.lease(spec("b")) as b:
        assert a.resource is not b.resource
        assert world.events == ["boot idle", "boot a", "stop idle", "boot b"]
        with pytest.raises(PoolError, match=r"wants 1 of the 2 cores of trn2 while 2 are leased, by endpoint-\w+ "):
            world.pool.lease(spec("c"))
    world.use(spec("c"))  # now they are idle
    assert world.events[4:] == ["stop b", "boot c"]


def test_more_cores_than_there_are_evicts_nothing() -> None:
    world = World(capacity=2)
    world.use(spec("a", cores=2))
    with pytest.raises(PoolError, match="wants 3 cores of trn2, which has 2; lower its parallelism"):
        world.pool.lease(spec("b", cores=3))
    with world.pool.lease(spec("a", cores=2)), pytest.raises(PoolError, match="while 2 are leased"):
        world.pool.lease(spec("c"))
    assert world.events == ["boot a"]


def test_a_lease_is_exclusive() -> None:
    world = World()
    lease = world.pool.lease(spec("a"))
    with pytest.raises(PoolError, match="leased already, and a lease is exclusive"):
        world.pool.lease(spec("a"))
    lease.release()
    with world.pool.lease(spec("a")) as again:
        lease.release()  # an old lease gives back nothing of the new one's
        with pytest.raises(PoolError, match="leased already"):
            world.pool.lease(spec("a"))
        assert again.reused


def test_a_lease_ends_with_its_block_whatever_happens() -> None:
    world = World()

    def interrupted() -> None:
        with world.pool.lease(spec("a")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert world.pool.lease(spec("a")).reused


def boot_error() -> BootError:
    failure = Failure(kind="host_oom", phase="boot", message="killed while loading", causal_line="Out of memory")
    return BootError(failure, facts={"boot_receipt": "s1/boot-1"})


def test_a_failed_boot_is_not_tried_again() -> None:
    world = World()
    world.boot_raises["a"] = first = boot_error()
    with pytest.raises(BootError) as caught:
        world.pool.lease(spec("a"))
    assert caught.value is first
    for _ in range(2):
        with pytest.raises(BootNotRetried) as again:
            world.pool.lease(spec("a"))
        assert again.value.first is first
        assert again.value.boot_receipt == "s1/boot-1"
        assert again.value.failure.kind == "host_oom"
        assert "recorded in s1/boot-1; it was not tried again" in again.value.failure.message
        assert "recorded in s1/boot-1" in again.value.__notes__[0]
        assert again.value.metrics == []
    assert world.events == ["boot a"]
    world.use(spec("b"))  # others are not concerned

    with pytest.raises(BootError):
        world.pool.lease(spec("a"), retry=True)
    del world.boot_raises["a"]
    with world.pool.lease(spec("a"), retry=True) as lease:
        assert not lease.reused
    assert world.use(spec("a"))  # a boot that went well forgets the failure


def test_another_error_of_boot_is_not_remembered() -> None:
    world = World()
    for raised in (KeyboardInterrupt(), ZeroDivisionError()):
        world.boot_raises["a"] = raised
        with pytest.raises(type(raised)):
            world.pool.lease(spec("a"))
        assert world.pool.live == ()
    del world.boot_raises["a"]
    with world.pool.lease(spec("a")) as lease:
        assert not lease.reused
    assert world.pool.close() == []
    assert world.events == ["boot a", "boot a", "boot a", "stop a"]


def test_release_unless() -> None:
    world = World()
    for name in ("a", "b", "c"):
        world.use(spec(name))
    lease = world.pool.lease(spec("d"))
    assert world.pool.release_unless(spec("b").key) == []
    assert world.events[4:] == ["stop a", "stop c"]
    assert world.pool.release_unless(None) == []
    assert world.events[6:] == ["stop b"]
    lease.release()
    world.use(spec("e"))
    assert world.pool.release_unless(spec("d").key, spec("e").key) == []
    assert world.events[7:] == ["boot e"]


def test_release_unless_attempts_all() -> None:
    world = World()
    problem = RuntimeError("stuck")
    world.use(spec("a")).stop_raises = problem
    world.use(spec("b"))
    assert world.pool.release_unless(None) == [problem]
    assert world.told == [("a", problem), ("b", None)]


def test_what_does_not_stop_still_holds_its_cores() -> None:
    world = World(capacity=2)
    thing = world.use(spec("a", cores=2))
    thing.stop_raises = RuntimeError("driver hangs")
    with pytest.raises(PoolError, match=r"has to go first and could not be stopped \(RuntimeError\('driver hangs'\)\)"):
        world.pool.lease(spec("b"))
    assert world.events == ["boot a", "stop a"]
    with world.pool.lease(spec("b")) as lease:  # the next one tries again, and this time it goes
        assert not lease.reused
    assert world.events == ["boot a", "stop a", "stop a", "boot b"]


def test_what_did_not_stop_is_never_leased_again() -> None:
    world = World()
    thing = world.use(spec("a"))
    thing.stop_raises = RuntimeError("half stopped")
    world.pool.release_unless(None)
    with world.pool.lease(spec("a")) as lease:
        assert lease.reboot_of is thing
    assert world.events == ["boot a", "stop a", "stop a", "boot a"]


def test_close_stops_everything_whatever_is_raised() -> None:
    world = World()
    problem = RuntimeError("stuck")
    for name in ("a", "b", "c"):
        world.use(spec(name)).stop_raises = problem if name == "b" else None
    world.pool.lease(spec("d"))  # leased: it goes too
    assert world.pool.close() == [problem]
    assert world.events[4:] == ["stop a", "stop b", "stop c", "stop d"]
    assert world.told == [("a", None), ("b", problem), ("c", None), ("d", None)]
    assert world.pool.close() == []
    assert world.events[8:] == ["stop b"]  # what was left is tried again
    assert world.pool.close() == []
    assert len(world.events) == 9
    with pytest.raises(PoolError, match="closed"):
        world.pool.lease(spec("a"))


def test_an_interrupted_close_goes_on_and_raises_at_the_end() -> None:
    world = World()
    world.use(spec("a")).stop_raises = KeyboardInterrupt()
    world.use(spec("b"))
    with pytest.raises(KeyboardInterrupt):
        world.pool.close()
    assert world.events[2:] == ["stop a", "stop a", "stop b"]
    assert world.pool.live == ()


def test_an_interrupt_while_making_room_keeps_what_was_not_stopped() -> None:
    world = World(capacity=1)
    world.use(spec("a")).stop_raises = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        world.pool.lease(spec("b"))
    assert world.pool.close() == []
    assert world.events == ["boot a", "stop a", "stop a"]


def test_a_failing_on_stop_does_not_keep_the_rest_alive() -> None:
    events: list[str] = []

    def on_stop(resource: Resource, error: BaseException | None) -> None:
        raise ValueError("cannot record")

    make: Callable[[ResourceSpec], Resource] = lambda wanted: Thing(wanted, events)  # noqa: E731
    pool = Pool(make, lambda backend: 4, on_stop)
    pool.lease(spec("a"))
    pool.lease(spec("b"))
    assert [str(error) for error in pool.close()] == ["cannot record"] * 2
    assert events == ["stop a", "stop b"]

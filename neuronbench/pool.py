"""Exclusive leases of expensive resources.

An accelerator's cores belong to one process at a time, so a resource that is no longer needed must go before another
boots. The pool keeps what was booted for later leases of an equal spec, makes room by ending the least recently used
idle resources, and does not boot a spec again that failed to boot. It starts no thread and boots nothing by itself:
`boot` is given to it, and so is what there is to share.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from neuronbench.model import ResourceSpec
from neuronbench.protocols import BootError, Resource


class PoolError(RuntimeError):
    """A lease cannot be given: not enough cores, the spec is leased already, or what is in the way will not stop."""


class BootNotRetried(BootError):
    """The spec failed to boot before in this session; it was not tried again."""

    def __init__(self, first: BootError, spec: ResourceSpec) -> None:
        self.first = first
        self.boot_receipt = str(first.facts.get("boot_receipt", ""))
        where = f", recorded in {self.boot_receipt}" if self.boot_receipt else ""
        note = f"{spec.id} failed to boot earlier in this session{where}; it was not tried again"
        failure = dataclasses.replace(first.failure, message=f"{first.failure.message} ({note})")
        super().__init__(failure, facts=first.facts)
        self.add_note(note)


@dataclass(eq=False)
class _Entry:
    """A resource the pool holds."""

    resource: Resource
    spec: ResourceSpec
    lease: Lease | None = None
    used: int = 0
    """Position of its last use in the pool's own count; the lowest is evicted first."""
    stuck: BaseException | None = None
    """Why it could not be stopped. It still counts as holding its cores, and is never leased again."""


class Lease:
    """Exclusive use of a resource until `release`, or the end of the `with` block. The resource then stays, idle."""

    def __init__(self, pool: Pool, entry: _Entry, *, reused: bool, reboot_of: Resource | None) -> None:
        self._pool, self._entry = pool, entry
        self.resource: Resource = entry.resource
        self.spec: ResourceSpec = entry.spec
        self.reused: bool = reused
        """Whether it was live before this lease."""
        self.reboot_of: Resource | None = reboot_of
        """The resource of an equal spec that was found dead and is replaced by this one: its logs tell why."""

    def release(self) -> None:
        """Give it back; idempotent."""
        if self._entry.lease is self:
            self._entry.lease = None
            self._pool._touch(self._entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Pool:
    """Holds the live resources of a session.

    `boot(spec)` makes a resource or raises `BootError` (put the receipt of the failed boot into its
    `facts["boot_receipt"]` to have it cited later). `capacity(backend)` is the number of cores that the backend of that
    name has. `on_stop(resource, error)` is told of each stop, with what `stop` raised or None; it must not raise.
    """

    def __init__(
        self,
        boot: Callable[[ResourceSpec], Resource],
        capacity: Callable[[str], int],
        on_stop: Callable[[Resource, BaseException | None], None] | None = None,
    ) -> None:
        self._boot, self._capacity, self._on_stop = boot, capacity, on_stop
        self._entries: dict[str, _Entry] = {}
        self._failed: dict[str, BootError] = {}
        self._count = 0
        self._closed = False

    @property
    def live(self) -> tuple[Resource, ...]:
        """What the pool holds, least recently used first."""
        return tuple(entry.resource for entry in self._by_use())

    def lease(self, spec: ResourceSpec, *, retry: bool = False) -> Lease:
        """Exclusive use of the resource that `spec` describes, booted if need be.

        A live resource of an equal spec is used again. A dead one is stopped and booted anew, which the lease tells.
        Otherwise the least recently used idle resources of the same backend are stopped until the cores suffice. Leases
        of different specs may be held at once as far as the cores go.

        Raises `PoolError` when the spec is leased already or the cores cannot suffice beside what is leased (then
        nothing was evicted), and when a resource that is in the way cannot be stopped; `BootError` when the boot
        fails; `BootNotRetried` when it failed before and not `retry`.
        """
        if self._closed:
            raise PoolError(f"{spec.id}: the session is over and its pool is closed; nothing can be leased any more")
        entry = self._entries.get(spec.key)
        if entry is not None and entry.lease is not None:
            raise PoolError(
                f"{spec.id} is leased already, and a lease is exclusive: release it first, or make the two specs differ"
            )
        dead: Resource | None = None
        if entry is not None:
            if entry.stuck is None and _alive(entry.resource):
                return self._grant(entry, reused=True)
            dead = entry.resource
        elif spec.key in self._failed and not retry:
            raise BootNotRetried(self._failed[spec.key], spec) from None
        self._check_room(spec)
        if entry is not None:
            self._evict(entry, spec)
        self._make_room(spec)
        try:
            resource = self._boot(spec)
        except BootError as error:
            self._failed[spec.key] = error
            raise
        self._failed.pop(spec.key, None)
        entry = self._entries[spec.key] = _Entry(resource, spec)
        return self._grant(entry, reused=False, reboot_of=dead)

    def release_unless(self, *spec_keys: str | None, kinds: Collection[str] = ()) -> list[Exception]:
        """Stop the idle resources whose key is none of these: the next item needs others, or none.

        Those of `kinds` stay, too: the next item leases such by itself, and which is not known before; what is in the
        way of its leases is evicted then. Every one is attempted; returns what went wrong, which `on_stop` was told as
        well.
        """
        idle = [entry for entry in self._by_use() if entry.lease is None]
        return self._stop_all([e for e in idle if e.spec.key not in spec_keys and e.spec.kind not in kinds])

    def close(self) -> list[Exception]:
        """Stop everything, leased or not; no lease is given afterwards. Idempotent.

        Every resource is attempted, also when one raises or the user interrupts; a `KeyboardInterrupt` (or
        `SystemExit`) is raised again once all were attempted. Returns the exceptions. What could not be stopped is
        kept, so that closing again tries it again.
        """
        self._closed = True
        return self._stop_all(self._by_use())

    # -- parts

    def _grant(self, entry: _Entry, *, reused: bool, reboot_of: Resource | None = None) -> Lease:
        self._touch(entry)
        entry.lease = Lease(self, entry, reused=reused, reboot_of=reboot_of)
        return entry.lease

    def _touch(self, entry: _Entry) -> None:
        self._count += 1
        entry.used = self._count

    def _by_use(self) -> list[_Entry]:
        return sorted(self._entries.values(), key=lambda entry: entry.used)

    def _held(self, backend: str) -> list[_Entry]:
        return [entry for entry in self._by_use() if entry.spec.backend == backend]

    def _check_room(self, spec: ResourceSpec) -> None:
        """Raise unless evicting idle resources can make room."""
        capacity = self._capacity(spec.backend)
        if spec.cores > capacity:
            raise PoolError(
                f"{spec.id} wants {spec.cores} cores of {spec.backend}, which has {capacity}; "
                f"lower its parallelism, or run it on a machine that has them"
            )
        leased = [entry for entry in self._held(spec.backend) if entry.lease is not None]
        taken = sum(entry.spec.cores for entry in leased)
        if taken + spec.cores > capacity:
            names = ", ".join(f"{entry.spec.id} ({entry.spec.cores})" for entry in leased)
            raise PoolError(
                f"{spec.id} wants {spec.cores} of the {capacity} cores of {spec.backend} while {taken} are leased, "
                f"by {names}; what is used at the same time has to fit together"
            )

    def _make_room(self, spec: ResourceSpec) -> None:
        capacity = self._capacity(spec.backend)
        for entry in self._held(spec.backend):
            if sum(held.spec.cores for held in self._held(spec.backend)) + spec.cores <= capacity:
                return
            if entry.lease is None and entry.spec.cores:
                self._evict(entry, spec)

    def _evict(self, entry: _Entry, wanted: ResourceSpec) -> None:
        error = self._stop(entry)
        if error is not None:
            raise PoolError(
                f"{wanted.id} cannot boot: {entry.spec.id} has to go first and could not be stopped ({error!r}), "
                f"so its cores may still be taken; `neuronbench reap` ends what is left when this session is over"
            ) from error

    def _stop(self, entry: _Entry) -> Exception | None:
        """Stop it and forget it; what `stop` raised makes it stuck and is returned. Interrupts go through."""
        error: Exception | None = None
        try:
            entry.resource.stop()
        except BaseException as raised:
            entry.stuck = raised
            self._tell(entry.resource, raised)
            if not isinstance(raised, Exception):
                raise
            error = raised
        else:
            del self._entries[entry.spec.key]
            self._tell(entry.resource, None)
        return error

    def _tell(self, resource: Resource, error: BaseException | None) -> None:
        if self._on_stop is not None:
            self._on_stop(resource, error)

    def _stop_all(self, entries: list[_Entry]) -> list[Exception]:
        errors: list[Exception] = []
        interrupt: BaseException | None = None
        for entry in entries:
            try:
                error = self._stop(entry)
            except Exception as raised:  # of on_stop: everything else still has to be stopped
                error = raised
            except BaseException as raised:
                interrupt = raised
                with contextlib.suppress(Exception):  # it was told already; a second interrupt ends the matter
                    entry.resource.stop()
                    self._entries.pop(entry.spec.key, None)
                continue
            if error is not None:
                errors.append(error)
        if interrupt is not None:
            raise interrupt
        return errors


def _alive(resource: Resource) -> bool:
    try:
        return resource.alive()
    except Exception:
        return False  # it cannot even answer: it is stopped and booted anew

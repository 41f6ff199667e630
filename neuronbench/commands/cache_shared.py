"""The parts of `neuronbench cache` that some caches have: locks that nobody holds, entries shared between hosts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from neuronbench.commands import host

if TYPE_CHECKING:
    from neuronbench.caches import Shared
    from neuronbench.protocols import Cache
    from neuronbench.weights.entries import EntryStore

Store = Annotated[str, typer.Argument(metavar="STORE", help="s3://BUCKET/PREFIX, or a folder.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Scopes = Annotated[
    list[str] | None,
    typer.Option("--scope", metavar="SCOPE", help="Instead of this host's: as `push` says them. Repeatable."),
]


def clean_locks(context: typer.Context, dry_run: DryRun = False) -> None:
    """Take away lock files of compile caches whose owner has ended; never one that somebody holds, or may hold.

    A compiler that was killed leaves its lock, and the next one waits for it. Whether anybody holds one is asked of the
    operating system and of the processes here; a lock of another host, or on a file system of the network, stays.
    """
    from neuronbench.caches import Locked, counted, said_age

    taken, left = 0, 0
    for cache in _caches(context):
        if not isinstance(cache, Locked):
            continue
        for lock in cache.locks():
            label = f"{lock.path} ({said_age(lock.age_s)} old)"
            if lock.state != "stale":
                left += 1
                host.say(f"left {label}: {lock.why}")
            elif dry_run:
                taken += 1
                host.say(f"would remove {label}: {lock.why}")
            elif cache.unlock(lock):
                taken += 1
                host.say(f"removed {label}: {lock.why}")
            else:
                left += 1
                host.say(f"left {label}: a process has begun to hold it, or removed it")
    done = "would be removed" if dry_run else "removed"
    host.say(f"{counted(taken, 'lock', 'locks')} {done}, {left} left")


def push(context: typer.Context, store: Store, dry_run: DryRun = False) -> None:
    """Send what was compiled here to a store, from where other hosts pull it.

    By digest, never over what is there, by version of the compiler and generation of cores; what failed or is
    unfinished is not sent. Doing it again sends only what is missing.
    """
    from neuronbench.caches import counted, said_size

    counts = {"sent": 0, "there": 0, "other": 0, "left": 0}
    moved = 0
    with _opened(context, store) as (place, say):
        for cache in _shared(context):
            for entry in cache.entries():
                label = f"{cache.name}/{entry.key}"
                try:
                    if entry.in_use:
                        raise ValueError("a process is at work on it")
                    scope = cache.scope(entry.key)
                except ValueError as error:
                    counts["left"] += 1
                    _said(say, f"left {label}: {error}")
                    continue
                if dry_run:
                    counts["sent"] += 1
                    _said(say, f"would send {label} as {scope}, {said_size(entry.size_bytes)}")
                    continue
                say(f"sending {label}")
                done, size = place.put(scope, entry.key, cache.files(entry.key))
                counts[done] += 1
                moved += size
                if done == "sent":
                    _said(say, f"sent {label} as {scope}, {said_size(entry.size_bytes)}")
                elif done == "other":
                    _said(say, f"left {label}: the store has another of that key, made elsewhere; it stays")
    words = "would be sent" if dry_run else f"sent ({said_size(moved)})"
    host.say(
        f"{counted(counts['sent'], 'entry', 'entries')} {words}, {counts['there']} there already, "
        f"{counts['other']} other than those there, {counts['left']} left"
    )


def pull(context: typer.Context, store: Store, scope: Scopes = None, dry_run: DryRun = False) -> None:
    """Get from a store what was compiled elsewhere for this host's compiler and cores.

    Every byte is checked; an entry appears whole or not at all, and nothing that is here is touched. Doing it again
    goes on where it was cut off.
    """
    from neuronbench.caches import counted, said_size

    count, here, size = 0, 0, 0
    with _opened(context, store) as (place, say):
        caches = _shared(context)
        asked = {cache.name: [each for each in scope or () if each.startswith(f"{cache.name}/")] for cache in caches}
        wanted = {cache.name: asked[cache.name] if scope else list(cache.scopes()) for cache in caches}
        _explain(place, scope, wanted)
        for cache in caches:
            for each in wanted[cache.name]:
                for entry in place.entries(each):
                    label = f"{cache.name}/{entry.key}"
                    if cache.files(entry.key):
                        here += 1
                        wrong = cache.damage(entry.key)
                        if wrong:
                            _said(say, f"left {label}: {wrong}; to have the store's: neuronbench cache prune, pull")
                        continue
                    count, size = count + 1, size + entry.size_bytes
                    if dry_run:
                        _said(say, f"would get {label}, {said_size(entry.size_bytes)}")
                        continue
                    say(f"getting {label}")
                    work = cache.workshop(entry.key)
                    shutil.rmtree(work, ignore_errors=True)
                    try:
                        place.fetch(entry, work)
                        if cache.install(entry.key, work):
                            _said(say, f"got {label}, {said_size(entry.size_bytes)}")
                        else:
                            count, here = count - 1, here + 1
                    finally:
                        shutil.rmtree(work, ignore_errors=True)
    words = "would be fetched" if dry_run else "fetched"
    host.say(f"{counted(count, 'entry', 'entries')} {words} ({said_size(size)}), {here} here already")


def _explain(place: EntryStore, scope: Sequence[str] | None, wanted: dict[str, list[str]]) -> None:
    """Say so where nothing can fit, and what the store has instead."""
    there = place.scopes()
    if {each for scopes in wanted.values() for each in scopes} & set(there):
        return
    what = f"none of {', '.join(scope)}" if scope else "nothing for this host's compiler and cores"
    mine = sorted({each for scopes in wanted.values() for each in scopes})
    host.say(f"the store has {what}" + (f" ({', '.join(mine)})" if mine and not scope else ""))
    host.say(f"it has: {', '.join(there)}" if there else "it has no entries at all")


def _said(say: host.ProgressLine, text: str) -> None:
    say.done()
    host.say(text)


def _caches(context: typer.Context) -> list[Cache]:
    from neuronbench.commands.cache import caches_of

    return caches_of(host.of(context))


def _shared(context: typer.Context) -> list[Shared]:
    from neuronbench.caches import Shared

    found: list[Shared] = [cache for cache in _caches(context) if isinstance(cache, Shared)]
    if not found:
        raise host.CommandError(
            "no cache here can be shared", remedy="compile caches of Neuron are: install its plugin (plugins/neuron)"
        )
    return found


@contextmanager
def _opened(context: typer.Context, reference: str) -> Iterator[tuple[EntryStore, host.ProgressLine]]:
    from neuronbench.weights.blobs import blobs
    from neuronbench.weights.entries import EntryStore
    from neuronbench.weights.manifest import StoreError

    progress = host.ProgressLine()
    try:
        yield EntryStore(blobs(reference, root=host.of(context).settings.root)), progress
    except StoreError as error:
        progress.done()
        raise host.CommandError(error.message, remedy=error.remedy) from error
    finally:
        progress.done()

"""The parts of `neuronbench cache` that some caches have: locks that nobody holds, entries shared between hosts."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from neuronbench.commands import host
from neuronbench.words import counted

if TYPE_CHECKING:
    from neuronbench.caches import Shared
    from neuronbench.protocols import Cache, CacheEntry
    from neuronbench.weights.entries import Entry, EntryStore
    from neuronbench.weights.meter import Meter

Store = Annotated[str, typer.Argument(metavar="STORE", help="s3://BUCKET/PREFIX, or a folder.")]
Job = TypeVar("Job")
Done = TypeVar("Done")
_LARGE_BYTES: Final = 16 << 20
_AT_ONCE: Final = 8
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
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
    from neuronbench.caches import Locked, said_age

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


def push(context: typer.Context, store: Store, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Send what was compiled here to a store, from where other hosts pull it.

    By digest, never over what is there, by version of the compiler and kind of cores; what failed, is unfinished,
    damaged or in use is not sent, and why is said. Doing it again sends only what is missing; a large file goes on
    where it was cut off.
    """
    from neuronbench.weights.meter import Meter, said_bytes

    rows: list[dict[str, object]] = []

    def note(label: str, done: str, size: int, text: str, *, scope: str = "", moved: int = 0) -> None:
        rows.append({"entry": label, "done": done, "scope": scope, "bytes": size, "moved_bytes": moved, "why": text})
        if not as_json and done != "there":
            where = f" as {scope}, {said_bytes(size)}" if scope and done != "other" else ""
            _said(say, f"{_WORDS[done]} {label}{where}" + (f": {text}" if text else ""))

    with _opened(context, store) as (place, say):
        planned = []
        for cache in _shared(context):
            for entry in cache.entries():
                label = f"{cache.name}/{entry.key}"
                say(f"looking at {label}")
                try:
                    if entry.in_use:
                        raise ValueError("a process is at work on it")
                    planned.append((cache, entry, label, cache.scope(entry.key)))
                except ValueError as error:
                    note(label, "left", entry.size_bytes, str(error))
        meter = Meter(say, sum(entry.size_bytes for _, entry, _, _ in planned))
        meter.label(f"sending {counted(len(planned), 'entry', 'entries')}")

        def send(job: tuple[Shared, CacheEntry, str, str]) -> tuple[str, int]:
            cache, entry, label, scope = job
            if dry_run:
                return ("there" if place.has(scope, entry.key) else "would"), 0
            if entry.size_bytes > _LARGE_BYTES:
                meter.label(f"sending {label}")
            return place.put(scope, entry.key, cache.files(entry.key), meter=meter)

        for (_, entry, label, scope), (done, moved) in _side_by_side(planned, lambda job: job[1].size_bytes, send):
            why = "the store has another of that key, made elsewhere; it stays" if done == "other" else ""
            note(label, done, entry.size_bytes, why, scope=scope, moved=moved)
    if as_json:
        host.emit_json({"store": place.blobs.url, "dry_run": dry_run, "entries": rows})
        return
    counts = Counter(str(row["done"]) for row in rows)
    going = counts["would" if dry_run else "sent"]
    moved = sum(
        int(str(row["bytes" if dry_run else "moved_bytes"])) for row in rows if row["done"] in ("would", "sent")
    )
    words = f"would be sent ({said_bytes(moved)})" if dry_run else f"sent ({said_bytes(moved)})"
    host.say(
        f"{counted(going, 'entry', 'entries')} {words}, {counts['there']} there already, "
        f"{counts['other']} other than those there, {counts['left']} left"
    )


def pull(
    context: typer.Context, store: Store, scope: Scopes = None, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Get from a store what was compiled elsewhere for this host's compiler and cores.

    Every byte is checked, and an artifact's own list of files, too; an entry appears whole or not at all, and nothing
    that is here is touched. Doing it again goes on where it was cut off. Fails when an entry is not what it should be;
    the others come all the same.
    """
    from neuronbench.weights.meter import Meter, said_bytes

    rows: list[dict[str, object]] = []

    def note(label: str, done: str, size: int, text: str = "") -> None:
        rows.append({"entry": label, "done": done, "bytes": size, "why": text})
        if not as_json and (done != "there" or text):
            size_words = f", {said_bytes(size)}" if done in ("got", "would_get") else ""
            _said(say, f"{_WORDS[done]} {label}{size_words}" + (f": {text}" if text else ""))

    with _opened(context, store) as (place, say):
        caches = _shared(context)
        asked = {cache.name: [each for each in scope or () if each.startswith(f"{cache.name}/")] for cache in caches}
        wanted = {cache.name: asked[cache.name] if scope else list(cache.scopes()) for cache in caches}
        explained = _explain(place, scope, wanted)
        planned = []
        for cache in caches:
            for each in wanted[cache.name]:
                say(f"looking at {each}")
                for entry in place.entries(each):
                    label = f"{cache.name}/{entry.key}"
                    if not cache.files(entry.key):
                        planned.append((cache, entry, label))
                        continue
                    wrong = cache.damage(entry.key)
                    why = f"{wrong}; to have the store's: neuronbench cache prune, pull" if wrong else ""
                    note(label, "left" if wrong else "there", entry.size_bytes, why)
        meter = Meter(say, sum(entry.size_bytes for _, entry, _ in planned))
        meter.label(f"getting {counted(len(planned), 'entry', 'entries')}")

        def fetch(job: tuple[Shared, Entry, str]) -> tuple[str, str]:
            cache, entry, label = job
            if dry_run:
                return "would_get", ""
            if entry.size_bytes > _LARGE_BYTES:
                meter.label(f"getting {label}")
            return _pulled(place, cache, entry, meter)

        for (_, entry, label), (done, why) in _side_by_side(planned, lambda job: job[1].size_bytes, fetch):
            note(label, done, entry.size_bytes, why)
    refused = sum(row["done"] == "refused" for row in rows)
    if as_json:
        host.emit_json({"store": place.blobs.url, "dry_run": dry_run, "entries": rows, "notes": explained})
    else:
        for line in explained:
            host.say(line)
        came = [int(str(row["bytes"])) for row in rows if row["done"] in ("got", "would_get")]
        words = "would be fetched" if dry_run else "fetched"
        more = f", {refused} refused" if refused else ""
        there = sum(row["done"] in ("there", "left") for row in rows)
        host.say(
            f"{counted(len(came), 'entry', 'entries')} {words} ({said_bytes(sum(came))}), {there} here already{more}"
        )
    if refused:
        raise typer.Exit(host.FAILURE)


def _side_by_side(
    jobs: Sequence[Job], size: Callable[[Job], int], do: Callable[[Job], Done]
) -> Iterator[tuple[Job, Done]]:
    """Do them all, and say what came of each: many small ones at a time, for which each request is a wait; then the
    large ones, each of which goes in several parts at a time by itself."""
    small = [job for job in jobs if size(job) <= _LARGE_BYTES]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="nb-cache") as threads:
        coming = [threads.submit(do, job) for job in small]
        try:
            for job, future in zip(small, coming, strict=True):
                yield job, future.result()
        finally:
            for future in coming:
                future.cancel()
    for job in jobs:
        if size(job) > _LARGE_BYTES:
            yield job, do(job)


def _pulled(place: EntryStore, cache: Shared, entry: Entry, meter: Meter) -> tuple[str, str]:
    """Fetch an entry and make it one of the cache's: what became of it, and why."""
    from neuronbench.weights.manifest import StoreError

    lock = cache.reserve(entry.key)
    if lock is None:
        return "left", "a process is at work on it"
    with lock:
        work = cache.workshop(entry.key)
        try:
            place.fetch(entry, work, meter=meter)
            if cache.install(entry.key, work):
                return "got", ""
        except ValueError as error:
            shutil.rmtree(work, ignore_errors=True)
            return "refused", f"what came is not that entry: {error}"
        except StoreError as error:
            if error.kind not in ("weights_mismatch", "weights_missing"):
                raise  # what has come stays where it is, and the next pull goes on from there
            shutil.rmtree(work, ignore_errors=True)
            return "refused", error.message
        shutil.rmtree(work, ignore_errors=True)
        return "there", ""


_WORDS: Final = {
    "sent": "sent", "would": "would send", "there": "there already:", "other": "left", "left": "left", "got": "got",
    "would_get": "would get", "refused": "refused",
}  # fmt: skip


def _explain(place: EntryStore, scope: Sequence[str] | None, wanted: dict[str, list[str]]) -> list[str]:
    """Where nothing can fit: that it is so, and what the store has instead."""
    there = place.scopes()
    if {each for scopes in wanted.values() for each in scopes} & set(there):
        return []
    what = f"none of {', '.join(scope)}" if scope else "nothing for this host's compiler and cores"
    mine = sorted({each for scopes in wanted.values() for each in scopes})
    return [
        f"the store has {what}" + (f" ({', '.join(mine)})" if mine and not scope else ""),
        f"it has: {', '.join(there)}" if there else "it has no entries at all",
    ]


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
            "no cache here can be shared", remedy="artifacts and compile caches of Neuron can: see neuronbench plugins"
        )
    return found


@contextmanager
def _opened(context: typer.Context, reference: str) -> Iterator[tuple[EntryStore, host.ProgressLine]]:
    from neuronbench.weights.blobs import blobs
    from neuronbench.weights.entries import EntryStore
    from neuronbench.weights.manifest import StoreError

    progress = host.ProgressLine(patience_s=1.0)
    try:
        yield EntryStore(blobs(reference, root=host.of(context).settings.root)), progress
    except StoreError as error:
        progress.done()
        raise host.CommandError(error.message, remedy=error.remedy) from error
    finally:
        progress.done()

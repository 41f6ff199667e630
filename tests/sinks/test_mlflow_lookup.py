"""From MLflow's runs back to receipts, on a real store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic_receipts as synthetic
from sink_helpers import Reader

from neuronbench.compare import Selector, compare
from neuronbench.config import Settings
from neuronbench.receipts import ReceiptStore
from neuronbench.sinks.mlflow import MlflowSink
from neuronbench.sinks.mlflow.lookup import receipts


@pytest.fixture
def delivered(sink: MlflowSink, store: ReceiptStore, session: str) -> list[Path]:
    """Three repeats of a point and a boot in MLflow, with their summary."""
    made = [synthetic.put(store, synthetic.record(session, repeat=r, ttft=50.0 + r)) for r in (1, 2, 3)]
    for path in (synthetic.put(store, synthetic.boot(session)), *made):
        assert sink.write(path).state == "delivered"
    sink.close()
    return made


def test_a_run_a_session_and_an_experiment_mean_their_receipts(
    delivered: list[Path], settings: Settings, session: str, reader: Callable[..., Reader]
) -> None:
    mlflow = reader(settings.mlflow_uri)
    (parent,) = mlflow.runs(nb_kind="session")
    (summary,) = mlflow.runs(nb_kind="summary")
    run = mlflow.run(f"{session}/{delivered[1].name}")
    assert receipts(settings, run.info.run_id) == [delivered[1]]
    for asked in (parent.info.run_id, summary.info.run_id, session, "serving", "neuronbench/serving"):
        assert sorted(receipts(settings, asked)) == delivered, asked


def test_a_record_that_is_not_here_is_fetched_and_compared(
    delivered: list[Path], settings: Settings, session: str, tmp_path: Path
) -> None:
    shutil.rmtree(settings.receipts_dir / session)
    here = replace(settings, cache_dir=tmp_path / "cache")
    said: list[str] = []
    found = receipts(here, session, progress=said.append)
    assert len(found) == len(said) == 3
    assert all(path.is_relative_to(tmp_path / "cache") for path in found)
    assert receipts(here, session, progress=said.append) == found
    assert len(said) == 3  # the second time nothing is fetched
    selector = Selector(store=ReceiptStore(here.receipts_dir), mlflow=lambda asked: receipts(here, asked))
    side = selector.side(f"mlflow:{session}")
    assert sorted(r.receipt_id for r in side.readings) == [f"{session}/{path.name}" for path in delivered]
    assert compare(side, side).rows


def test_a_name_from_elsewhere_stays_inside(
    delivered: list[Path], settings: Settings, session: str, reader: Callable[..., Reader]
) -> None:
    mlflow = reader(settings.mlflow_uri)
    run = mlflow.run(f"{session}/{delivered[0].name}")
    for name in ("../../../etc/passwd", "a/../../b", "/etc/passwd", "..", "x"):
        mlflow.client.set_tag(run.info.run_id, "nb.receipt", name)
        with pytest.raises(LookupError, match="found none that has receipts"):
            receipts(settings, run.info.run_id)


@pytest.mark.parametrize("asked", ["0" * 32, "20200101-000000-0000", "cooking", "x' or 'a' = 'a"])
def test_what_is_not_there_says_so(delivered: list[Path], settings: Settings, asked: str) -> None:
    with pytest.raises(LookupError):
        receipts(settings, asked)


def test_without_a_store_there_is_nothing_to_ask(tmp_path: Path, settings: Settings) -> None:
    with pytest.raises(LookupError, match="there is no store at"):
        receipts(replace(settings, data_root=tmp_path / "elsewhere"), "serving")
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(LookupError, match="switched off"):
        receipts(replace(settings, tracking_uri="off"), "serving")

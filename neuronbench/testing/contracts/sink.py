"""What is relied on in a sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from neuronbench.definitions import metric
from neuronbench.model import FrozenMap, Outcome, Point, Record
from neuronbench.plugins import Plugins
from neuronbench.protocols import Delivery, Sink
from neuronbench.receipts import ReceiptStore
from neuronbench.records import OpenRecord
from neuronbench.testing.contracts.base import PluginContract


def sample_receipt(settings: Any, *, repeat: int = 1, session: str = "20260101-000000-abcd") -> Path:
    """A receipt as a session leaves it, in the receipts of `settings`; returns its folder."""
    store = ReceiptStore(settings.receipts_dir)
    point = Point(
        benchmark="benchmarks/bench_sample.py::bench_sample", lane="custom", backend="cpu",
        params=FrozenMap({"concurrency": 4}), axes=("concurrency",), id="custom.sample-cpu-c4",
    )  # fmt: skip
    opened = OpenRecord(Record(session=session, point=point, repeat=repeat), store)
    opened.record.add(metric("ttft", 31.5, stat="p50", n=100, low=30.9, high=32.2, confidence=0.95))
    opened.record.add(metric("ttft", None, stat="p99", n=12, note="100 are needed"))
    return opened.commit(Outcome.OK)


class SinkContract(PluginContract):
    """`sink`: the name it is registered under.

    Override `here` where it needs settings to deliver, and `away` for a place that cannot be reached.
    """

    sink: ClassVar[str]

    @pytest.fixture
    def here(self, settings: Any) -> Any:
        """Settings under which the sink can deliver."""
        return settings

    @pytest.fixture
    def away(self, settings: Any) -> Any:
        """Settings under which what it delivers to cannot be reached; None when there is no such thing."""
        return None

    @pytest.fixture
    def made(self, plugins: Plugins, here: Any) -> Sink:
        return plugins.sink(self.sink, here)

    def test_it_is_a_sink(self, made: Sink) -> None:
        """A session calls these methods, and no others."""
        assert isinstance(made, Sink)
        assert made.name == self.sink

    def test_it_delivers_and_says_where(self, made: Sink, here: Any) -> None:
        """The reference is how a user gets from a receipt to what was made of it."""
        delivery = made.write(sample_receipt(here))
        assert isinstance(delivery, Delivery)
        assert delivery.state == "delivered", delivery.reason
        made.close()

    def test_delivering_twice_makes_one_of_it(self, made: Sink, here: Any) -> None:
        """`neuronbench push` delivers again whatever is not known to have arrived."""
        receipt = sample_receipt(here)
        first, second = made.write(receipt), made.write(receipt)
        assert (second.state, second.reference) == ("delivered", first.reference)
        made.close()

    def test_it_leaves_the_receipt_as_it_was(self, made: Sink, here: Any) -> None:
        """A receipt is never rewritten; a sink may note what became of it in `sinks/` beside it."""
        receipt = sample_receipt(here)
        before = _content(receipt)
        made.write(receipt)
        made.close()
        assert _content(receipt) == before

    def test_a_place_that_cannot_be_reached_leaves_it_pending(self, plugins: Plugins, away: Any) -> None:
        """A sink can never fail a point: it answers, and the reason says what to do."""
        if away is None:
            pytest.skip("`away` names no settings")
        sink = plugins.sink(self.sink, away)
        delivery = sink.write(sample_receipt(away))
        assert delivery.state == "pending"
        assert delivery.reason
        sink.close()

    def test_a_damaged_receipt_leaves_it_pending(self, made: Sink, here: Any) -> None:
        """A file that a full disk cut short is told about, and costs the others nothing."""
        receipt = sample_receipt(here)
        (receipt / "record.json").write_text('{"schema_version": ', encoding="utf-8")
        delivery = made.write(receipt)
        assert delivery.state == "pending"
        assert delivery.reason
        assert made.write(sample_receipt(here, repeat=2)).state == "delivered"
        made.close()

    def test_it_can_be_closed_twice_and_without_having_written(self, made: Sink) -> None:
        """A session closes its sinks whatever has happened."""
        made.close()
        made.close()


def _content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] != "sinks"
    }

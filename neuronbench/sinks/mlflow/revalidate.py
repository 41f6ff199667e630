"""What accuracy records have shown since a run was written: the tag `nb.validity_now` of the run.

The run itself is a copy of the receipt and stays as it is, like the receipt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from neuronbench.model import Validity
from neuronbench.receipts import ReceiptError, ReceiptStore, validities_now
from neuronbench.receipts.receipt import read_marker

if TYPE_CHECKING:
    from neuronbench.model import Record

TAG: Final = "nb.validity_now"


def revalidate(client: Any, store: ReceiptStore, sink: str, target: str, session: str | None = None) -> int:
    """Tag the runs, of one session or of all, whose validity is another one by now; returns how many those are.

    Only records that were not valid when they were written are read. `target`: where the runs are.
    """
    runs: dict[str, str] = {}
    records: list[Record] = []
    for header in store.headers(session, kind="point", on_error=lambda error: None):
        if header.validity is Validity.VALID:
            continue
        marker = read_marker(header.path, sink)
        if marker is None or not marker.reference or marker.state != "delivered" or marker.target != target:
            continue
        try:
            records.append(store.read(header.path).record)
        except ReceiptError:
            continue
        runs[header.receipt_id] = marker.reference
    found = validities_now(records, store)
    for receipt, validity in found.items():
        client.set_tag(runs[receipt], TAG, validity.value)
    return len(found)

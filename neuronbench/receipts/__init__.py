"""Receipts: what a repeat leaves on disk, written once, whole, and never rewritten.

```text
<data root>/receipts/
  20261130-012345-ab12/              a session
    session.json                     what was asked, where, and how it ended
    serving-c8--r1/                  a receipt
      record.json                    the record
      requests.parquet ...           its tables, logs and other files
      sinks/mlflow.json              whether a sink has it (the only file that changes)
    .open-serving-c16--r1/           being measured; what a killed run leaves is recovered
```

Light to import: neither pyarrow nor any other heavy library is loaded before a table is read.
"""

from neuronbench.receipts.codec import decode_record
from neuronbench.receipts.documents import ReceiptError
from neuronbench.receipts.evidence import Evidence, accuracy_evidence, artifact_hash, validities_now, validity_now
from neuronbench.receipts.files import LockTimeout, locked, write_atomic
from neuronbench.receipts.owner import may_be_alive
from neuronbench.receipts.receipt import Header, Marker, Receipt
from neuronbench.receipts.recovery import recover
from neuronbench.receipts.sessions import SessionManifest, new_session_id, utc_now
from neuronbench.receipts.store import ReceiptStore, Staging

__all__ = [
    "Evidence",
    "Header",
    "LockTimeout",
    "Marker",
    "Receipt",
    "ReceiptError",
    "ReceiptStore",
    "SessionManifest",
    "Staging",
    "accuracy_evidence",
    "artifact_hash",
    "decode_record",
    "locked",
    "may_be_alive",
    "new_session_id",
    "recover",
    "utc_now",
    "validities_now",
    "validity_now",
    "write_atomic",
]

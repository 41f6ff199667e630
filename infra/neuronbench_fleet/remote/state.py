"""What an agent keeps on the box's disk: the order, how often it was started, how long it ran, and how it ended.

Everything is written by rename, so that a kill or a power cut leaves the old or the new, and nothing in between.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from neuronbench.receipts import write_atomic

After: TypeAlias = Literal["keep", "stop", "terminate"]

ORDER: Final = "run.json"
CANCEL: Final = "cancel"
POLL_S, FLUSH_S = 1.0, 3.0
PACE: Final = "NEURONBENCH_AGENT_PACE"
"""Variable that multiplies both (for tests)."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the desk asked of this box; written by the bootstrap script before anything runs."""

    run: str
    bucket: str
    instance: str
    code: Path
    """The unpacked tree: the working folder."""
    pytest_args: Sequence[str]
    after: After = "keep"
    max_hours: float | None = None
    """Of the run, all its boxes together."""
    max_usd: float | None = None
    usd_per_hour: float | None = None
    expires: str = ""
    """UTC, ISO: when the box has to be gone. Empty: never."""
    environment: Mapping[str, str] = None  # type: ignore[assignment]
    """Variables for pytest, without secrets: hash and commit of the code among them."""
    region: str = ""
    poll_s: float = POLL_S
    """Between two looks at everything."""
    flush_s: float = FLUSH_S
    """Between two pieces of console or events."""

    @classmethod
    def read(cls, folder: Path) -> Order:
        """The order in a state folder. Raises `ValueError` or `OSError` for one that cannot be read."""
        told: dict[str, Any] = json.loads((folder / ORDER).read_text(encoding="utf-8"))
        told["code"] = Path(told["code"])
        told["environment"] = dict(told.get("environment") or {})
        known = {name: value for name, value in told.items() if name in cls.__dataclass_fields__}
        factor = float(os.environ.get(PACE) or 1.0)
        return cls(**known, poll_s=POLL_S * factor, flush_s=FLUSH_S * factor)


class State:
    """The small files of a run on this box."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data_root = folder / "mlruns"
        self.receipts = self.data_root / "receipts"
        folder.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file of ours; empty when there is none."""
        try:
            found = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write(self, name: str, **told: Any) -> None:
        write_atomic(self.folder / f"{name}.json", json.dumps(told))

    def cancelled(self) -> str:
        """Who has asked that the run end, in words; empty while nobody has. The desk's script writes the file."""
        if not (self.folder / f"{CANCEL}.json").exists():
            return ""
        return f"cancelled by {self.read(CANCEL).get('by') or 'somebody'}"

    def new_boot(self) -> int:
        """Number of this start of the agent, from 1."""
        number = int(self.read("boots").get("boots", 0)) + 1
        self.write("boots", boots=number)
        return number

    def console(self, boot: int) -> Path:
        return self.folder / f"console-{boot:04d}.log"

    def events(self, boot: int) -> Path:
        return self.folder / f"events-{boot:04d}.jsonl"

"""What the runtime leaves of a server that is captured: a trace for each program at its first execution, or one of the
whole session, which is there when the process has ended."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Final

NEFF: Final = b"NEFF" * 64


class Capture:
    """Told of executions; writes where NEURON_RT_INSPECT_ENABLE is set, and nowhere else."""

    def __init__(self, *, asynchronous: bool) -> None:
        """`asynchronous`: executions are, and traces of single programs stay empty then."""
        self._asynchronous = asynchronous
        self._mode = os.environ.get("NEURON_RT_INSPECT_DEVICE_PROFILE", "0")
        self._on = os.environ.get("NEURON_RT_INSPECT_ENABLE") == "1" and self._mode != "0"
        self._folder = Path(os.environ.get("NEURON_RT_INSPECT_OUTPUT_DIR", "output"), f"i-0123_pid_{os.getpid()}")
        self._known: set[str] = set()

    def ran(self, graph: str) -> None:
        """A program was executed."""
        if not self._on or graph in self._known:
            return
        self._known.add(graph)
        self._folder.mkdir(parents=True, exist_ok=True)
        digest = str(int(hashlib.sha256(graph.encode()).hexdigest()[:12], 16))
        (self._folder / f"neff_{digest}.neff").write_bytes(NEFF)
        if self._mode in ("1", "model") and not self._asynchronous:
            self._trace(f"{digest}_instid_0_vnc_0.ntff")

    def close(self) -> None:
        """The process ends."""
        if self._on and self._mode == "session":
            self._folder.mkdir(parents=True, exist_ok=True)
            self._trace("profile_nc_0_session_0.ntff")
            if os.environ.get("NEURON_RT_INSPECT_SYSTEM_PROFILE", "1") == "1":
                for name in ("ntrace.pb", "trace_info.pb"):
                    (self._folder / name).write_bytes(b"pb")

    def _trace(self, name: str) -> None:
        told = {"total_time": 0.02, "ntff_version": int(os.environ.get("NEURONBENCH_FAKE_NTFF_VERSION", "3"))}
        (self._folder / name).write_text(json.dumps(told), encoding="utf-8")

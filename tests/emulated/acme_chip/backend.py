"""Whether there is a chip."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neuronbench import BackendInfo, Probe, Stack
from neuronbench.failures import Rule
from neuronbench.model import FrozenMap, Json

COMPILER = "acmecc 1.0"


def compile_s() -> float:
    """How long its compiler takes."""
    return float(os.environ.get("ACME_COMPILE_S", "0.2"))


class AcmeBackend:
    def __init__(self, info: BackendInfo) -> None:
        self.info = info

    @property
    def chips(self) -> int:
        return int(os.environ.get("ACME_CHIPS", "0"))

    def probe(self) -> Probe:
        if not self.chips:
            return Probe(available=False, reason="there is no Acme chip here: set ACME_CHIPS to how many there are")
        return Probe(available=True, cores=self.chips, facts=FrozenMap(simulated=True))

    def stack(self, kind: str, settings: Any) -> Stack:
        if kind not in ("serving", "compile"):
            raise LookupError(f"acme1 has no stack for {kind!r}: it serves and compiles")
        return Stack(
            kind=kind, python=Path(sys.executable), source="Acme's software is Python alone", packages=FrozenMap()
        )

    def facts(self) -> Mapping[str, Json]:
        return {"acme.chips": self.chips or None, "acme.compiler": COMPILER}

    def failure_rules(self) -> Sequence[Rule]:
        return [
            Rule(
                id="acme_on_fire",
                kind="device_lost",
                pattern=r"ACME-7: chip \d+ is on fire",
                cause="the chip is on fire",
                remedy="put it out, then power-cycle the host",
            )
        ]

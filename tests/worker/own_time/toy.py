"""The compiled toy (`neuronbench/testing/toy_handlers/toy.py`) on a clock of its own; loaded by a worker."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .clock import CLOCK, original

toy: Any = original("toy")
main, loops = sys.modules["__main__"], sys.modules["nb_worker.loops"]
main.time = loops.time = CLOCK  # type: ignore[attr-defined]


def waits(run: Callable[..., Any], begins: Callable[..., None]) -> Callable[..., Any]:
    def timed(*arguments: Any) -> Any:
        begins(*arguments)
        try:
            return run(*arguments)
        finally:
            CLOCK.end()

    return timed


loops.latency = waits(loops.latency, lambda *_: CLOCK.begin())  # type: ignore[attr-defined]
loops.window = waits(  # type: ignore[attr-defined]
    loops.window, lambda call, fetch, go_ns, *_: CLOCK.begin(at_most=go_ns - 5_000_000)
)


class Handler(toy.Handler):  # type: ignore[misc]
    """See there."""

    @staticmethod
    def _until(instant_ns: int) -> None:
        CLOCK.until(instant_ns)

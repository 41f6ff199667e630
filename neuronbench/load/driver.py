"""The load driver: `python -m neuronbench.load.driver PLAN_FOLDER OUT_FOLDER`. A process of its own, always.

Options come from `OUT_FOLDER/options.json` (see `neuronbench.load.run`); the API key from the environment variable
named there. Prints one JSON line a second; leaves the spill files of `neuronbench.load.layout`.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from neuronbench.load import clock, policies
from neuronbench.load.baton import Baton
from neuronbench.load.engine import Engine, Limits, Target
from neuronbench.load.outcomes import Phase
from neuronbench.load.planfile import PlanView
from neuronbench.load.progress import Progress, say
from neuronbench.load.spill import Spill
from neuronbench.load.stream import Stream

_SECOND: Final = 1_000_000_000
_SPARE_FILES: Final = 64


class Driver:
    """One worker: the engine, the policy in charge, and the records."""

    def __init__(self, plan: PlanView, out: Path, options: dict[str, Any], worker: int = 0) -> None:
        self.plan, self.options = plan, options
        self.worker, self.workers = worker, options.get("processes", 1)
        self.spill = Spill(out, worker)
        self.progress = Progress(plan.arrivals.get("rate"))
        target = Target.parse(options["base_url"])
        head = self._head(target)
        arrivals = plan.arrivals
        limits = options["timeouts"]
        self.engine = Engine(
            target,
            Limits(
                *(int(limits[name] * _SECOND) for name in ("connect_s", "first_token_s", "inter_token_s", "total_s"))
            ),
            head=head,
            bodies=plan.body,
            ended=self._ended,
            max_connections=raise_file_limit() - _SPARE_FILES,
            ca_file=options.get("ca_file"),
            verify=options.get("verify", True),
            stamps=options.get("stamps", True),
            coalesce_ns=round(options.get("coalesce_ms", 0.0) * 1e6) if plan.api.streaming else 0,
        )
        self.baton = Baton(self.engine, self.workers)
        self.concurrency = len(range(worker, arrivals["in_flight"], self.workers))
        self.policy: policies.Policy = policies.WarmUp(self, self.concurrency)
        self.status, self.message = "", ""
        self.last_error = ""
        self.seq = 0
        self.wrapped = 0
        """How often the plan's bodies started over."""
        self._exact = plan.column("output_tokens") if plan.exact else None
        self._cancel = plan.column("cancel_after")
        self._stop_signal = 0
        self._draining = False
        self._gone_ns = int(options.get("gone_s", 3.0) * _SECOND)

    def _head(self, target: Target) -> bytes:
        host = target.host if ":" not in target.host else f"[{target.host}]"
        lines = [
            f"POST {target.prefix}{self.plan.api.path} HTTP/1.1",
            f"Host: {host}:{target.port}",
            "Content-Type: application/json",
            f"Accept: {'text/event-stream' if self.plan.api.streaming else 'application/json'}",
            "User-Agent: neuronbench",
        ]
        key = os.environ.pop(self.options.get("api_key_env") or "", None)
        if key:
            lines.append(f"Authorization: Bearer {key}")
        return ("\r\n".join(lines) + "\r\nContent-Length: ").encode()

    # --------------------------------------------------------------------------------------------------- for policies

    def send(self, body: int, s: int, phase: Phase, slot: int = 0) -> None:
        """Send that body now; `s` is when it was due."""
        exact = -1 if self._exact is None else self._exact[body]
        stream = Stream(
            self.plan.api,
            seq=self.seq,
            body=body,
            phase=phase,
            s=s,
            exact=exact,
            cancel_after=self._cancel[body],
            slot=slot,
        )
        self.seq += 1
        self.progress.sent += 1
        self.engine.submit(stream)

    def warmed(self, now: int) -> None:
        """The warm-up is over; the load begins as soon as every worker is there."""
        warm_up = self.policy
        assert isinstance(warm_up, policies.WarmUp)
        self.policy = policies.choose(self, warm_up.typical_ns)
        gc.collect()
        gc.freeze()
        self.baton.reach("ramp", self._ramp)

    def _ramp(self, now: int) -> None:
        self.progress.restart(now, self.engine.in_flight.values())
        self.edge("ramp", now)
        self.policy.start(now)

    def edge(self, name: str, at: int) -> None:
        """Note an edge of the window, with the state of the counters."""
        if name == "open":
            self.progress.restart(at, self.engine.in_flight.values())
        self.spill.event(
            "edge",
            name=name,
            t=at,
            noted=time.monotonic_ns(),
            lags=self.spill.lags_so_far(len(self.engine.lags)),
            cpu_ns=time.process_time_ns(),
            user_ns=round(resource.getrusage(resource.RUSAGE_SELF).ru_utime * 1e9),
            utc_ns=at + self.engine.offset_ns,
        )
        self.spill.flush(self.engine.lags)

    def drain(self, now: int) -> None:
        """Send no more; wait for what is in flight, within bounds."""
        self._draining = True
        self.edge("drain", now)
        self.engine.call(now + int(self.options["timeouts"]["drain_s"] * _SECOND), self.abort, "ok", "")

    def abort(self, status: str, message: str) -> None:
        """End now, whatever is in flight."""
        if not self.status:
            self.status, self.message = status, message

    # ------------------------------------------------------------------------------------------------------------ run

    def _ended(self, stream: Stream, t: int) -> None:
        self.progress.end(stream)
        self.policy.ended(stream, t)
        self.spill.end(stream)

    def run(self) -> str:
        """Drive to the end; returns the status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        self.plan.touch()
        gc.collect()
        gc.freeze()
        gc.disable()
        now = time.monotonic_ns()
        engine = self.engine
        engine.call(now + int(self.options["deadline_s"] * _SECOND), self.abort, "timeout", self._late())
        engine.preconnect(self.concurrency)
        engine.call(now + _SECOND, self._tick, now + _SECOND)
        engine.call(now, self._watch)
        self.spill.event("start", t=now, utc_ns=now + engine.offset_ns, pid=os.getpid(), worker=self.worker)
        self.policy.start(now)
        while not self.status:
            engine.turn()
            if self._stop_signal:
                self.abort("killed", f"stopped by {signal.Signals(self._stop_signal).name}")
            if self._draining and not engine.in_flight:
                self.abort("ok", "")
        return self._close()

    def _close(self) -> str:
        engine = self.engine
        now = time.monotonic_ns()
        self.policy = _Silent()
        engine.abandon(now)
        self._note_second(now)
        self.spill.event("end", t=now, status=self.status, message=self.message)
        self.spill.flush(engine.lags)
        engine.close()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.spill.close(
            {
                "status": self.status,
                "message": self.message,
                "ended": now,
                "wrapped": self.wrapped,
                "odd_stamps": engine.odd_stamps,
                "coalesce_ms": engine.coalescing.longest_ns / 1e6,
                "pauses": engine.coalescing.taken,
                "cpu_user_s": usage.ru_utime,
                "cpu_system_s": usage.ru_stime,
                "max_rss_bytes": usage.ru_maxrss * 1024,
            }
        )
        return self.status

    def _late(self) -> str:
        return f"not finished within its deadline of {self.options['deadline_s']:g} s"

    def _signalled(self, number: int, frame: object) -> None:
        self._stop_signal = number

    def _watch(self) -> None:
        """A server that nobody can connect to any more ends the run: waiting would measure nothing."""
        engine = self.engine
        now = time.monotonic_ns()
        if engine.refusals >= 3 and now - engine.refused_since > self._gone_ns and not engine.carried():
            self.abort("server_gone", f"no connection to {self.options['base_url']} for {self._gone_ns / 1e9:g} s")
        engine.call(now + _SECOND // 4, self._watch)

    def _tick(self, due: int) -> None:
        now = time.monotonic_ns()
        self.engine.call(max(due + _SECOND, now), self._tick, due + _SECOND)
        self._note_second(now)
        phase = getattr(self.policy, "phase", self.policy.name)
        remaining, unit = self.policy.remaining(now)
        streams = list(self.engine.in_flight.values())
        line = self.progress.line(
            now, phase=phase, streams=streams, lags=self.engine.lags, remaining=remaining, unit=unit
        )
        self.spill.flush(self.engine.lags, streams)
        say(json.dumps(line))

    def _note_second(self, now: int) -> None:
        offset = clock.realtime_offset_ns()
        step = offset - self.engine.offset_ns
        if abs(step) > clock.STEP_NS:
            self.spill.event("clock_step", t=now, step_ns=step)
            self.engine.set_offset(offset)
        self.spill.event("second", t=now, cpu_ns=time.process_time_ns(), in_flight=len(self.engine.in_flight))


class _Silent:
    """In charge when everything is over."""

    name = "end"

    def start(self, now: int) -> None: ...

    def ended(self, stream: Stream, t: int) -> None: ...

    def remaining(self, now: int) -> tuple[float | None, str]:
        return None, ""


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            pass
    return min(soft, 1 << 20)


def main(argv: list[str]) -> int:
    if len(argv) not in (2, 3):
        sys.stderr.write("usage: python -m neuronbench.load.driver PLAN_FOLDER OUT_FOLDER [WORKER]\n")
        return 2
    out = Path(argv[1])
    options = json.loads((out / "options.json").read_text(encoding="utf-8"))
    driver = Driver(PlanView(Path(argv[0])), out, options, int(argv[2]) if len(argv) == 3 else 0)
    return 0 if driver.run() == "ok" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

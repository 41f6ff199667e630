"""What can end a run from outside: the notice that a spot box is taken away, the box's own end, limits of the run."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

IMDS: Final = "http://169.254.169.254"
"""The instance metadata service; NEURONBENCH_IMDS names another (tests)."""
EVERY_S: Final = 5.0
MARGIN_S: Final = 300.0
"""So long before the box has to be gone, pytest is asked to end: records are closed and sent in that time."""
_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Why the run has to end now."""

    kind: str
    """`spot`, `expiry`, `limit`, `cancelled`, or `signal`: the box or the unit goes down."""
    text: str


class SpotWatch:
    """Asks the metadata service (IMDSv2) every few seconds whether the box will be taken away, and until when it may
    run: the tag `neuronbench:expires` can be moved while it does."""

    def __init__(self, *, every_s: float = EVERY_S) -> None:
        self.base = os.environ.get("NEURONBENCH_IMDS", IMDS).rstrip("/")
        self.notice: Notice | None = None
        self.expires = ""
        """What the tag says; empty where it cannot be read."""
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._go, name="spot-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _go(self) -> None:
        while not self._stopped.is_set() and self.notice is None:
            self.notice = self.ask()
            self.expires = self._tag("neuronbench:expires") or self.expires
            self._stopped.wait(self._every_s)

    def ask(self) -> Notice | None:
        """The notice, if there is one. None also where there is no such service: that is no cloud's box."""
        try:
            told = json.loads(self._get("spot/instance-action"))
            action, at = str(told["action"]), str(told.get("time", ""))
        except (OSError, ValueError, KeyError, TypeError):  # 404: no notice
            return None
        return Notice(kind="spot", text=f"the spot box is taken away ({action}) at {at or 'any moment'}")

    def _tag(self, name: str) -> str:
        try:
            found = self._get(f"tags/instance/{name}").strip()
            _instant(found)
        except (OSError, ValueError):
            return ""
        return found

    def _get(self, path: str) -> str:
        token = self._call("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "300"})
        return self._call("GET", f"/latest/meta-data/{path}", {"X-aws-ec2-metadata-token": token})

    def _call(self, method: str, path: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(self.base + path, method=method, headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            text: str = answer.read(1 << 16).decode()
            return text


def _instant(text: str) -> datetime:
    """An instant of an ISO text; UTC where it does not say. Raises `ValueError`."""
    found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a run: hours and money over all its boxes, and the instant at which this box has to be gone."""

    max_hours: float | None = None
    max_usd: float | None = None
    expires: str = ""

    def reached(
        self, *, hours: float, usd: float | None, expires: str = "", now: datetime | None = None
    ) -> Notice | None:
        """The first limit that is reached; None while there is none. `expires`: what holds now instead of ours."""
        now = now or datetime.now(UTC)
        if self.max_hours is not None and hours >= self.max_hours:
            return Notice(kind="limit", text=f"the run has taken {hours:.2f} hours of {self.max_hours:g} that it may")
        if self.max_usd is not None and usd is not None and usd >= self.max_usd:
            return Notice(kind="limit", text=f"the run has cost {usd:.2f} USD of {self.max_usd:g} that it may")
        expires = expires or self.expires
        if expires:
            left_s = (_instant(expires) - now).total_seconds()
            if left_s <= MARGIN_S:
                return Notice(kind="expiry", text=f"the box has to be gone at {expires}, in {left_s / 60:.0f} min")
        return None
